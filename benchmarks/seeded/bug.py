"""What a seeded bug is."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Bug"]


@dataclass(frozen=True, slots=True)
class Bug:
    """A bug: in ``file``, ``old`` becomes ``new``; ``tests`` are pytest's arguments for the tests that should fail."""

    name: str
    kind: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
