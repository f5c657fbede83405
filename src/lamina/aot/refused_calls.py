"""Captured calls that eager refuses and tracing takes, and one of which tracing makes something else."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from lamina.base.captured import argument, example
from lamina.base.source import operation_name, source_of
from lamina.base.symbolic.torch_private import is_guarded

__all__ = ["refused_call"]


_MISTOLD = frozenset({"multilabel_margin_loss", "multilabel_margin_loss_forward"})
"""Calls that torch, in 2.11 to 2.13, traces by a formula that takes absent labels for label 0."""


def refused_call(gm: GraphModule) -> str:
    """Why the captured graph is eager's to run: a call that raises there alone or is traced wrongly, or ""."""
    for node in gm.graph.nodes:
        if node.op == "call_function" and operation_name(node.target) in _MISTOLD:
            return f"{source_of(node)} counts labels behind the last one when it is traced"
        if node.op != "call_function" or operation_name(node.target) not in ("pad", "constant_pad_nd"):
            continue
        if _cuts_too_much(node):
            return f"{source_of(node)} takes more off one side than there is"
    return ""


def _cuts_too_much(node: Node) -> bool:
    """Whether a side of a padding loses more than there is; the other may gain it back. What varies is then guarded."""
    given = dict(zip(("input", "pad"), node.args, strict=False)) | dict(node.kwargs)
    source: Any = given.get("input", given.get("self"))
    pad = given.get("pad")
    image = example(source)
    if not isinstance(image, torch.Tensor) or not isinstance(pad, (list, tuple)):
        return False
    numbers: list[Any] = [argument(n) for n in pad]
    sizes: list[Any] = list(reversed(image.shape))
    if len(numbers) > 2 * len(sizes) or not all(isinstance(n, (int, torch.SymInt)) for n in numbers):
        return False
    for k, number in enumerate(numbers):
        if is_guarded(number >= 0):
            continue
        sizes[k // 2] = sizes[k // 2] + number
        if not is_guarded(sizes[k // 2] >= 0):
            return True
    return False
