"""Named axes whose size may vary."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.errors import BadArgument

__all__ = ["BatchDim", "DynamicDim"]


@dataclass(frozen=True, slots=True)
class DynamicDim:
    """An axis of ``min`` to ``max`` elements; ``opt`` is the size that it mostly has. Axes of one name vary together.

    Raises ``BadArgument`` unless the name is a text and 1 <= min <= opt <= max.
    """

    name: str
    min: int
    max: int
    opt: int | None = None

    def __post_init__(self) -> None:
        middle = self.min if self.opt is None else self.opt
        if not isinstance(self.name, str) or not all(type(size) is int for size in (self.min, middle, self.max)):
            raise BadArgument(
                f"an axis is {self.name!r} with min={self.min!r}, opt={self.opt!r}, max={self.max!r}",
                remedy='give a name and whole numbers, as DynamicDim("rows", 1, 64)',
            )
        if not 1 <= self.min <= middle <= self.max:
            raise BadArgument(
                f"axis {self.name!r} has min={self.min}, opt={self.opt}, max={self.max}",
                remedy="give sizes with 1 <= min <= opt <= max",
            )

    def holds(self, size: int) -> bool:
        """Whether an axis of that size is within the bounds."""
        return self.min <= size <= self.max


class BatchDim(DynamicDim):
    """The axis that counts samples."""
