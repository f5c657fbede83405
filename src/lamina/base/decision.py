"""A choice the compiler made, kept as a value so that it can be printed, tested and explained."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Decision"]


@dataclass(frozen=True, slots=True)
class Decision:
    """One yes or no of a stage.

    ``kind`` names the question ("fuse", "save", "library"), ``subject`` the things it was asked of,
    ``reason`` the answer's ground in words, ``facts`` the numbers it rests on.
    """

    kind: str
    subject: tuple[str, ...]
    taken: bool
    reason: str
    facts: tuple[tuple[str, int | float | str], ...] = ()
