"""Internal failures: noted, told once and left behind, or raised where the user asked for strictness."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lamina.base.decision import Decision
from lamina.base.reasons import Codes
from lamina.base.signals import raised_by_handler
from lamina.base.user_warnings import warn_user
from lamina.errors import InvalidIR, LaminaError, StageFailed

__all__ = ["NOT_RECORDED", "brief", "is_internal", "raised_within", "recover"]

_FAULTS = Codes(90, "Faults of Lamina's own")
_FAILED = _FAULTS.add(
    0,
    "{doing} failed: {error}; {instead}",
    "A stage raised an error of its own. Something smaller does the work instead: results are right, and slower.",
    "please report it with the folder that the option dump_dir writes; strict=True raises the error where it happened",
)

NOT_RECORDED = _FAULTS.add(
    1,
    "recording what became of {name} failed: {error}",
    "What is told of a compilation raised an error of its own. Results and kernels are what they would be otherwise; "
    "the record lacks something, and may lack more than is said here.",
    "please report it; nothing else need be done",
)

_told: set[tuple[str, str]] = set()
"""What failed and with which class of error: kinds of failures, of which there are few."""

_LONGEST = 400
"""Characters of an error in a reason: a compiler's output may be thousands of lines."""


def brief(error: BaseException) -> str:
    """An exception's class and the beginning of what it says, in one line."""
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said[:_LONGEST]}".rstrip(": ")


def is_internal(error: Exception) -> bool:
    """Whether ``error`` tells of a fault of Lamina's own, rather than of what the user gave."""
    if isinstance(error, LaminaError):
        return isinstance(error, (StageFailed, InvalidIR))
    return not raised_by_handler(error)


def raised_within(error: BaseException, besides: Sequence[str]) -> bool:
    """Whether ``error`` passed through a module of Lamina's on its way to the handler, other than those named."""
    frame = error.__traceback__
    while frame is not None:
        module = str(frame.tb_frame.f_globals.get("__name__", ""))
        if module.startswith("lamina.") and module not in besides:
            return True
        frame = frame.tb_next
    return False


def recover(
    error: Exception,
    *,
    doing: str,
    region: str,
    instead: str,
    strict: bool,
    note: Callable[[Decision], None],
    kind: str = "fallback",
) -> None:
    """Go on after ``error``, which is one of Lamina's own, with something smaller.

    ``doing`` is what failed ("the rules"), ``instead`` what happens now ("the graph stays as it was"). ``note`` is
    given a decision against what failed, of ``kind``; the user is warned once in this process of a failure of one class
    in one thing. With ``strict`` a ``StageFailed`` is raised from ``error`` instead. What a handler of a signal raises
    is the program's, and goes on.
    """
    if raised_by_handler(error):
        raise error
    why = f"{doing} failed: {brief(error)}"
    if strict:
        raise StageFailed(f"{region}: {why}", remedy="unset the option strict") from error
    note(Decision(kind, (region,), False, _FAILED(doing=doing, error=brief(error), instead=instead)))
    place = (doing, type(error).__name__)
    if place not in _told:
        _told.add(place)
        warn_user(f"lamina runs {region} with less: {why}; {instead}")
