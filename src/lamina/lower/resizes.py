"""How resampling changes the dimensions of an image, and which elements it takes, as eager computes it."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass

from lamina.ir.index import Expr
from lamina.lower.rules import Decline

__all__ = ["Resize", "resizes", "rounded"]


@dataclass(frozen=True, slots=True)
class Resize:
    """One dimension's number of elements before and after, and the factor between them where it was given."""

    source: int
    result: int
    scale: float | None

    def ratio(self, dtype: str) -> float:
        """Source elements for each result element, in eager's precision."""
        if self.scale is not None and self.scale > 0:
            return rounded(1.0 / self.scale, dtype)
        return rounded(rounded(self.source, dtype) / rounded(self.result, dtype), dtype)

    def nearest(self, exact: bool) -> list[int]:
        """The source place of each result place, by eager's float32 arithmetic."""
        ratio, half = self.ratio("float32"), 0.5 if exact else 0.0
        places = (math.floor(rounded((at + half) * ratio, "float32")) for at in range(self.result))
        return [min(place, self.source - 1) for place in places]

    def repeats(self, exact: bool) -> int | None:
        """How often each source element comes, one after the other, if all come equally often."""
        count = self.result // self.source
        even = self.result % self.source == 0 and self.nearest(exact) == [k // count for k in range(self.result)]
        return count if even else None

    def fraction(self, exact: bool) -> tuple[int, int, int] | None:
        """``p``, ``r`` and ``q`` where the source place of each result place ``k`` is ``(k * p + r) // q``."""
        far = 2 if exact else 1
        p, r, q = far * self.source, self.source if exact else 0, far * self.result
        common = math.gcd(p, r, q)
        p, r, q = p // common, r // common, q // common
        return (p, r, q) if self.nearest(exact) == [(k * p + r) // q for k in range(self.result)] else None

    def disagrees(self, exact: bool) -> bool:
        """Whether eager's kernels take different elements: for some, as many or twice as many are not by the factor."""
        count = self.result // max(self.source, 1)
        whole = not exact and count in (1, 2) and self.result == count * self.source
        return whole and self.nearest(exact) != [k // count for k in range(self.result)]

    def taken(self, exact: bool) -> int | None:
        """How often a source element is taken at most; ``None`` where places are no quotients."""
        if self.fraction(exact) is None:
            return None
        places = self.nearest(exact)
        return max(places.count(place) for place in set(places))

    def enlarges(self, dtype: str) -> int | None:
        """2 or 4 where each element has so many results, weighted by the same numbers, exact in eager's precision."""
        count = self.result // self.source
        last = (self.result - 0.5) / max(count, 1) - 0.5
        even = count in (2, 4) and self.result == count * self.source and self.ratio(dtype) == 1 / count
        return count if even and self.source > 1 and rounded(last, dtype) == last else None

    def step(self, exact: bool) -> int | None:
        """How far apart the source elements are that are taken, if they are evenly so."""
        far = self.source // self.result
        even = self.source % self.result == 0 and self.nearest(exact) == [k * far for k in range(self.result)]
        return far if even else None


def resizes(source: Sequence[Expr], result: Sequence[Expr], scales: Sequence[float | None]) -> list[Resize]:
    """How each dimension is resized; ``scales`` has the factors of the first ones, where they were given."""
    given = [*scales, *([None] * (len(source) - len(scales)))]
    return [Resize(_known(n), _known(m), s) for n, m, s in zip(source, result, given, strict=True)]


def rounded(value: float, dtype: str) -> float:
    """``value`` as a number of ``dtype``, float32 or float64."""
    return ctypes.c_float(value).value if dtype == "float32" else value


def _known(size: Expr) -> int:
    if not size.is_int:
        raise Decline("resampling of a size known only at run time")
    return int(size)
