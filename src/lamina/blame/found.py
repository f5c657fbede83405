"""What was found to be wrong, as a value that prints and turns to JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from lamina.base.decision import Decision

__all__ = ["STAGES", "Bisection", "Blame"]

STAGES = (
    "capture",
    "captured rewrite",
    "differentiation",
    "joint rewrite",
    "partition",
    "late rewrite",
    "lowering",
    "rewrite of loops",
    "fusion",
    "scheduling",
    "memory planning",
    "code generation",
    "library",
    "host program",
    "run time",
)
"""The stages that can be blamed, in their order. "late rewrite" is one of the forward or backward graph alone, "run
time" all that runs around compiled graphs."""


@dataclass(frozen=True, slots=True)
class Blame:
    """The first stage whose values depart from those of the stage before.

    ``graph`` is the captured graph or the region, ``step`` the rule, rewrite, sub-pass or kernel, and ``application``
    says that it was the step's so-manieth rewrite of that graph (0: not counted). ``subject`` are the nodes, nests or
    buffers that it was about, ``place`` the user's line with the operations, ``text`` how values differ. ``file`` has
    generated source, ``line`` the line in it. ``decisions`` are those that led there.
    """

    stage: str
    graph: str
    step: str = ""
    application: int = 0
    subject: tuple[str, ...] = ()
    place: str = ""
    text: str = ""
    file: str = ""
    line: int = 0
    decisions: tuple[Decision, ...] = ()

    def __str__(self) -> str:
        step = f" {self.step!r}" if self.step else ""
        nth = f", application {self.application}" if self.application else ""
        about = f" of {', '.join(self.subject)}" if self.subject else ""
        lines = [f"{self.stage}{step}{nth}{about} in {self.graph}"]
        if self.place:
            lines.append(f"  at {self.place}")
        if self.text:
            lines.append(f"  values: {self.text}")
        if self.file:
            lines.append(f"  source: {self.file}{f':{self.line}' if self.line else ''}")
        lines += [f"  decided: {d.kind} {', '.join(map(str, d.subject))}: {d.reason}" for d in self.decisions]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Bisection:
    """What ``bisect`` found. True, as a condition, if nothing differs; printed, a few lines.

    ``different`` says what differs from eager, in words, ``blame`` what makes it differ. ``right`` are the stages that
    were evaluated and gave what they should, ``notes`` say what could not be evaluated and why.
    """

    name: str
    different: tuple[str, ...]
    blame: Blame | None
    right: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = field(default=0.0, compare=False)

    @property
    def ok(self) -> bool:
        """Whether nothing differs."""
        return not self.different and self.blame is None

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        if self.ok:
            return f"{self.name}: nothing differs from eager"
        head = f"{self.name}: {'; '.join(self.different[:3])}" if self.different else f"{self.name}: a region differs"
        more = f" (and {len(self.different) - 3} more)" if len(self.different) > 3 else ""
        lines = [head + more, str(self.blame) if self.blame else "no stage was found that differs from the one before"]
        if self.right:
            lines.append(f"right before it: {', '.join(self.right)}")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def to_json(self) -> dict[str, Any]:
        """The same as plain values."""
        found = asdict(self)
        if self.blame is not None:
            found["blame"]["decisions"] = [
                {**asdict(d), "reason": str(d.reason), "code": d.code} for d in self.blame.decisions
            ]
        return {"ok": self.ok, **found}
