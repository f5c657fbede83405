"""The user's lowerings that are written on loop nests, run and checked like a rule of the table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node

from lamina.base.dtypes import DTYPES, dtype_of
from lamina.base.lowering import CustomLowering, arguments_of, find_lowering
from lamina.errors import InvalidIR, WrongLowering
from lamina.ir.access import writes
from lamina.ir.index import Expr, prod
from lamina.ir.loops import Nest, Step, Store
from lamina.ir.nest_verify import verify_nest
from lamina.lower.builder import Value, opmath
from lamina.lower.context import Lowering
from lamina.lower.rules import CannotLower, Decline
from lamina.lower.sizes import UnknownSize, expr_of
from lamina.lower.values import TensorValue

__all__ = ["custom_rule"]

Rule = Callable[..., Any]


def custom_rule(target: Any) -> Rule | None:
    """The rule that the user's lowering of ``target`` is; None where there is none, or it is in torch's functions."""
    found = find_lowering(target, "scalar", "nest")
    if found is None:
        return None
    body = _scalar if found.form == "scalar" else _nest

    def rule(low: Lowering, node: Node, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = arguments_of(target, args, kwargs)
        try:
            results = body(found, low, node, args, kwargs)
        except (Decline, CannotLower, UnknownSize, WrongLowering):
            raise
        except Exception as error:
            raise _wrong(node, found, f"raised {type(error).__name__}: {error}") from error
        _check(node, found, results)
        return results if isinstance(node.meta["val"], list | tuple) else results[0]

    return rule


def _nest(found: CustomLowering, low: Lowering, node: Node, args: Any, kwargs: Any) -> list[Any]:
    before, known = len(low.steps), set(low.buffers)
    results = found.function(low, node, *args, **kwargs)
    results = list(results) if isinstance(results, list | tuple) else [results]
    made = low.steps[before:]
    for nest in (step for step in made if isinstance(step, Nest)):
        try:
            verify_nest(nest, low.buffers)
        except InvalidIR as error:
            raise _wrong(node, found, f"left nest {nest.name} ill formed: {error.what}") from error
    written = {name for step in made for name in writes(step)}
    for result in results:
        unwritten = isinstance(result, TensorValue) and result.buffer not in written | known
        if unwritten and 0 not in low.buffers[result.buffer].shape:  # what has no elements needs no nest
            raise _wrong(node, found, f"never writes its result {result.buffer}: store to it, and low.finish(b)")
        if isinstance(result, TensorValue) and result.buffer not in known:
            _check_covered(node, found, low, made, result.buffer)
    return results


def _check_covered(node: Node, found: CustomLowering, low: Lowering, made: Sequence[Step], buffer: str) -> None:
    """Refuse stores that, were each to another element, could not reach all elements of a result."""
    size = prod(low.buffers[buffer].shape)
    most = 0
    for step in made:
        if not isinstance(step, Nest):
            if buffer in writes(step):
                return
            continue
        for eqn in step.body:
            if isinstance(eqn, Store) and eqn.buffer == buffer:
                along = {name for place in eqn.index for name in place.axes()}
                reached = prod(a.extent for a in step.axes if a.name in along)
                if not reached.is_int:
                    return
                most += reached.const
    if size.is_int and most < size.const:
        what = f"writes {most} of the {size.const} elements of its result {buffer}"
        raise _wrong(node, found, f"{what}: its axes must reach them all")


def _scalar(found: CustomLowering, low: Lowering, node: Node, args: Any, kwargs: Any) -> list[Any]:
    """One nest over the results' common shape, one load of each tensor, one store of each result."""
    val = node.meta["val"]
    several = isinstance(val, list | tuple)
    outs = [low.result(node, k) for k in range(len(val))] if several else [low.result(node)]
    shape = outs[0].shape
    given = [v for v in (*args, *kwargs.values()) if isinstance(v, TensorValue)]
    if any(out.shape != shape for out in outs) or any(not _spreads(v, shape) for v in given):
        raise _wrong(node, found, "takes or gives tensors that are not of one shape, broadcast")
    low.plain(*(v.dtype for v in (*outs, *given)))
    b = low.nest(node, shape)
    kin = opmath(outs[0].dtype)

    def element(value: Any) -> Any:
        return low.operand(b, value, kin) if isinstance(value, TensorValue | Expr) else value

    results = found.function(*map(element, args), **{k: element(v) for k, v in kwargs.items()})
    values = list(results) if isinstance(results, list | tuple) else [results]
    if len(values) != len(outs) or not all(isinstance(v, Value) for v in values):
        kinds = ", ".join(type(v).__name__ for v in values)
        raise _wrong(node, found, f"returns {kinds}, where {len(outs)} values are wanted")
    for out, value in zip(outs, values, strict=True):
        if _kind(value.dtype) != _kind(out.dtype):
            raise _wrong(node, found, f"returns {value.dtype} where {out.dtype} is wanted")
        b.store(out, value)
    low.finish(b)
    return list(outs)


def _kind(dtype: str) -> str:
    """Truth values, whole numbers, floating-point or complex ones."""
    return DTYPES[dtype].kind.removeprefix("u")


def _spreads(value: TensorValue, shape: tuple[Expr, ...]) -> bool:
    """Whether a tensor is broadcast to ``shape``."""
    if value.rank > len(shape):
        return False
    pairs = zip(value.shape, shape[len(shape) - value.rank :], strict=True)
    return all(a in (1, b) for a, b in pairs)


def _check(node: Node, found: CustomLowering, results: list[Any]) -> None:
    val = node.meta["val"]
    wanted = list(val) if isinstance(val, list | tuple) else [val]
    if len(results) != len(wanted):
        raise _wrong(node, found, f"returns {len(results)} results, the operation {len(wanted)}")
    for made, fake in zip(results, wanted, strict=True):
        if not isinstance(made, TensorValue) or not isinstance(fake, torch.Tensor):
            raise _wrong(node, found, f"returns a {type(made).__name__} where a TensorValue is wanted")
        shape, dtype = tuple(expr_of(n) for n in fake.shape), dtype_of(fake.dtype)
        if made.shape != shape or made.dtype != dtype:
            raise _wrong(node, found, f"returns {_text(made.dtype, made.shape)}, the operation {_text(dtype, shape)}")


def _text(dtype: str, shape: tuple[Expr, ...]) -> str:
    return f"{dtype}[{', '.join(map(str, shape))}]"


def _wrong(node: Node, found: CustomLowering, what: str) -> WrongLowering:
    source = str(node.meta.get("source", ""))
    return WrongLowering(
        f"the lowering of {node.target} {what}",
        where=f"{found.place}, used at {source}" if source else found.place,
        remedy="make it give what the operation's register_fake says",
    )
