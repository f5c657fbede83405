"""Calls for elements that are not there, which tracing takes: a place past the end, a view past the memory."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node

from lamina.aot import eager_reasons
from lamina.aot.overlap import inputs_written
from lamina.base.captured import argument, example, fakes, memory
from lamina.base.reasons import Reason
from lamina.base.source import operation_name, source_of
from lamina.base.symbolic.torch_private import depends_on_data, hint, is_guarded, is_sure

__all__ = ["out_of_range"]

_SELECTS = {"select": 1, "select_copy": 1, "select_scatter": 2}
"""Calls that take one element of a dimension, with the number of tensors before the dimension and the place."""

_ITEMS = (operator.getitem, operator.setitem)


def out_of_range(gm: GraphModule) -> Reason | None:
    """Why the captured graph is eager's to run: a call for an element that is not there, or None.

    Eager raises. Fake tensors do not always (in torch 2.11 and 2.12 for no ``select``, in 2.13 for no ``as_strided`` of
    run-time sizes): compiled, the call would be left out if nothing uses its result, and read other memory if not.
    That numbers of a run are in range is guarded, unless the data decide them.
    """
    made: dict[Any, Any] = {}
    written = _written(gm)
    seen = {memory(one) for node in gm.graph.nodes if node.op in ("placeholder", "get_attr") for one in fakes(node)}
    for node in gm.graph.nodes:
        if node.op not in ("call_function", "call_method"):
            continue
        for size, place in _selected(node):
            if not (is_guarded(place < size) and is_guarded(place >= -size)):
                return eager_reasons.OUT_OF_RANGE(place=source_of(node))
            if (depends_on_data(place) or depends_on_data(size)) and not _is_known(place, size):
                return eager_reasons.PLACE_OF_DATA(place=source_of(node))
        if operation_name(node.target) == "as_strided":
            if _reaches_too_far(node, made):
                return eager_reasons.PAST_MEMORY(place=source_of(node))
            if any(_looks_beside(node, one) for one in written):
                return eager_reasons.BESIDE_WRITTEN(place=source_of(node))
        for one in fakes(node):
            if one.layout is torch.strided and memory(one) not in seen:
                made[memory(one)] = max(_reach(one), made.get(memory(one), 0), key=hint)
        seen.update(map(memory, fakes(node)))
    return None


def _is_known(place: Any, size: Any) -> bool:
    return is_sure(place < size) and is_sure(place >= -size)


def _selected(node: Node) -> Iterator[tuple[Any, Any]]:
    """The size of each dimension of which a call takes one element by its place, with the place."""
    before = _SELECTS.get(operation_name(node.target))
    if before is not None:
        given = dict(zip(("dim", "index"), node.args[before:], strict=False)) | dict(node.kwargs)
        dim, place = argument(given.get("dim")), argument(given.get("index"))
        shape = _shape(node.args[0] if node.args else given.get("input"))
        if _is_integer(place) and isinstance(dim, int) and -len(shape) <= dim < len(shape):
            yield shape[dim], place
    elif node.target in _ITEMS:
        index = argument(node.args[1])
        yield from _indexed(_shape(node.args[0]), [argument(i) for i in index] if isinstance(index, tuple) else [index])


def _indexed(shape: tuple[Any, ...], index: list[Any]) -> Iterator[tuple[Any, Any]]:
    """The sizes and places of the integers in an index of brackets."""
    taken = sum(map(_dimensions, index))
    dim = 0
    for one in index:
        if one is Ellipsis:
            dim += len(shape) - taken
        elif dim < len(shape) and _is_integer(one):
            yield shape[dim], one
        dim += _dimensions(one)


def _dimensions(one: Any) -> int:
    """The number of dimensions that an item of an index stands for, without those of an ellipsis."""
    if one is None or one is Ellipsis or isinstance(one, (bool, torch.SymBool)):
        return 0
    if isinstance(one, torch.Tensor) and one.dtype in (torch.bool, torch.uint8):
        return one.dim()
    return 1


def _is_integer(value: Any) -> bool:
    return isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool)


def _shape(node: Any) -> tuple[Any, ...]:
    value = argument(node)
    return tuple(value.shape) if isinstance(value, torch.Tensor) else ()


def _reaches_too_far(node: Node, made: Mapping[Any, Any]) -> bool:
    """Whether a view has an element behind the end of memory that the graph ``made``: what varies is then guarded.

    The fake memory itself has grown with the view. Of an input's memory fake tensors do not know all; eager replays
    such a view on the input itself, unless that is written to.
    """
    view = example(node)
    end = made.get(memory(view))
    if end is None or any(is_sure(size == 0) for size in view.shape):
        return False
    return not is_guarded(_reach(view) <= end)


def _written(gm: GraphModule) -> list[torch.Tensor]:
    """The inputs that the graph writes to: what it computes of one later, it computes of a new tensor like it."""
    inputs = gm.graph.find_nodes(op="placeholder")
    values = [example(inputs[i]) for i in inputs_written(gm)]
    return [one for one in values if isinstance(one, torch.Tensor) and one.layout is torch.strided]


def _looks_beside(node: Node, given: torch.Tensor) -> bool:
    """Whether a view of the memory of an input has elements before the input's first or behind its last.

    That it has none is guarded.
    """
    view = example(node)
    if memory(view) != memory(given) or any(is_sure(size == 0) for size in view.shape):
        return False
    before = is_guarded(view.storage_offset() >= given.storage_offset())
    return not (before and is_guarded(_reach(view) <= _reach(given)))


def _reach(tensor: torch.Tensor) -> Any:
    """The number of bytes from the start of a tensor's memory to the end of its last element."""
    last: Any = tensor.storage_offset()
    for size, step in zip(tensor.shape, tensor.stride(), strict=True):
        last = last + (size - 1) * step
    return (last + 1) * tensor.element_size()
