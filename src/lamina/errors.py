"""One class per mistake: what happened, where in the user's code, what to do."""

from __future__ import annotations

__all__ = [
    "BackendFailed",
    "BadArgument",
    "InvalidIR",
    "LaminaError",
    "PassFailed",
    "RuleFailed",
    "StageFailed",
    "UnexpectedMatches",
    "UnknownOption",
    "WrongLowering",
]


class LaminaError(Exception):
    """Base of every error Lamina raises. ``code`` is stable, ``remedy`` says what to do."""

    code = "LM000"

    def __init__(self, what: str, *, where: str = "", remedy: str = "") -> None:
        self.what, self.where, self.remedy = what, where, remedy
        text = f"{self.code} {type(self).__name__}: {what}"
        if where:
            text += f"\n  at {where}"
        if remedy:
            text += f"\n  do: {remedy}"
        super().__init__(text)


class BadArgument(LaminaError):
    """A public function was given an argument of the wrong type or value."""

    code = "LM001"


class UnknownOption(LaminaError):
    """An option name or environment value that Lamina does not know."""

    code = "LM002"


class InvalidIR(LaminaError):
    """A stage produced a value that its verifier rejects."""

    code = "LM010"


class StageFailed(LaminaError):
    """A stage raised while compiling a region; the region falls back to ATen calls unless strict."""

    code = "LM011"


class BackendFailed(LaminaError):
    """A backend raised while it compiled a graph, or gave back something other than the graph's outputs."""

    code = "LM012"


class RuleFailed(LaminaError):
    """A rewrite rule's condition raised, or rules undo each other's work without end."""

    code = "LM040"


class UnexpectedMatches(LaminaError):
    """A rule matched another number of times than ``expect_matches`` says."""

    code = "LM041"


class PassFailed(LaminaError):
    """A user's pass raised, or what it returned is no graph with the same inputs and outputs."""

    code = "LM042"


class WrongLowering(LaminaError):
    """A lowering of the user's gives another number, shape or dtype of results than its operation, or fails."""

    code = "LM043"
