"""Logs of compiling on the standard ``logging`` module: a channel ``lamina.NAME`` for each subject, a line an event.

All of them are fed by ``Record``, from what stages note anyhow, so that none of them calls a logger.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from difflib import get_close_matches
from typing import Protocol

from lamina.base.decision import Decision
from lamina.base.files import own_text_of, text_of
from lamina.base.plurals import counted
from lamina.base.torch_logs.torch_private import enabled_torch_logs, traced, tracing
from lamina.errors import UnknownOption

__all__ = ["CHANNELS", "decision_line", "enable_logs", "log_stage"]


class Noted(Protocol):
    """What a record keeps of a stage."""

    @property
    def region(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> object: ...
    @property
    def seconds(self) -> float: ...
    @property
    def decisions(self) -> tuple[Decision, ...]: ...


CHANNELS = {
    "graph_breaks": "what could not be captured, and what Python runs instead",
    "guards": "how many conditions each compiled version rests on; at level DEBUG each of them",
    "recompiles": "which guard failed, with both values; sizes that the program fixes",
    "aot": "differentiation, what is saved for the backward, graphs left to ATen",
    "rewrite": "which rules and passes matched, and where",
    "lowering": "what became loops, library calls and segments",
    "fusion": "which loops share a kernel and which do not, with reasons",
    "schedule": "how each kernel is iterated",
    "output_code": "the text of kernels and host programs",
    "autotune": "candidates and what was measured",
    "cache": "kernels compiled and found in the cache",
    "perf_hints": "what you can change to make a program faster",
}
"""What each channel says."""

_STAGES = {
    "guards": "guards",
    "joint tracing": "aot",
    "aot": "aot",
    "joint": "aot",
    "partition": "aot",
    "aten": "aot",
    "rewrite": "rewrite",
    "fold": "rewrite",
    "graph": "lowering",
    "lower": "lowering",
    "segments": "lowering",
    "bodies": "lowering",
    "fuse": "fusion",
    "plan": "schedule",
    "host": "output_code",
    "codegen": "output_code",
    "tune": "autotune",
    "candidates": "autotune",
    "turns": "autotune",
    "build": "cache",
    "cache": "cache",
    "build chosen": "cache",
    "build candidates": "cache",
}
_KINDS = {
    "break": "graph_breaks",
    "capture": "graph_breaks",
    "recompile": "recompiles",
    "specialise": "recompiles",
    "save": "aot",
    "rewrite": "rewrite",
    "pass": "rewrite",
    "tune": "autotune",
    "candidate": "autotune",
    "cache": "cache",
}
_BY_DEBUG: tuple[tuple[str, ...], ...] = (
    (),
    ("graph_breaks", "recompiles", "perf_hints"),
    ("cache", "autotune"),
    ("rewrite", "aot", "guards"),
    ("lowering", "fusion", "schedule"),
    ("output_code",),
)
"""What each level of the option debug adds to those below."""
_LOGGERS = {name: logging.getLogger(f"lamina.{name}") for name in CHANNELS}
_THEIRS = {
    "output_code": "output_code",
    "fusion": "fusion",
    "schedule": "schedule",
    "ir_pre_fusion": "lowering",
    "ir_post_fusion": "fusion",
    "kernel_code": "output_code",
    "autotuning": "autotune",
    "perf_hints": "perf_hints",
    "aot_graphs": "aot",
    "post_grad_graphs": "rewrite",
}
"""Torch's logs that Inductor writes, and which of ours says the same of Lamina."""
_told: set[str] = set()
"""Names of torch's logs of which it was said where ours are; as many as there are above."""


def enable_logs(names: str, debug: int = 0) -> None:
    """Switch on the channels ``names`` (separated by commas) and those of the level ``debug`` (0 to 5).

    They write to standard error where nobody has set up ``logging``. Raises ``UnknownOption`` for other names.
    """
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in CHANNELS:
            meant = get_close_matches(name, CHANNELS, 1)
            hint = f"did you mean {meant[0]!r}? " if meant else ""
            raise UnknownOption(f"no log is called {name!r}", remedy=f"{hint}use some of {','.join(CHANNELS)}")
    wanted += [name for level in _BY_DEBUG[: debug + 1] for name in level]
    for name in wanted:
        if not _LOGGERS[name].isEnabledFor(logging.INFO):
            _LOGGERS[name].setLevel(logging.INFO)
    if wanted and not logging.getLogger("lamina").hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("[%(name)s] %(message)s"))
        logging.getLogger("lamina").addHandler(handler)


def log_stage(name: str, stage: Noted) -> None:
    """Log a stage of the callable ``name`` and what it decided; never fails."""
    with suppress(Exception):
        for channel, say in _events(name, stage):
            logger = _LOGGERS[channel]
            if logger.isEnabledFor(logging.INFO):
                logger.info("%s", say())
        if stage.value is not None and tracing():
            title = "_".join(part.replace(" ", "_") for part in ("lamina", stage.region, stage.name) if part)
            traced(title, lambda: text_of(stage.value))
        if stage.name == "codegen":
            _point_from_torchs_logs()


def _events(name: str, stage: Noted) -> Iterable[tuple[str, Callable[[], str]]]:
    """What there is to say of a stage: the channel of each event, and a function that gives its line."""
    place = stage.region or name
    channel = _STAGES.get(stage.name)
    for decision in stage.decisions:
        kind = _KINDS.get(decision.kind, channel)
        if kind is not None:
            yield kind, lambda d=decision: f"{place}: {decision_line(d)}"  # type: ignore[misc]
        if decision.remedy:
            yield "perf_hints", lambda d=decision: f"{place}: {_hint(d)}"  # type: ignore[misc]
    if channel == "output_code":
        yield channel, lambda: f"{place}: {stage.name}\n{own_text_of(stage.value)}"
    elif channel is not None and stage.value is not None:
        yield channel, lambda: f"{place}: {stage.name}, {stage.seconds * 1e3:.1f} ms, {_summary(stage)}"
        if channel == "guards" and _LOGGERS[channel].isEnabledFor(logging.DEBUG):
            yield channel, lambda: f"{place}: {text_of(stage.value)}"


def _summary(stage: Noted) -> str:
    return getattr(stage.value, "summary", "") or counted(len(stage.decisions), "decision")


def decision_line(decision: Decision) -> str:
    """A decision as one line: kind, subject, yes or no, code and reason, numbers."""
    answer = "yes" if decision.taken else "no"
    code = f" [{decision.code}]" if decision.code else ""
    facts = "".join(f" {name}={value}" for name, value in decision.facts)
    subject = ", ".join(map(str, decision.subject))
    return f"{decision.kind} {subject}: {answer}{code}, {' '.join(decision.reason.split())}{facts}"


def _hint(decision: Decision) -> str:
    subject = ", ".join(map(str, decision.subject))
    return f"{subject}: {' '.join(decision.reason.split())}. Do: {' '.join(decision.remedy.split())}"


def _point_from_torchs_logs() -> None:
    """Say once where Lamina's log is to a user who asked for one of torch's that Inductor alone writes."""
    for theirs in sorted(enabled_torch_logs() & _THEIRS.keys() - _told):
        _told.add(theirs)
        ours = _THEIRS[theirs]
        logging.getLogger("lamina").warning("TORCH_LOGS=%s is Inductor's; LAMINA_LOGS=%s shows Lamina's", theirs, ours)
