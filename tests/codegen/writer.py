"""A few lines of Python that make a nest by hand."""

from __future__ import annotations

from collections.abc import Sequence

from lamina.ir.index import Axis, Expr, Loaded, as_expr
from lamina.ir.loops import (
    Check,
    Compute,
    Constant,
    Equation,
    Index,
    Load,
    Nest,
    Random,
    Reduce,
    Scan,
    Store,
)


class Body:
    """A nest under construction; values are names."""

    def __init__(self, *extents: Expr | int) -> None:
        self.axes = tuple(Axis(f"a{k}", as_expr(n)) for k, n in enumerate(extents))
        self.at = tuple(as_expr(a) for a in self.axes)
        self.equations: list[Equation] = []
        self.kinds: dict[str, str] = {}

    def nest(self) -> Nest:
        return Nest("nest", self.axes, tuple(self.equations))

    def _new(self, dtype: str) -> str:
        name = f"x{len(self.kinds)}"
        self.kinds[name] = dtype
        return name

    def load(
        self, buffer: str, *index: Expr | int, dtype: str = "float32", mask: str | None = None, fill: float = 0
    ) -> str:
        out = self._new(dtype)
        self.equations.append(Load(out, buffer, tuple(as_expr(i) for i in index), dtype, mask, fill))
        return out

    def op(self, name: str, *ins: str | float, dtype: str | None = None) -> str:
        first = next(i for i in ins[1 if name == "where" else 0 :] if isinstance(i, str))
        names = [i if isinstance(i, str) else self.constant(i, self.kinds[first]) for i in ins]
        out = self._new(dtype or self.kinds[first])
        self.equations.append(Compute(out, name, tuple(names), self.kinds[out]))
        return out

    def constant(self, value: float, dtype: str = "float32") -> str:
        out = self._new(dtype)
        self.equations.append(Constant(out, value, dtype))
        return out

    def index(self, expr: Expr, dtype: str = "int64") -> str:
        out = self._new(dtype)
        self.equations.append(Index(out, expr, dtype))
        return out

    def reduce(self, op: str, value: str, *axes: int) -> str:
        return self.reduces(op, value, *axes)[0]

    def reduces(self, op: str, value: str, *axes: int) -> tuple[str, ...]:
        dtype = "int64" if op.startswith("arg") else self.kinds[value]
        outs = tuple(self._new(dtype) for _ in range(2 if op == "welford" else 1))
        self.equations.append(Reduce(outs, op, value, tuple(self.axes[a].name for a in axes), dtype))
        return outs

    def scan(self, op: str, value: str, axis: int, reverse: bool = False) -> str:
        out = self._new(self.kinds[value])
        self.equations.append(Scan(out, op, value, self.axes[axis].name, self.kinds[value], reverse))
        return out

    def random(self, seed: str, index: Expr, stream: int = 0) -> str:
        out = self._new("float32")
        self.equations.append(Random(out, seed, stream, index, "float32"))
        return out

    def loaded(self, value: str, bound: Expr | int) -> Expr:
        return as_expr(Loaded(value, as_expr(bound)))

    def check(self, cond: str, message: str = "index out of range") -> None:
        self.equations.append(Check(cond, message))

    def store(
        self, buffer: str, index: Sequence[Expr | int], value: str, mode: str = "set", mask: str | None = None
    ) -> None:
        self.equations.append(Store(buffer, tuple(as_expr(i) for i in index), value, mode, mask))
