"""Writes the body of a nest as ordinary arithmetic: ``Value`` overloads Python's operators."""

from __future__ import annotations

import difflib
import functools
import operator
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import isfinite

import torch

from lamina.base.dtypes import DTYPES, torch_dtype
from lamina.ir.index import Axis, Expr, Loaded, as_expr
from lamina.ir.loops import Check, Compute, Constant, Equation, Index, Load, Nest, Random, Reduce, Scan, Store
from lamina.ir.ops import OPS, result_dtype
from lamina.lower.rules import Decline
from lamina.lower.values import TensorValue, broadcast_index

__all__ = ["NestBuilder", "Scalar", "Value", "added_up", "opmath"]

Scalar = int | float | bool


def opmath(dtype: str) -> str:
    """The dtype in which arithmetic on ``dtype`` is done: float32 for the half types, else itself."""
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def _fits(value: int, dtype: str) -> bool:
    limits = torch.iinfo(torch_dtype(dtype))
    return limits.min <= value <= limits.max


class Value:
    """A named value of a nest under construction."""

    __slots__ = ("builder", "dtype", "name")

    def __init__(self, builder: NestBuilder, name: str, dtype: str) -> None:
        self.builder, self.name, self.dtype = builder, name, dtype

    def op(self, name: str, *others: Value | Scalar) -> Value:
        """Apply a scalar operation to this value and others; Python numbers become constants of its dtype."""
        return self.builder.compute(name, self, *others)

    def to(self, dtype: str) -> Value:
        """The value converted to ``dtype``."""
        return self if dtype == self.dtype else self.builder.compute("cast", self, dtype=dtype)

    def __add__(self, other: Value | Scalar) -> Value:
        return self.op("add", other)

    def __radd__(self, other: Scalar) -> Value:
        return self.builder.constant(other, self.dtype).op("add", self)

    def __sub__(self, other: Value | Scalar) -> Value:
        return self.op("sub", other)

    def __rsub__(self, other: Scalar) -> Value:
        return self.builder.constant(other, self.dtype).op("sub", self)

    def __mul__(self, other: Value | Scalar) -> Value:
        return self.op("mul", other)

    def __rmul__(self, other: Scalar) -> Value:
        return self.op("mul", other)

    def __truediv__(self, other: Value | Scalar) -> Value:
        return self.op("div", other)

    def __rtruediv__(self, other: Scalar) -> Value:
        return self.builder.constant(other, self.dtype).op("div", self)

    def __neg__(self) -> Value:
        return self.op("neg")

    def __lt__(self, other: Value | Scalar) -> Value:
        return self.op("lt", other)

    def __le__(self, other: Value | Scalar) -> Value:
        return self.op("le", other)

    def __gt__(self, other: Value | Scalar) -> Value:
        return self.op("gt", other)

    def __ge__(self, other: Value | Scalar) -> Value:
        return self.op("ge", other)

    def __and__(self, other: Value) -> Value:
        return self.op("and", other)

    def __or__(self, other: Value) -> Value:
        return self.op("or", other)

    def __invert__(self) -> Value:
        return self.op("not")

    def equals(self, other: Value | Scalar) -> Value:
        """Elementwise ``==``."""
        return self.op("eq", other)

    def __eq__(self, other: object) -> Value:  # type: ignore[override]
        return self.op("eq", other)  # type: ignore[arg-type]

    def __ne__(self, other: object) -> Value:  # type: ignore[override]
        return self.op("ne", other)  # type: ignore[arg-type]

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise TypeError('a value has no truth while loops are written: use cond.op("where", a, b)')


@lru_cache(maxsize=4096)
def _axes(shape: tuple[Expr, ...]) -> tuple[tuple[Axis, ...], tuple[Expr, ...]]:
    """The axes of a nest over ``shape``, also as expressions: one object for each shape, which compares fast."""
    axes = tuple(Axis(f"i{k}", n) for k, n in enumerate(shape))
    return axes, tuple(as_expr(a) for a in axes)


class NestBuilder:
    """A nest under construction. ``axes`` are its axes as expressions, in order."""

    def __init__(self, name: str, shape: Sequence[Expr], origin: tuple[str, ...]) -> None:
        self.name, self.origin = name, origin
        self.axis_list, self.axes = _axes(tuple(shape))
        self.body: list[Equation] = []
        self._constants: dict[tuple[str, str], Value] = {}
        self._counter = 0

    def nest(self) -> Nest:
        """The finished nest."""
        return Nest(self.name, self.axis_list, tuple(self.body))

    def _name(self) -> str:
        self._counter += 1
        return f"v{self._counter - 1}"

    def load(
        self,
        source: TensorValue,
        position: Sequence[Expr] | None = None,
        mask: Value | None = None,
        fill: Scalar = 0,
    ) -> Value:
        """Read ``source`` at ``position`` (in its own dims); by default broadcast along the nest's trailing axes."""
        where = broadcast_index(source.shape, self.axes) if position is None else tuple(position)
        out = self._name()
        masked = None if mask is None else mask.name
        self.body.append(Load(out, source.buffer, source.at(where), source.dtype, masked, fill, self.origin))
        return Value(self, out, source.dtype)

    def constant(self, value: Scalar, dtype: str) -> Value:
        """A literal of ``dtype``. Declines a number that an integer type cannot hold: eager raises for most."""
        kind = DTYPES[dtype].kind
        if kind == "float":
            value = float(value)
        elif kind == "bool":
            value = bool(value)
        elif isfinite(value) and _fits(int(value), dtype):
            value = int(value)
        else:
            raise Decline(f"{value} does not fit in {dtype}")
        key = (repr(value), dtype)
        if key not in self._constants:
            out = self._name()
            self.body.append(Constant(out, value, dtype, self.origin))
            self._constants[key] = Value(self, out, dtype)
        return self._constants[key]

    def index(self, expr: Expr, dtype: str = "int64") -> Value:
        """An index expression (axis, size) as a value."""
        out = self._name()
        self.body.append(Index(out, expr, dtype, self.origin))
        return Value(self, out, dtype)

    def compute(self, op: str, first: Value, *others: Value | Scalar, dtype: str | None = None) -> Value:
        """One scalar operation. Operands must agree in dtype, as the op table's type rule says."""
        if op not in OPS:
            close = difflib.get_close_matches(op, OPS, n=3)
            raise ValueError(f"there is no scalar operation {op!r}; use one of {', '.join(close or OPS)}")
        rule = OPS[op].result
        kin = first.dtype
        if rule == "where":
            kin = next(v.dtype for v in others if isinstance(v, Value))
        ins = [first, *(v if isinstance(v, Value) else self.constant(v, kin) for v in others)]
        same = ins[1:] if rule == "where" else ins
        assert dtype is not None or rule != "cast"
        result = result_dtype(OPS[op], same[0].dtype, dtype or "")
        if len({v.dtype for v in same}) != 1:
            raise TypeError(f"{op} on {[v.dtype for v in ins]} in {self.name}")
        out = self._name()
        self.body.append(Compute(out, op, tuple(v.name for v in ins), result, self.origin))
        return Value(self, out, result)

    def where(self, cond: Value, a: Value | Scalar, b: Value | Scalar) -> Value:
        """``a`` where ``cond`` else ``b``; at least one of them is a ``Value``."""
        return self.compute("where", cond, a, b)

    def reduce(self, op: str, value: Value, axes: Sequence[int]) -> Value:
        """Combine over the nest's axes with these positions."""
        return self.reduce_many(op, value, axes)[0]

    def reduce_many(self, op: str, value: Value, axes: Sequence[int]) -> tuple[Value, ...]:
        """A reduction with several results (welford: mean and sum of squared deviations)."""
        names = tuple(self.axis_list[a].name for a in axes)
        outs = tuple(self._name() for _ in range(2 if op == "welford" else 1))
        dtype = "int64" if op in ("argmax", "argmin") else value.dtype
        self.body.append(Reduce(outs, op, value.name, names, dtype, self.origin))
        return tuple(Value(self, out, dtype) for out in outs)

    def scan(self, op: str, value: Value, axis: int, reverse: bool = False) -> Value:
        """Inclusive running combination along one axis."""
        out = self._name()
        name = self.axis_list[axis].name
        self.body.append(Scan(out, op, value.name, name, value.dtype, reverse, self.origin))
        return Value(self, out, value.dtype)

    def random(self, seed: Value, stream: int, index: Expr) -> Value:
        """A Philox uniform float32 in [0, 1) for the element number ``index``."""
        out = self._name()
        self.body.append(Random(out, seed.name, stream, index, "float32", self.origin))
        return Value(self, out, "float32")

    def loaded(self, value: Value, bound: Expr) -> Expr:
        """An int64 value, known to be in ``[0, bound)``, for use in an index."""
        return as_expr(Loaded(value.to("int64").name, bound))

    def check(self, cond: Value, message: str, error: str = "IndexError") -> None:
        """Fail with the exception ``error`` where ``cond`` is false."""
        self.body.append(Check(cond.name, message, error, self.origin))

    def store(
        self,
        target: TensorValue,
        value: Value,
        position: Sequence[Expr] | None = None,
        mode: str = "set",
        mask: Value | None = None,
    ) -> None:
        """Write ``value`` (converted to the target's dtype) at ``position``, by default the nest's axes."""
        where = broadcast_index(target.shape, self.axes) if position is None else tuple(position)
        stored = value.to(target.dtype)
        masked = None if mask is None else mask.name
        self.body.append(Store(target.buffer, target.at(where), stored.name, mode, masked, self.origin))


def added_up(values: Sequence[Value]) -> Value:
    """The sum of some values as one that begins with 0.0, as eager's do: it is not -0.0."""
    total = functools.reduce(operator.add, values)
    return total + 0.0 if DTYPES[total.dtype].is_float else total


Body = Callable[..., Value]
