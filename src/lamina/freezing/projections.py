"""Several products of one input, as queries, keys and values, or gate and up, as one product; or noted, and left apart.

One product with the concatenated weights is one launch instead of several, and reads the input once. But to
concatenate at each call reads and writes every weight once more: with one row, where a decoder spends its time on
reading weights, that takes 1.8 times as long as the separate products, and with 512 rows, where the products take their
time anyway, 1.04 times (float32, three of 768 x 768, AVX2). So it is done with the option freeze, which keeps the
concatenation for as long as no weight changes, and elsewhere a decision says so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence, Set
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from lamina.base.decision import Decision
from lamina.base.devices import FUSED_ATTENTION, kind_of
from lamina.base.fx.editing import call_for, replace_node
from lamina.base.fx.torch_private import graph_module
from lamina.base.reasons import Reason
from lamina.base.source import source_of
from lamina.freezing import reasons
from lamina.freezing.cut import constants, hoist
from lamina.ops.aliasing import makes_view
from lamina.rewrite.rules.spelling import spelled
from lamina.rewrite.torch_private import fake_mode_of

__all__ = ["leave_projections_apart", "merge_projections"]

aten = torch.ops.aten

_ALIGNMENT = 16
"""Bytes to which each part of a merged product is aligned, so that its readers can use wide loads."""

_LIBRARY = ("mm", "bmm", "addmm", "baddbmm", "convolution", "attention")
"""Words in the names of calls that a product is not moved across when they read its group's results."""


def leave_projections_apart(gm: GraphModule, decisions: list[Decision]) -> GraphModule:
    """``gm`` itself, with a decision for each input that several linear layers read."""
    layers: dict[Node, list[Node]] = defaultdict(list)
    for node in gm.graph.nodes:
        call = spelled(node)
        if call is None or call.name != "linear" or not isinstance(call.args[0], Node):
            continue
        if isinstance(call.args[1], Node) and call.args[1].op == "placeholder":
            layers[call.args[0]].append(node)
    for several in layers.values():
        if len(several) > 1:
            subject = ("leave_projections_apart", *dict.fromkeys(source_of(node) for node in several))
            decisions.append(Decision("rewrite", subject, False, reasons.LAYERS_APART(count=len(several))))
    return gm


def merge_projections(gm: GraphModule, decisions: list[Decision]) -> GraphModule:
    """A frozen inference graph in which products of one left operand with parameters are one.

    ``gm`` is in normal form, with parameters marked; its graph is changed in place. The results become slices: products
    whose readers want them in memory of their own, or that the graph returns, are left apart.
    """
    known = constants(gm.graph)
    position = {node: i for i, node in enumerate(gm.graph.nodes)}
    changed = False
    for group in _groups(gm, known, position):
        subject = ("merge_projections", *dict.fromkeys(source_of(node) for node in group))
        sizes = [_fake(node).shape[1] * _fake(node).element_size() for node in group]
        why: Reason | None = None
        if any(size % _ALIGNMENT for size in sizes):
            why = reasons.UNALIGNED_PART(bytes=_ALIGNMENT)
        elif _fake(group[0]).shape[0] == 1:
            why = reasons.ONE_ROW()
        if why is not None:
            decisions.append(Decision("rewrite", subject, False, why))
            continue
        fitting = [(node, views) for node in group if (views := _as_slice(node, sum(_columns(n) for n in group)))]
        if len(fitting) < 2:
            decisions.append(Decision("rewrite", subject, False, reasons.OWN_MEMORY()))
            continue
        _merge(gm, [node for node, _ in fitting])
        changed = True
        widths = " + ".join(str(_columns(node)) for node, _ in fitting)
        decisions.append(Decision("rewrite", subject, True, reasons.ONE_PRODUCT(widths=widths)))
    return graph_module(gm, gm.graph) if changed else gm


def _fake(node: Any) -> Tensor:
    value = node.meta["val"]
    assert isinstance(value, Tensor)
    return value


def _columns(node: Node) -> int:
    return int(_fake(node).shape[1])


def _parts(node: Node) -> tuple[Node | None, Node, Node]:
    """Bias, left and right operand of a product."""
    operands: tuple[Any, ...] = node.args
    return operands if len(operands) == 3 else (None, *operands)


def _groups(gm: GraphModule, known: Set[Node], position: dict[Node, int]) -> list[list[Node]]:
    """Products that could be one, in order: of one left operand, and no other product between them that reads them."""
    found: dict[Any, list[Node]] = defaultdict(list)
    for node in gm.graph.nodes:
        if node in known or not _is_projection(node, known):
            continue
        bias, left, _ = _parts(node)
        found[left, _fake(node).dtype, None if bias is None else _fake(bias).dtype].append(node)
    # Products with a bias and without are one group: zeros are added for those without.
    groups: dict[Any, list[Node]] = defaultdict(list)
    for (left, dtype, _), nodes in found.items():
        groups[left, dtype] += nodes
    result = []
    for several in groups.values():
        several.sort(key=position.__getitem__)
        start = [several[0]]
        for node in several[1:]:
            if _first_library_reader(start, position) < position[node]:
                result.append(start)
                start = []
            start.append(node)
        result.append(start)
    return [group for group in result if len(group) > 1]


def _is_projection(node: Node, known: Set[Node]) -> bool:
    if node.op != "call_function" or node.target not in (aten.mm.default, aten.addmm.default) or node.kwargs:
        return False
    bias, left, right = _parts(node)
    if right not in known or left in known or not isinstance(_fake(node).shape[1], int):
        return False
    if bias is not None and (bias not in known or _fake(bias).dim() != 1):
        return False
    return bias is None or (_fake(bias).shape[0] == _columns(node) and _fake(bias).dtype == _fake(node).dtype)


def _first_library_reader(nodes: Sequence[Node], position: dict[Node, int]) -> int:
    """Where the first library call stands that reads what was computed from ``nodes``."""
    first = len(position)
    seen: set[Node] = set(nodes)
    stack = list(nodes)
    while stack:
        for user in stack.pop().users:
            if user in seen or position[user] >= first:
                continue
            seen.add(user)
            name = str(user.target)
            if user.op == "call_function" and any(word in name for word in _LIBRARY):
                first = position[user]
            else:
                stack.append(user)
    return first


def _as_slice(node: Node, columns: int) -> dict[Node, Tensor] | None:
    """New fakes of ``node`` and of its views if it is a slice of ``columns``; None where something would notice."""
    value = _fake(node)
    with fake_mode_of([value]):
        sliced = value.new_empty((value.shape[0], columns))[:, : value.shape[1]]
    found = {node: sliced}
    return found if _unnoticed(node, sliced, found) else None


def _unnoticed(node: Node, fake: Tensor, found: dict[Node, Tensor]) -> bool:
    for user in node.users:
        if user.op != "call_function" or _slows(user, fake):
            return False
        try:
            value = _called(user, node, fake)
        except Exception:  # it cannot be had without a copy
            return False
        if makes_view(user.target) and isinstance(value, Tensor):
            if user.target in (aten._unsafe_view.default, aten.reshape.default) and not _viewable(user, fake):
                return False
            found[user] = value
            if not _unnoticed(user, value, found):
                return False
        elif _layout(value) != _layout(user.meta.get("val")):
            return False
    return True


def _slows(user: Node, fake: Tensor) -> bool:
    """Whether a call is slower on slices: attention in half precision on a GPU.

    An H200, 24 heads of 128 x 128 with 6 keys and values, bfloat16: 0.115 ms with three products, 0.148 with one.
    """
    half = fake.dtype in (torch.bfloat16, torch.float16)
    return half and kind_of(fake).has(FUSED_ATTENTION) and "attention" in str(user.target)


def _called(user: Node, operand: Node, fake: Tensor) -> Any:
    """What ``user`` gives when ``operand`` is ``fake``."""

    def value(node: Node) -> Any:
        return fake if node is operand else node.meta["val"]

    args = torch.fx.node.map_arg(user.args, value)
    kwargs = torch.fx.node.map_arg(user.kwargs, value)
    with torch.no_grad(), fake_mode_of([fake]):
        return user.target(*args, **kwargs)  # type: ignore[operator]


def _viewable(user: Node, fake: Tensor) -> bool:
    try:
        with fake_mode_of([fake]):
            fake.view(_fake(user).shape)
    except RuntimeError:
        return False
    return True


def _layout(value: Any) -> Any:
    if isinstance(value, Tensor):
        return tuple(value.shape), value.stride() if value.layout == torch.strided else None
    return tuple(_layout(v) for v in value) if isinstance(value, (tuple, list)) else None


def _merge(gm: GraphModule, products: Sequence[Node]) -> None:
    """Write one product in the place of the first of ``products``, and slices of it for each."""
    first = products[0]
    parts = [_parts(node) for node in products]
    hoist(gm.graph, [n for bias, _, right in parts for n in (bias, right) if n is not None], first)
    graph, left = gm.graph, parts[0][1]
    rights = [right for _, _, right in parts]
    with graph.inserting_before(first), fake_mode_of([_fake(first)]):

        def call(target: Any, *args: Any, **kwargs: Any) -> Node:
            return call_for(graph, first, target, *args, **kwargs)

        if all(_fake(right).stride(0) == 1 for right in rights):  # as linear layers hold them
            weight = call(aten.t.default, _cat([call(aten.t.default, right) for right in rights], 0, call))
        else:
            weight = _cat(rights, 1, call)
        if all(bias is None for bias, _, _ in parts):
            product = call(aten.mm.default, left, weight)
        else:
            product = call(aten.addmm.default, _biases(parts, products, call), left, weight)
        start = 0
        slices = []
        for node in products:
            slices.append(call(aten.slice.Tensor, product, 1, start, start + _columns(node)))
            start += _columns(node)
    for node, part in zip(products, slices, strict=True):
        part.meta = {**node.meta, "val": part.meta["val"]}
        replace_node(node, part)
        _settle_views(part)


def _cat(parts: list[Node], dim: int, call: Any) -> Node:
    made: Node = call(aten.cat.default, parts, dim)
    return made


def _biases(parts: Sequence[tuple[Node | None, Node, Node]], products: Sequence[Node], call: Any) -> Node:
    several = []
    for (bias, _, _), node in zip(parts, products, strict=True):
        if bias is None:
            value = _fake(node)
            bias = call(aten.full.default, [_columns(node)], 0.0, dtype=value.dtype, device=value.device)
        several.append(bias)
    return _cat(several, 0, call)


def _settle_views(node: Node) -> None:
    """Give the views of ``node`` the strides that they have now."""
    for user in node.users:
        if makes_view(user.target) and isinstance(user.meta.get("val"), Tensor):
            user.meta["val"] = _called(user, node, _fake(node))
            _settle_views(user)
