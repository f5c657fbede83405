"""Loads along the vector axis at places that go on in the same way after every few points, as those of short rows do.

What a vector's elements are is the same in every period, so that it stands in a table.
"""

from __future__ import annotations

from dataclasses import dataclass

from lamina.base.dtypes import DTYPES
from lamina.codegen.cpp.expressions import SHORT
from lamina.ir.index import Axis, Expr
from lamina.ir.periodic import Periodic, periodic

__all__ = ["Repeated", "repeated"]

_WIDE = 64
"""Bytes of vectors that have an instruction for any elements of two of them."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """C++ of what is around such a load: places of lanes stand in ``at``, counted from ``base``."""

    places: Periodic
    axis: str
    width: int

    @property
    def lanes(self) -> int:
        """Elements of a vector."""
        return self.width // 4

    def base(self, rest: str) -> str:
        """What is added to the places of the vector that begins at the current point; ``rest`` is theirs for all."""
        lowest = min(self.places.places) if self.places.fixed else 0
        text = rest if not lowest else f"{rest} + {lowest}" if lowest > 0 else f"{rest} - {-lowest}"
        if self.places.fixed:
            return text
        return f"{text} + (int64)((uint64){self.axis} / {self.places.period}u) * {self.places.step}"

    def table(self) -> str:
        """The declaration of ``at``."""
        lowest = min(self.places.places) if self.places.fixed else 0
        entries = ", ".join(str(place - lowest) for place in self.places.table(self.lanes))
        return (
            f"static const int32 places[] = {{{entries}}}; "
            f"const int32* const at = places + (uint64){self.axis} % {self.places.period}u;"
        )

    def load(self, dtype: str, pointer: str, where: str = "") -> str | None:
        """One expression for a load of all lanes, out of one or two vectors; ``None`` where there is none.

        ``where``: which lanes are chosen, and what is in the others.
        """
        span, kind = self.places.span(self.lanes), SHORT[dtype]
        if self.width != _WIDE or DTYPES[dtype].size == 8 or span > 2 * self.lanes:
            return None
        vectors = -(-span // self.lanes)
        if where:
            return self.written(f"near_{kind}<{vectors}, {str(self.places.rises).lower()}>({pointer}, at, {where}, n)")
        if self.places.fixed:
            return self.written(f"cyclic_{kind}<{span}>({pointer}, at)")
        if self.places.rises:
            return self.written(f"rising_{kind}<{vectors}>({pointer}, at, n)")
        return self.written(
            f"near_{kind}<{vectors}, false>({pointer}, at, lanes(n), decltype(load_{kind}({pointer}, n)){{}}, n)"
        )

    def written(self, text: str) -> str:
        """The expression ``text`` with the table that it reads."""
        return f"[&]() STEP {{ {self.table()} return {text}; }}()"


def repeated(expr: Expr, axis: Axis, width: int) -> Repeated | None:
    """What to know about loads at ``expr`` by vectors along ``axis``; ``None`` where their places do not repeat."""
    found = periodic(expr, axis) if width else None
    return None if found is None else Repeated(found, axis.name, width)
