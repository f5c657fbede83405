"""Questions about values that facts hold as objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["IsA"]


@dataclass(frozen=True, slots=True)
class IsA:
    """Asks for the class of a value."""

    kind: type

    def __call__(self, value: Any) -> bool:
        return isinstance(value, self.kind)

    def __str__(self) -> str:
        return f"instance of {self.kind.__qualname__}"
