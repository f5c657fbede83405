"""A choice the compiler made, kept as a value so that it can be printed, tested and explained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lamina.base.reasons import Reason

__all__ = ["Decision"]


@dataclass(frozen=True, slots=True)
class Decision:
    """One yes or no of a stage.

    ``kind`` names the question ("fuse", "save", "library"), ``subject`` the things it was asked of,
    ``reason`` the answer's ground in words with a registered code, ``facts`` the numbers it rests on.
    """

    kind: str
    subject: tuple[str, ...]
    taken: bool
    reason: Reason
    facts: tuple[tuple[str, int | float | str], ...] = ()

    @property
    def code(self) -> str:
        """The registered code of the reason ("LM5012"), which docs/codes.md explains."""
        return self.reason.code

    @property
    def remedy(self) -> str:
        """What a user can do about it in a sentence; empty where nothing need be done."""
        return self.reason.remedy

    def as_dict(self) -> dict[str, Any]:
        """All of it as plain values, for JSON."""
        return {
            "kind": self.kind,
            "subject": [str(one) for one in self.subject],
            "taken": bool(self.taken),
            "code": self.code,
            "reason": str(self.reason),
            "remedy": self.remedy,
            "facts": {name: value if isinstance(value, int | float) else str(value) for name, value in self.facts},
        }
