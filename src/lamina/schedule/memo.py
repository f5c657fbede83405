"""What planning found out about the steps of a program, for its next plan: with another choice of products most are the
same objects.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

__all__ = ["Memo", "ProductEstimate"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ProductEstimate:
    """Microseconds of a product with what surrounds it: as our one kernel, and as library call and kernels; the choice.

    ``is_ours``: the latest plan has our kernel.
    """

    ours_us: float
    library_us: float
    is_ours: bool


class Memo:
    """Results by kind and operands. Serves the plans of one program for one target, with its buffers.

    Operands are told apart by identity, strings by value; they live as long as this does. ``products`` has, by library
    call, between what the latest plan chose.
    """

    def __init__(self) -> None:
        self.products: dict[str, ProductEstimate] = {}
        self._found: dict[tuple[object, ...], tuple[tuple[object, ...], Any]] = {}

    def of(self, kind: str, operands: tuple[object, ...], make: Callable[[], T]) -> T:
        """What ``make`` gave for these operands; it is to depend on nothing else that differs between plans."""
        key = (kind, *(x if isinstance(x, str) else id(x) for x in operands))
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = (operands, make())
        result: T = found[1]
        return result
