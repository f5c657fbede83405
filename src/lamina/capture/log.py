"""What capture did with the functions of one compiled callable, noted as decisions."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from traceback import FrameSummary
from types import CodeType

from lamina.base.decision import Decision
from lamina.base.reasons import Reason
from lamina.base.user_warnings import calling_line, calling_place, warn_user
from lamina.capture.breaks import break_reason, is_torchs, user_frame, user_place
from lamina.capture.frame_reasons import (
    CHANGES_LOST,
    NO_TENSOR_CALLS,
    NOTHING_CAPTURED,
    PASSED_OVER,
    RUN_BY_PYTHON,
    SHARED,
    SIZE_FIXED,
    SKIPPED_BY_DYNAMO,
    SYMBOLS_TAKE_TOO_LONG,
)
from lamina.capture.modes.switches import place_of
from lamina.capture.reasons import COROUTINE, GENERATOR
from lamina.capture.recompiles.guard_texts import FailedGuard
from lamina.record import Record

__all__ = ["CaptureLog"]


@dataclass(eq=False, slots=True)
class CaptureLog:
    """The capture of one compiled callable, which writes to ``record``; each thing is noted once.

    ``graphs`` counts the graphs that were captured, ``missed`` holds why parts were not, in order, and ``empty`` why
    the last function without any graph has none, where nothing in it was missed.
    """

    record: Record
    graphs: int = 0
    missed: list[Reason] = field(default_factory=list)
    started: float = 0.0
    """When (``time.perf_counter``) Dynamo began with the function being compiled."""
    returned: float | None = None
    """When the backend gave back the graph of that function; nothing as long as it has none."""
    empty: Reason | None = None
    called_by_torch: bool = False
    """Whether torch's own wrapper calls the function, so that nobody else tells the user at the end of a call."""
    fixed_names: set[str] = field(default_factory=set)
    """Sizes and numbers that a line of the program fixed, by name."""
    _noted: set[tuple[str, ...]] = field(default_factory=set)
    _nothing_told: bool = False

    def name_of(self, function: CodeType) -> str:
        """How ``function`` is called here: a frame that torch puts around a callable has the callable's name."""
        return self.record.name if is_torchs(function.co_filename) else place_of(function)

    def broken(self, function: str, kind: str, message: str, stack: Iterable[FrameSummary]) -> None:
        """A graph of ``function`` ends at the last of the user's frames in ``stack``; the rest as ``break_reason``."""
        frames = list(stack)
        frame = _editable(user_frame(frames))
        reason = break_reason(kind, message, frames[-1] if frames else None)
        self.missed.append(reason)
        facts = [("function", function), ("dynamo", kind or message.partition("\n")[0])]
        if frame is not None and frame.line:
            facts.insert(0, ("line", frame.line.strip()))
        self._note(Decision("break", (user_place(frame) or function,), False, reason, tuple(facts)))

    def skipped(self, function: str, why: Reason) -> None:
        """Python runs all of ``function`` itself, as there is no graph for it."""
        reason = SKIPPED_BY_DYNAMO(why=why, hint=why.remedy)
        self._note(Decision("capture", (function,), False, reason, self.called_at()))

    def generator(self, function: str) -> None:
        """Python runs ``function``, as it is a generator."""
        reason = GENERATOR()
        self.missed.insert(0, reason)  # what else was missed says more
        self.skipped(function, reason)

    def runs_later(self, function: str, coroutine: bool) -> None:
        """A call of ``function`` gave a generator or a ``coroutine``, which Python runs after the call."""
        reason = COROUTINE(name=function) if coroutine else GENERATOR()
        self.missed.append(reason)
        self.skipped(function, reason)

    def compiled_again(self, function: str, failed: Sequence[FailedGuard]) -> None:
        """``function`` is compiled once more; ``failed`` tells what each version did not fit, the newest one first."""
        if not failed:
            return
        subject = (function, f"version {len(failed)}")
        facts = (*failed[0].facts(), ("versions before", len(failed)))
        self._note(Decision("recompile", subject, True, failed[0].reason, facts))

    def fixed(self, symbol: str, value: str, stack: Iterable[FrameSummary]) -> None:
        """A size or number that could have varied holds for one value only, by a line of ``stack``."""
        place = user_place(user_frame(stack))
        self.fixed_names.add(symbol)
        size = _SIZE.fullmatch(symbol)
        said = symbol if size is None else f"size {size[2]} of {size[1]}"
        self._note(Decision("specialise", (said, place), True, SIZE_FIXED(symbol=said, value=value)))

    def fixed_from_now_on(self, function: CodeType) -> None:
        """No size that ``function`` is called with is a symbol from now on, as tracing symbols takes too long."""
        self._note(Decision("fixed sizes", (self.name_of(function),), True, SYMBOLS_TAKE_TOO_LONG()))

    def run_by_python(self, function: str, why: str, lasting: bool) -> None:
        """Say that Python runs ``function``, in this call or, if ``lasting``, from now on."""
        when = "from now on" if lasting else "in this call"
        told = RUN_BY_PYTHON(when=when, why=why)
        code, remedy = (why.code, why.remedy) if isinstance(why, Reason) else (told.code, told.remedy)
        reason = Reason(told, code, remedy)
        self.record.note("", "capture", Decision("capture", (function,), False, reason, self.called_at()))
        self._nothing_told = True
        warn_user(f"lamina runs {function} uncompiled {when}: {why}", why.remedy if isinstance(why, Reason) else "")

    def changes_lost(self, function: str, error: str) -> None:
        """An ``error`` of the graph of ``function`` came before what the program changes before it."""
        reason = CHANGES_LOST(error=error)
        decision = Decision("capture", (function,), False, reason, self.called_at())
        if (key := (decision.kind, function, reason)) not in self._noted:
            self._noted.add(key)
            self.record.note("", "capture", decision)
            warn_user(f"lamina: {function}: {reason}", reason.remedy)

    def tell_nothing_compiled(self) -> None:
        """Warn once if there is no graph after a call of the callable although parts of it were tried."""
        reason = self.nothing_compiled()
        if reason is not None:
            cause = self.missed[-1] if self.missed else self.empty
            warn_user(f"lamina compiled nothing of {self.record.name}: {cause}", reason.remedy)

    def nothing_met(self) -> None:
        """The first call came to no function that was not compiled, or given up, before."""
        self._note(Decision("capture", (self.record.name,), True, SHARED(), self.called_at()))

    def nothing_compiled(self) -> Reason | None:
        """Why there is no graph after a call of the callable, when that is first asked; nothing if there is one."""
        cause = self.missed[-1] if self.missed else self.empty
        if self.graphs or cause is None or self._nothing_told:
            return None
        self._nothing_told = True
        reason = NOTHING_CAPTURED(why=cause, hint=cause.remedy)
        self._note(Decision("capture", (self.record.name,), False, reason, self.called_at()))
        return reason

    def without_graph(self, why: str) -> None:
        """A function has no graph, of which Dynamo says ``why``; "" if it met nothing to capture in it."""
        if self.empty is None:
            nothing = not why or any(words in why for words in _NOTHING_TO_DO)
            self.empty = NO_TENSOR_CALLS() if nothing else PASSED_OVER(why=why)

    def called_at(self) -> tuple[tuple[str, str], ...]:
        """The fact that names the user's line being executed: the call of what is not compiled."""
        facts: list[tuple[str, str]] = []
        with self.record.harmless("capture"):
            facts.append(("called at", calling_line()))
        return tuple(facts)

    def _note(self, decision: Decision) -> None:
        key = (decision.kind, *decision.subject, decision.reason)
        if key not in self._noted:
            self._noted.add(key)
            self.record.note("", decision.kind, decision)


_NOTHING_TO_DO = ("no tensor-related objects", "no content in function call", "No ops traced")
"""What Dynamo says of functions in which there is nothing to capture."""


_SIZE = re.compile(r"(.+)\.size\(\)\[(\d+)\]")


def _editable(frame: FrameSummary | None) -> FrameSummary | None:
    """``frame``, or the statement that is being executed where it is in torch's own files: no user can change those."""
    if frame is None or not is_torchs(frame.filename):
        return frame
    file, line = calling_place()
    return FrameSummary(file, line, "", line=linecache.getline(file, line).strip())
