"""What capture did with the functions of one compiled callable, noted as decisions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from traceback import FrameSummary
from types import CodeType

from lamina.base.decision import Decision
from lamina.base.reasons import Reason
from lamina.base.user_warnings import warn_user
from lamina.capture.breaks import break_reason, is_torchs, user_frame, user_place
from lamina.capture.modes.switches import place_of
from lamina.capture.reasons import NOTHING_CAPTURED, RUN_BY_PYTHON, SIZE_FIXED, SKIPPED_BY_DYNAMO, SYMBOLS_TAKE_TOO_LONG
from lamina.capture.recompiles import FailedGuard
from lamina.record import Record

__all__ = ["CaptureLog"]


@dataclass(eq=False, slots=True)
class CaptureLog:
    """The capture of one compiled callable, which writes to ``record``; each thing is noted once.

    ``graphs`` counts the graphs that were captured, ``missed`` holds why parts were not, in order.
    """

    record: Record
    graphs: int = 0
    missed: list[Reason] = field(default_factory=list)
    started: float = 0.0
    """When (``time.perf_counter``) Dynamo began with the function being compiled."""
    returned: float | None = None
    """When the backend gave back the graph of that function; nothing as long as it has none."""
    _noted: set[tuple[str, ...]] = field(default_factory=set)
    _nothing_told: bool = False

    def name_of(self, function: CodeType) -> str:
        """How ``function`` is called here: a frame that torch puts around a callable has the callable's name."""
        return self.record.name if is_torchs(function.co_filename) else place_of(function)

    def broken(self, function: str, kind: str, message: str, stack: Iterable[FrameSummary]) -> None:
        """A graph of ``function`` ends at the last of the user's frames in ``stack``; the rest as ``break_reason``."""
        frame = user_frame(stack)
        reason = break_reason(kind, message)
        self.missed.append(reason)
        facts = [("function", function), ("dynamo", kind or message.partition("\n")[0])]
        if frame is not None and frame.line:
            facts.insert(0, ("line", frame.line.strip()))
        self._note(Decision("break", (user_place(frame) or function,), False, reason, tuple(facts)))

    def skipped(self, function: str, why: Reason) -> None:
        """Python runs all of ``function`` itself, as there is no graph for it."""
        self._note(Decision("capture", (function,), False, SKIPPED_BY_DYNAMO(why=why, hint=why.remedy)))

    def compiled_again(self, function: str, failed: Sequence[FailedGuard]) -> None:
        """``function`` is compiled once more; ``failed`` tells what each version did not fit, the newest one first."""
        if not failed:
            return
        first = failed[0]
        facts = [("guard", first.guard), ("old", first.old), ("new", first.new), ("line", first.place)]
        told = tuple((name, text) for name, text in facts if text)
        subject = (function, f"version {len(failed)}")
        self._note(Decision("recompile", subject, True, first.reason, (*told, ("versions before", len(failed)))))

    def fixed(self, symbol: str, value: str, stack: Iterable[FrameSummary]) -> None:
        """A size or number that could have varied holds for one value only, by a line of ``stack``."""
        place = user_place(user_frame(stack))
        self._note(Decision("specialise", (symbol, place), True, SIZE_FIXED(symbol=symbol, value=value)))

    def fixed_from_now_on(self, function: CodeType) -> None:
        """No size that ``function`` is called with is a symbol from now on, as tracing symbols takes too long."""
        self._note(Decision("fixed sizes", (self.name_of(function),), True, SYMBOLS_TAKE_TOO_LONG()))

    def run_by_python(self, function: str, why: str, lasting: bool) -> None:
        """Say that Python runs ``function``, in this call or, if ``lasting``, from now on."""
        when = "from now on" if lasting else "in this call"
        code, remedy = (why.code, why.remedy) if isinstance(why, Reason) else (RUN_BY_PYTHON.number, "")
        reason = Reason(RUN_BY_PYTHON(when=when, why=why), code, remedy)
        self.record.note("", "capture", Decision("capture", (function,), False, reason))
        warn_user(f"lamina runs {function} uncompiled {when}: {why}", remedy)

    def tell_nothing_compiled(self) -> None:
        """Warn once if there is no graph after a call of the callable although parts of it were tried."""
        reason = self.nothing_compiled()
        if reason is not None:
            warn_user(f"lamina compiled nothing of {self.record.name}: {self.missed[-1]}", reason.remedy)

    def nothing_compiled(self) -> Reason | None:
        """Why there is no graph after a call of the callable, when that is first asked; nothing if there is one."""
        if self.graphs or not self.missed or self._nothing_told:
            return None
        self._nothing_told = True
        cause = self.missed[-1]
        reason = NOTHING_CAPTURED(why=cause, hint=cause.remedy)
        self._note(Decision("capture", (self.record.name,), False, reason))
        return reason

    def _note(self, decision: Decision) -> None:
        key = (decision.kind, *decision.subject, decision.reason)
        if key not in self._noted:
            self._noted.add(key)
            self.record.note("", decision.kind, decision)
