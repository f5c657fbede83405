"""Captured calls that write to memory which they share otherwise: eager refuses most, functional graphs lose them."""

from __future__ import annotations

import enum
import operator
from collections.abc import Container
from typing import Any

import torch
from torch.fx import Node

from lamina.base.aliasing import operands, sets_a_part, tensors_written, writes_elementwise, writes_first
from lamina.base.batch_norms import statistics_written
from lamina.base.captured import example, memory
from lamina.base.overlap import may_overlap, meet, overlaps
from lamina.base.source import operation_name
from lamina.base.symbolic.torch_private import is_fake

__all__ = ["Conflict", "has_shared_elements", "write_conflict"]

_RESHAPES = frozenset(
    str.split("as_strided_ resize_ resize_as_ set_ set_data squeeze_ swapaxes_ swapdims_ t_ transpose_ unsqueeze_")
)
"""Calls after which a tensor's index means another place."""


class Conflict(enum.Enum):
    """How the memory that a call writes to is shared."""

    SHARED_ELEMENTS = "elements of the target share memory"
    WRITTEN_TWICE = "two targets share memory"
    OTHER_ORDER = "it is read in another order"
    READ_AFTER_WRITE = "it is read for another target"


def write_conflict(node: Node, shared: Container[Any] = ()) -> Conflict | None:
    """What is wrong with the memory that a captured call writes to, or None.

    A tensor whose elements share memory eager refuses to write to, or writes to what the elements share, depending on
    the operation; a view of a memory of those ``shared`` counts as well. Where a call reads what it writes to in
    another order of elements, or all of it for each element, eager refuses it, or the result depends on the order.
    Where it writes to a tensor twice, it does so one after the other. A batch norm writes its running statistics before
    it reads others of its operands, of which a functional graph reads what they were.
    """
    written = tensors_written(node) or statistics_written(node)
    if not written:
        return None
    for one in written:
        if has_shared_elements(one) or (shared and _storage(one) in shared) or _is_of_windows(one):
            return Conflict.SHARED_ELEMENTS
    for number, one in enumerate(written):
        if any(one is other or meet(example(one), example(other), alike=True) for other in written[:number]):
            return Conflict.WRITTEN_TWICE
    read = [other for other in node.all_input_nodes if other not in written and not _is_the_part_written(node, other)]
    alike = not writes_elementwise(node)
    if alike and any(operands(node).count(one) > written.count(one) for one in written):
        return Conflict.OTHER_ORDER
    places = _assigned(node) or [example(one) for one in written]
    if any(meet(place, example(other), alike) for place in places for other in read):
        return Conflict.OTHER_ORDER
    if len(written) > 1 and _read_at_other_places(node, written):
        return Conflict.READ_AFTER_WRITE
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


def _read_at_other_places(node: Node, written: list[Node]) -> bool:
    """Whether a list of operands has a written tensor at another place than the written list."""
    lists = [a for a in (*node.args[1:], *node.kwargs.values()) if isinstance(a, (list, tuple))]
    places = {one: place for place, one in enumerate(written)}
    return any(places.get(other, place) != place for given in lists for place, other in enumerate(given))


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
    if not sets_a_part(index):
        return []
    part = example(node.args[0])[index]
    return [part] if is_fake(part) else []


def _is_known(value: Any) -> bool:
    """Whether the places of all elements are known."""
    if not is_fake(value) or value.layout is not torch.strided:
        return False
    return all(isinstance(n, int) for n in (*value.shape, *value.stride(), value.storage_offset()))


def has_shared_elements(node: Node) -> bool:
    """Whether elements of the tensor that a node gives share memory, as far as eager looks."""
    value = example(node)
    return is_fake(value) and overlaps(value)


def _storage(node: Node) -> Any:
    """What tells the memory of a captured tensor from that of others."""
    return memory(example(node))
