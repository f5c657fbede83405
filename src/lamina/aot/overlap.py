"""Writes to tensors whose elements share memory: eager refuses most, and functional graphs know nothing of them."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from lamina.aot import eager_reasons
from lamina.aot.overlapping_views import may_overlap
from lamina.base.aliasing import writes_first
from lamina.base.captured import example, memory
from lamina.base.reasons import Code, Reason
from lamina.base.source import operation_name, source_of
from lamina.base.symbolic.torch_private import is_fake, is_zero

__all__ = ["inputs_written", "overlapping_write", "overlaps", "tensors_written"]

_RESHAPES = frozenset(
    str.split("as_strided_ resize_ resize_as_ set_ set_data squeeze_ swapaxes_ swapdims_ t_ transpose_ unsqueeze_")
)
"""Calls after which a tensor's index means another place."""
_LOOKS = 1000
"""Steps after which the search for a common element ends."""


def overlaps(tensor: torch.Tensor) -> bool:
    """Whether elements share memory, as far as eager looks: along a dimension of stride 0.

    True as well where a symbolic size does not say whether there are two elements.
    """
    if tensor.layout is not torch.strided or any(_is_number(n) and n == 0 for n in tensor.shape):
        return False
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return any(is_zero(step) and not (_is_number(n) and n == 1) for n, step in steps)


def _is_number(size: int | torch.SymInt) -> bool:
    return isinstance(size, int)


def overlapping_write(gm: GraphModule) -> Reason | None:
    """Why the captured graph is eager's to run: its first write to memory that the same call shares, or None.

    A tensor whose elements share memory eager refuses to write to, or writes to what the elements share, depending on
    the operation; a view of an input of that kind counts as well. Where a call reads what it writes to in another order
    of elements, eager refuses it, or the result depends on the order. Where it writes to a tensor twice, it does so one
    after the other.
    """
    for part in gm.modules():
        if not isinstance(part, GraphModule):
            continue
        shared = {_storage(n) for n in part.graph.find_nodes(op="placeholder") if _overlapping(n)}
        for node in part.graph.nodes:
            why = _why_refused(node, shared)
            if why:
                return why(place=source_of(node))
    return None


def inputs_written(gm: GraphModule) -> tuple[int, ...]:
    """Places of the inputs in whose memory a captured call writes, as far as its name and arguments tell."""
    written = {_storage(one) for node in gm.graph.nodes for one in tensors_written(node)} - {None}
    return tuple(i for i, node in enumerate(gm.graph.find_nodes(op="placeholder")) if _storage(node) in written)


def _why_refused(node: Node, shared: set[Any]) -> Code | None:
    written = tensors_written(node)
    if not written:
        return None
    for one in written:
        if _overlapping(one) or (shared and _storage(one) in shared) or _is_of_windows(one):
            return eager_reasons.SHARED_ELEMENTS
    for number, one in enumerate(written):
        if any(one is other or _meet(example(one), example(other), alike=True) for other in written[:number]):
            return eager_reasons.WRITTEN_TWICE
    read = [other for other in node.all_input_nodes if other not in written and not _is_the_part_written(node, other)]
    places = _assigned(node) or [example(one) for one in written]
    if any(_meet(place, example(other)) for place in places for other in read):
        return eager_reasons.OVERLAPPING_WRITE
    if len(written) > 1 and _read_at_other_places(node, written):
        return eager_reasons.READ_AFTER_WRITE
    return None


def _is_of_windows(node: Node) -> bool:
    """Whether a tensor is a view whose elements share memory, or a part of such a view."""
    place = _storage(node)
    if place is None:
        return False
    while True:
        if may_overlap(example(node)):
            return True
        viewed = node.args[0] if node.op in ("call_function", "call_method") and node.args else None
        if not isinstance(viewed, Node) or _storage(viewed) != place:
            return False
        node = viewed


def tensors_written(node: Node) -> list[Node]:
    """The tensors that a captured call writes to, one as often as it is written to."""
    if node.op not in ("call_function", "call_method"):
        return []
    found: list[Any] = []
    if node.args and writes_first(node):
        found += node.args[0] if isinstance(node.args[0], (list, tuple)) else [node.args[0]]
    out = node.kwargs.get("out")
    found += out if isinstance(out, (list, tuple)) else [out]
    return [one for one in found if isinstance(one, Node)]


def _read_at_other_places(node: Node, written: list[Node]) -> bool:
    """Whether a list of operands has a written tensor at another place than the written list."""
    lists = [a for a in (*node.args[1:], *node.kwargs.values()) if isinstance(a, (list, tuple))]
    places = {one: place for place, one in enumerate(written)}
    return any(places.get(other, place) != place for operands in lists for place, other in enumerate(operands))


def _is_the_part_written(node: Node, read: Node) -> bool:
    """Whether ``node`` assigns to a part of a tensor what is that very part: the end of ``x[part] += y``."""
    if node.target is not operator.setitem or any(operation_name(n.target) in _RESHAPES for n in node.graph.nodes):
        return False
    part = _object(read)
    if part.target is not operator.getitem:
        return False
    base, index = part.args
    return isinstance(base, Node) and _object(base) is _object(node.args[0]) and index == node.args[1]


def _object(node: Any) -> Any:
    """The call that made the tensor which ``node`` is: calls that write to their first operand return it."""
    while isinstance(node, Node) and node.op != "placeholder" and node.args and writes_first(node):
        node = node.args[0]
    return node


def _assigned(node: Node) -> list[Any]:
    """The part of a tensor that ``node`` assigns to, as a fake tensor, where its place is known."""
    if node.target is not operator.setitem or not _is_known(example(node.args[0])):
        return []
    index = node.args[1]
    if not all(_is_place(one) for one in (index if isinstance(index, tuple) else (index,))):
        return []
    part = example(node.args[0])[index]
    return [part] if is_fake(part) else []


def _is_place(index: Any) -> bool:
    """Whether an index is written in the program: a number, a slice of numbers, ``None`` or an ellipsis."""
    parts = (index.start, index.stop, index.step) if isinstance(index, slice) else (index,)
    return all(part is None or part is Ellipsis or type(part) is int for part in parts)


def _is_known(value: Any) -> bool:
    """Whether the places of all elements are known."""
    if not is_fake(value) or value.layout is not torch.strided:
        return False
    return all(_is_number(n) for n in (*value.shape, *value.stride(), value.storage_offset()))


def _meet(a: Any, b: Any, alike: bool = False) -> bool:
    """Whether two tensors share memory and are not the same elements in the same order, as far as can be told.

    With ``alike`` those count, too.
    """
    place = memory(a)
    if place is None or place != memory(b):
        return False
    if not all(_is_number(n) for x in (a, b) for n in (*x.shape, *x.stride(), x.storage_offset())):
        return True
    if a.numel() == 0 or b.numel() == 0:
        return False
    if not alike and (a.storage_offset(), a.shape, a.stride(), a.dtype) == (
        b.storage_offset(),
        b.shape,
        b.stride(),
        b.dtype,
    ):
        return False
    (start, stop), (begin, end) = _bytes(a), _bytes(b)
    return bool(start < end and begin < stop) and not _interleave(a, b)


def _interleave(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one type have no element in common, as columns of one matrix; False if it is not seen."""
    if a.dtype != b.dtype:
        return False
    reach: dict[int, list[int]] = {}
    for tensor, sign in ((a, 1), (b, -1)):
        for n, step in zip(tensor.shape, tensor.stride(), strict=True):
            low, high = reach.setdefault(step, [0, 0])
            reach[step] = [low - (n - 1), high] if sign < 0 else [low, high + n - 1]
    steps = sorted(((step, low, high) for step, (low, high) in reach.items() if step > 0), reverse=True)
    looked = [0]

    def reached(distance: int, k: int) -> bool:
        looked[0] += 1
        if k == len(steps) or looked[0] > _LOOKS:
            return distance == 0 or looked[0] > _LOOKS
        step, low, high = steps[k]
        least = sum(s * lo for s, lo, _ in steps[k + 1 :])
        most = sum(s * hi for s, _, hi in steps[k + 1 :])
        first, last = max(low, -((most - distance) // step)), min(high, (distance - least) // step)
        return any(reached(distance - times * step, k + 1) for times in range(first, last + 1))

    return not reached(int(b.storage_offset()) - int(a.storage_offset()), 0)


def _bytes(tensor: torch.Tensor) -> tuple[int, int]:
    """Where in its storage a tensor's first element begins and its last one ends."""
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    start = int(tensor.storage_offset())
    return start * tensor.element_size(), (start + last + 1) * tensor.element_size()


def _overlapping(node: Node) -> bool:
    value = example(node)
    return is_fake(value) and overlaps(value)


def _storage(node: Node) -> Any:
    """What tells the memory of a captured tensor from that of others."""
    return memory(example(node))
