"""Rotary embeddings by complex numbers, in real arithmetic: the products then fuse with what is around them.

``view_as_real(view_as_complex(x) * turns)``, with sizes that broadcast in any way. On a GPU only, where products of
complex numbers are library calls; CPU kernels compute them as they are, as fast.
"""

from __future__ import annotations

import functools

import torch
from torch.fx import GraphModule, Node

from lamina.base.decision import Decision
from lamina.base.source import source_of
from lamina.rewrite.rules.editing import Replacement, Writer, replaced
from lamina.rewrite.rules.spelling import fake_of, spelled, written
from lamina.rewrite.torch_private import SET_GRAD

__all__ = ["turn_in_real_numbers"]


def turn_in_real_numbers(gm: GraphModule, decisions: list[Decision]) -> GraphModule:
    """Products of pairs, taken as complex numbers, with complex tensors; ``gm`` itself if there are none."""
    found: dict[Node, Replacement] = {}
    fixed = [node for node in gm.graph.nodes if written(node) or node.target is SET_GRAD]
    for node in gm.graph.nodes:
        call = spelled(node)
        product = call.args[0] if call is not None and call.name == "view_as_real" else None
        operands = _operands(product)
        if operands is None or not _is_library_call(operands[0]):
            continue
        if any(operands[0] < n < node for n in fixed):  # the pairs are read again, where the result is
            continue
        found[node] = functools.partial(_write, *operands)
        subject = ("turn_in_real_numbers", source_of(node))
        decisions.append(Decision("rewrite", subject, True, "pairs are multiplied with the parts of complex numbers"))
    return replaced(gm, found)


def _is_library_call(pairs: Node) -> bool:
    """Whether a product of complex numbers is one, where ``pairs`` are."""
    value = fake_of(pairs)
    return value is not None and value.device.type == "cuda"


def _operands(product: object) -> tuple[Node, Node] | None:
    """The real tensor of pairs and the complex tensor that ``product`` multiplies, if that is what it does."""
    call = spelled(product) if isinstance(product, Node) else None
    if not isinstance(product, Node) or call is None or call.name != "mul" or call.writes or len(product.users) != 1:
        return None
    for pairs, turns in (call.args[:2], call.args[1::-1]):
        inner = spelled(pairs) if isinstance(pairs, Node) else None
        other, fake = fake_of(turns), None if inner is None else fake_of(inner.args[0])
        if inner is None or inner.name != "view_as_complex" or other is None or fake is None:
            continue
        if other.is_complex() and not other.is_conj() and other.real.dtype == fake.dtype and len(pairs.users) == 1:
            return inner.args[0], turns
    return None


def _write(pairs: Node, turns: Node, write: Writer) -> Node:
    low, high = (write.call(torch.select, write.old(pairs), -1, i) for i in (0, 1))
    parts = write.call(torch.view_as_real, write.old(turns))
    cos, sin = (write.call(torch.select, parts, -1, i) for i in (0, 1))
    first = write.call(torch.sub, write.call(torch.mul, low, cos), write.call(torch.mul, high, sin))
    second = write.call(torch.add, write.call(torch.mul, low, sin), write.call(torch.mul, high, cos))
    return write.call(torch.stack, (first, second), -1)
