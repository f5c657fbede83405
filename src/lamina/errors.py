"""One class per mistake: what happened, where in the user's code, what to do."""

from __future__ import annotations

__all__ = [
    "BackendFailed",
    "BadArgument",
    "DoubleBackward",
    "GraphBroken",
    "InvalidIR",
    "LaminaError",
    "LaminaWarning",
    "PassFailed",
    "RecompileRefused",
    "RuleFailed",
    "StageFailed",
    "UnexpectedMatches",
    "UnknownGradient",
    "UnknownOption",
    "WrongLowering",
]


class LaminaError(Exception):
    """Base of every error Lamina raises. ``code`` is stable, ``remedy`` says what to do."""

    code = "LM000"

    def __init__(self, what: str, *, where: str = "", remedy: str = "") -> None:
        self.what, self.where, self.remedy = what, where, remedy
        super().__init__(str(self))

    def __str__(self) -> str:
        """Code, class, what happened, where and what to do, whatever others write into ``args``."""
        place = f"\n  at {self.where}" if self.where else ""
        remedy = f"\n  do: {self.remedy}" if self.remedy else ""
        return f"{self.code} {type(self).__name__}: {self.what}{place}{remedy}"


class LaminaWarning(UserWarning):
    """Something that was asked for is not done, or done in a slower way; results are right all the same."""


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


class DoubleBackward(LaminaError, RuntimeError):
    """The gradients of a compiled region were to be differentiated again."""

    code = "LM013"


class RecompileRefused(LaminaError, RuntimeError):
    """A call would compile a function again while ``torch.compiler.set_stance`` forbids it."""

    code = "LM014"


class UnknownGradient(LaminaError, RuntimeError):
    """The whole gradient of a result was asked for that other results of its graph depend on, and is not known."""

    code = "LM016"


class GraphBroken(LaminaError, RuntimeError):
    """With ``fullgraph`` something in the function can be part of no graph."""

    code = "LM017"


class RuleFailed(LaminaError):
    """A rule's condition raised, its right side gives no such tensors as its left side, or rules go in circles."""

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
