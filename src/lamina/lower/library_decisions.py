"""What lowering left to libraries and to ATen, as decisions."""

from __future__ import annotations

from lamina.base.decision import Decision
from lamina.base.reasons import Reason
from lamina.ir.loops import LibraryCall, LoopProgram
from lamina.lower import reasons

__all__ = ["NO_RULE", "library_decisions"]

NO_RULE = "no lowering rule"
"""The reason of a call whose operation is not in the table."""

_BY_WORDS = (
    ("complex", reasons.COMPLEX),
    ("known only at run time", reasons.RUN_TIME_NUMBER),
    ("depends on data", reasons.SIZE_OF_DATA),
    ("depends on its values", reasons.SIZE_OF_DATA),
)
"""Codes of reasons by words in them: a reason is text in the loop program, which is printed and read back."""

_NAMED = 8
"""Calls that a decision names; its facts count all of them."""


def library_decisions(program: LoopProgram) -> tuple[Decision, ...]:
    """One for each operation that is called and each reason: the operation, the first calls by name, and their number.

    Not taken: that is what the question was, whether the operation has loops.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for step in program.steps:
        if isinstance(step, LibraryCall):
            found.setdefault((step.op, step.reason), []).append(step.name)
    return tuple(
        Decision("library", (op, *names[:_NAMED]), False, _reason(op, why), (("calls", len(names)),))
        for (op, why), names in found.items()
    )


def _reason(op: str, why: str) -> Reason:
    if why == NO_RULE:
        return reasons.NO_LOOPS(operation=op)
    return next((code for words, code in _BY_WORDS if words in why), reasons.LEFT)(why=why)
