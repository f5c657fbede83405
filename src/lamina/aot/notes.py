"""What the record and the user are told of a captured graph: how it is compiled, and where eager runs it."""

from __future__ import annotations

from lamina.base.decision import Decision
from lamina.base.reasons import Reason
from lamina.base.user_warnings import warn_user
from lamina.record import Record

__all__ = ["Notes"]


class Notes:
    """Decisions about the graph ``name``, whose code begins at ``place``, in a record.

    ``told`` are the reasons of which the user was warned already, shared by the graphs of one callable.
    """

    def __init__(self, record: Record, name: str, told: set[str] | None = None) -> None:
        self.record, self.name, self.place = record, name, ""
        self.told = set[str]() if told is None else told

    def add(self, *decisions: Decision) -> None:
        """Put decisions of one kind into the record, in a stage of that kind."""
        if decisions:
            self.record.note(self.name, decisions[0].kind, *decisions)

    def decided(self, kind: str, taken: bool, reason: Reason) -> None:
        """Note a decision about the whole graph."""
        self.add(Decision(kind, (self.name,), taken, reason))

    def eager(self, why: Reason) -> None:
        """Note that the captured graph runs as it is."""
        self.decided("eager", True, why)

    def refuse(self, refused: Reason) -> None:
        """Warn, once for each reason, that the captured graph is eager's to run, and note it."""
        self.eager(refused)
        if refused not in self.told:
            self.told.add(refused)
            what = f"lamina leaves {self.place or self.name} to eager: {refused}; {refused.remedy}"
            warn_user(what)

    def tell(self, why: Reason) -> None:
        """Warn that the captured graph runs as it is, and note it."""
        self.eager(why)
        told = " ".join(why.split())[:400]
        warn_user(f"lamina runs {self.place or self.name} as ATen calls: {told}")
