"""Operations of the user's own that write to their arguments, called in place in a functional graph."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Node

from lamina.base.torch_private import OpOverload, schema_of
from lamina.ir.index import as_expr
from lamina.ir.loops import BufferView
from lamina.lower.context import Lowering
from lamina.lower.custom_memory import as_in_eager, writable
from lamina.lower.rules import CannotLower
from lamina.lower.sizes import expr_of
from lamina.lower.torch_private import AliasViewInfo, AsStridedViewInfo, NotView, SliceViewInfo, written_views
from lamina.lower.values import TensorValue

__all__ = ["FUNCTIONALIZED", "call_mutating"]

FUNCTIONALIZED = "auto_functionalized_v2"
"""The higher-order operation that a call of an operation with ``mutates_args`` becomes."""

_REASON = "an operation of the user's own, which writes to its arguments"


def call_mutating(low: Lowering, env: Mapping[Node, Any], node: Node, kwargs: Mapping[str, Any]) -> list[Any]:
    """Append the call ``op(...)`` inside ``auto_functionalized_v2(op, ...)``.

    Gives the operation's results, and then the new value of each tensor that it was given to write to.
    """
    op = node.args[0]
    bases: Any = node.kwargs.get("_all_bases", [])
    if not isinstance(op, OpOverload) or any(_is_made(a, kwargs) for a in schema_of(op).arguments):
        raise CannotLower(f"{node.name} wraps {op}, which gives out the memory it writes to")
    described = {k: v for k, v in kwargs.items() if k not in ("_all_bases", "_op_schema")}
    views = {k: _symbols(v) for k, v in node.kwargs.items() if k not in ("_all_bases", "_op_schema")}
    parts = written_views(op, views)
    plain = [n for k, v in node.kwargs.items() if k != "_all_bases" for n in _nodes(v)]
    new: list[Any] = []
    for place, base in enumerate(bases):
        # One node may be several bases: tensors that were equal are one by now.
        rest = plain + [n for k, n in enumerate(bases) if isinstance(n, Node) and k != place]
        new.append(writable(low, env, node, base, rest) if isinstance(base, Node) else None)
    windows = [None if t is None else as_in_eager(low, node, b, t) for b, t in zip(bases, new, strict=True)]
    fakes = [base.meta["val"] if isinstance(base, Node) else None for base in bases]
    args: list[Any] = []
    named: dict[str, Any] = {}
    for parameter in schema_of(op).arguments:
        if parameter.name in parts:
            value = _part(parts[parameter.name], windows, fakes)
        elif parameter.name in described:
            value = _operand(low, node, described[parameter.name], node.kwargs[parameter.name])
        else:
            continue
        if parameter.kwarg_only or named:
            named[parameter.name] = value
        else:
            args.append(value)
    results = _results(low, node, op)
    outs = [r if isinstance(r, TensorValue) else None for r in results] if schema_of(op).returns else []
    mutated = tuple(dict.fromkeys(t.buffer for t in new if t is not None))
    low.library(node, str(op), args, named, outs, _REASON, len(schema_of(op).returns) > 1, mutated)
    return [*results, *new]


def _is_made(parameter: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether an operation writes to an argument that no base is given for: memory made for it."""
    written = parameter.alias_info is not None and parameter.alias_info.is_write
    return written and not any(f"_{parameter.name}_{what}" in kwargs for what in ("base_index", "length"))


def _nodes(value: Any) -> list[Node]:
    if isinstance(value, Node):
        return [value]
    return [n for v in value for n in _nodes(v)] if isinstance(value, list | tuple) else []


def _symbols(value: Any) -> Any:
    """An argument of the graph with numbers, symbolic or not, for nodes."""
    if isinstance(value, list | tuple):
        return [_symbols(v) for v in value]
    return value.meta.get("val") if isinstance(value, Node) else value


def _operand(low: Lowering, node: Node, value: Any, given: Any) -> Any:
    """An argument that is only read, laid out as in eager."""
    if isinstance(value, TensorValue):
        return as_in_eager(low, node, given, value)
    if isinstance(value, list | tuple):
        return tuple(_operand(low, node, v, g) for v, g in zip(value, given, strict=True))
    return value


def _part(part: Any, windows: list[BufferView | None], fakes: list[Any]) -> Any:
    """The window onto a base that an argument is."""
    if part is None:
        return None
    if isinstance(part, list):
        return tuple(_part(p, windows, fakes) for p in part)
    base, fake = windows[part.base_index], fakes[part.base_index]
    if base is None or isinstance(part, NotView | AliasViewInfo):
        return base
    if isinstance(part, AsStridedViewInfo):
        offset = base.offset + _size(part.storage_offset)
        return BufferView(base.buffer, tuple(map(_size, part.size)), tuple(map(_size, part.stride)), offset)
    assert isinstance(part, SliceViewInfo)
    with fake.fake_mode:
        found = torch.ops.aten.slice.Tensor(fake, part.dim, part.start, part.end)
    offset = base.offset + _size(found.storage_offset()) - _size(fake.storage_offset())
    return BufferView(base.buffer, tuple(map(_size, found.shape)), tuple(map(_size, found.stride())), offset)


def _size(value: Any) -> Any:
    return expr_of(value) if isinstance(value, torch.SymInt) else as_expr(value)


def _results(low: Lowering, node: Node, op: Any) -> list[Any]:
    """Buffers for what the operation itself returns; one entry, None, when that is nothing."""
    count = max(1, len(schema_of(op).returns))
    results: list[Any] = []
    for place, val in enumerate(node.meta["val"][:count]):
        if isinstance(val, torch.Tensor):
            read = any(u.target is not operator.getitem or u.args[1] == place for u in node.users)
            results.append(low.like(node.name, val) if read else None)
        elif val is None:
            results.append(None)
        else:
            raise CannotLower(f"{op} gives something that is not a tensor")
    return results
