"""The one table of scalar, reduction and scan operations of the loop IR.

``reference`` is the torch function that says what the operation means (the interpreter calls it), ``result``
the type rule: "same" (operands and result share one dtype), "bool" (operands share one dtype, the result is
bool), "where" (bool, then two of the result's dtype), "cast" (any to the equation's dtype), "bits" (a number to the
signed integer of its size), "float" (a signed integer to the float of its size). ``cost`` is a rough number of machine
instructions for one element, used to judge recomputation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from lamina.base.dtypes import DTYPES, torch_dtype

__all__ = ["JOINS", "OPS", "REDUCTIONS", "SCANS", "Op", "ReductionOp", "neutral", "result_dtype"]


@dataclass(frozen=True, slots=True)
class Op:
    """A scalar operation, applied at each point of a nest. ``libdevice`` is its name in CUDA's library of functions."""

    name: str
    arity: int
    result: str
    reference: Callable[..., Any]
    cost: int = 1
    libdevice: str = ""


@dataclass(frozen=True, slots=True)
class ReductionOp:
    """A reduction: number of operands and results, and whether the result keeps the operand's dtype.

    ``reference`` gives the results, in the dtype of the equation, for the last dimension of a tensor. ``join`` is the
    scalar operation that makes of two parts' results the whole's; "" where it takes more than that.
    """

    name: str
    operands: int
    results: int
    result: str
    reference: Callable[[torch.Tensor, torch.dtype], tuple[torch.Tensor, ...]]
    join: str = ""


_INTEGERS = {1: "int8", 2: "int16", 4: "int32", 8: "int64"}
_FLOATS = {"int32": "float32", "int64": "float64"}


def result_dtype(op: Op, operand: str, asked: str) -> str:
    """The dtype of ``op`` on operands of one dtype (those after a condition), where the equation says ``asked``."""
    if op.result == "bits":
        return _INTEGERS[DTYPES[operand].size]
    if op.result == "float":
        return _FLOATS.get(operand, "a float of 32 or 64 bits")
    return {"bool": "bool", "cast": asked}.get(op.result, operand)


def _bits(a: torch.Tensor) -> torch.Tensor:
    found: torch.dtype = getattr(torch, _INTEGERS[a.element_size()])
    return a.view(found)


def _from_bits(a: torch.Tensor) -> torch.Tensor:
    return a.view(torch.float32 if a.element_size() == 4 else torch.float64)


def _where(cond: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.where(cond, a, b)


def _floor_div(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.div(a, b, rounding_mode="floor")


def _trunc_div(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.div(a, b, rounding_mode="trunc")


def _select(name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(torch, name)
    return found


def _rows() -> list[Op]:
    rows = [
        Op("identity", 1, "same", lambda a: a, 0),
        Op("cast", 1, "cast", lambda a: a),
        Op("bits", 1, "bits", _bits),
        Op("from_bits", 1, "float", _from_bits),
        Op("where", 3, "where", _where),
        Op("floor_div", 2, "same", _floor_div, 6),
        Op("trunc_div", 2, "same", _trunc_div, 6),
        Op("div", 2, "same", torch.true_divide, 4),
        Op("mod", 2, "same", torch.remainder, 8),
        Op("fmod", 2, "same", torch.fmod, 8, "fmod"),
        Op("minimum", 2, "same", torch.minimum, 3),
        Op("maximum", 2, "same", torch.maximum, 3),
        Op("shl", 2, "same", torch.bitwise_left_shift),
        Op("shr", 2, "same", torch.bitwise_right_shift),
        Op("rsqrt", 1, "same", torch.rsqrt, 6, "rsqrt"),
        Op("sqrt", 1, "same", torch.sqrt, 5),
        Op("relu", 1, "same", torch.relu),
        Op("sigmoid", 1, "same", torch.sigmoid, 14),
        Op("not", 1, "same", torch.logical_not),
        Op("and", 2, "same", torch.logical_and),
        Op("or", 2, "same", torch.logical_or),
        Op("xor", 2, "same", torch.logical_xor),
        Op("isnan", 1, "bool", torch.isnan),
        Op("isinf", 1, "bool", torch.isinf),
        Op("signbit", 1, "bool", torch.signbit),
    ]
    rows += [Op(n, 1, "same", _select(n)) for n in ("neg", "abs", "sign", "floor", "ceil")]
    rows += [Op("trunc", 1, "same", torch.trunc, 1, "trunc"), Op("round", 1, "same", torch.round, 1, "rint")]
    rows += [Op(n, 1, "same", _select(n)) for n in ("bitwise_not",)]
    rows += [Op(n, 2, "same", _select(n)) for n in ("add", "sub", "mul", "bitwise_and", "bitwise_or", "bitwise_xor")]
    rows += [Op(n, 2, "same", _select(n), 3) for n in ("copysign", "fmin", "fmax")]
    rows += [Op("nextafter", 2, "same", torch.nextafter, 3, "nextafter"), Op("digamma", 1, "same", torch.digamma, 30)]
    rows += [Op(n, 2, "bool", _select(n)) for n in ("eq", "ne", "lt", "le", "gt", "ge")]
    rows += [
        Op(n, 1, "same", _select(n), 12, n)
        for n in (*("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tanh", "erf"),)
    ]
    rows += [
        Op(n, 1, "same", _select(n), 30, n)
        for n in (
            *("tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "erfc", "erfinv"),
            "lgamma",
        )
    ]
    rows += [Op(n, 2, "same", _select(n), 30, n) for n in ("pow", "atan2", "hypot")]
    return rows


OPS: dict[str, Op] = {op.name: op for op in _rows()}
"""Scalar operations by name."""


def _extreme(name: str) -> Callable[[torch.Tensor, torch.dtype], tuple[torch.Tensor, ...]]:
    """Of no elements zeros, which nothing reads."""
    return lambda rows, dtype: (getattr(rows, name)(-1) if rows.shape[-1] else rows.new_zeros(rows.shape[:-1]),)


def _moments(rows: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    first = rows.mean(-1, keepdim=True)
    near = (rows - first).square().mean(-1, keepdim=True) < first.square()  # not where a sum is not a number
    mean = torch.where(near, first + (rows - first).mean(-1, keepdim=True), first)
    return mean.squeeze(-1), (rows - mean).square().sum(-1)


REDUCTIONS: dict[str, ReductionOp] = {
    r.name: r
    for r in (
        ReductionOp("sum", 1, 1, "same", lambda rows, dtype: (rows.sum(-1, dtype=dtype),), "add"),
        ReductionOp("prod", 1, 1, "same", lambda rows, dtype: (rows.prod(-1, dtype=dtype),), "mul"),
        ReductionOp("max", 1, 1, "same", _extreme("amax"), "maximum"),
        ReductionOp("min", 1, 1, "same", _extreme("amin"), "minimum"),
        ReductionOp("any", 1, 1, "same", lambda rows, dtype: (rows.any(-1),), "or"),
        ReductionOp("all", 1, 1, "same", lambda rows, dtype: (rows.all(-1),), "and"),
        ReductionOp("argmax", 1, 1, "int64", lambda rows, dtype: (rows.argmax(-1),)),
        ReductionOp("argmin", 1, 1, "int64", lambda rows, dtype: (rows.argmin(-1),)),
        ReductionOp("welford", 1, 2, "same", _moments),
    )
}
"""Reductions by name. max and min propagate NaN; argmax and argmin give the first position, counted over the
reduced axes in order, and NaN wins; welford gives the mean and the sum of squared deviations from it."""

JOINS: dict[str, str] = {r.name: r.join for r in REDUCTIONS.values() if r.join}
"""The scalar operation that joins results of parts, for each reduction that has one."""

SCANS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "sum": lambda value, dim: torch.cumsum(value, dim, dtype=value.dtype),
    "prod": lambda value, dim: torch.cumprod(value, dim, dtype=value.dtype),
    "max": lambda value, dim: torch.cummax(value, dim).values,
    "min": lambda value, dim: torch.cummin(value, dim).values,
    "logaddexp": torch.logcumsumexp,
    "sort": lambda value, dim: value.sort(dim).values,
}
"""Inclusive scans by name, with their torch meaning along one dimension; "sort" puts integers in order, and is no
combination of what comes before: all points of a row are held at once.
"""


def neutral(op: str, dtype: str) -> int | float | bool:
    """What changes nothing in a reduction or scan of values of ``dtype``."""
    if op in ("any", "all"):
        return op == "all"
    if op in ("sum", "prod"):
        return 1 if op == "prod" else 0
    info = torch.finfo(torch_dtype(dtype)) if DTYPES[dtype].is_float else torch.iinfo(torch_dtype(dtype))
    low, high = (-float("inf"), float("inf")) if DTYPES[dtype].is_float else (int(info.min), int(info.max))
    return low if op in ("max", "argmax", "logaddexp") else high
