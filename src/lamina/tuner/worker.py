"""What the process of one candidate does: build, verify, time, and say at each step which it is at."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any

import torch

from lamina.base.devices import kind_of
from lamina.errors import BadArgument, LaminaError
from lamina.options import use_gpu
from lamina.tuner.building import build
from lamina.tuner.candidates import device_of, devices_of
from lamina.tuner.memory import keep_freed_memory, limit_memory, peak_memory
from lamina.tuner.parts import tensors_of
from lamina.tuner.programs import Arguments, Built, Subject, arguments_of, timed_call, unlike_the_sample
from lamina.tuner.samples import held_out, rows_of
from lamina.tuner.settings import TorchSettings, ambient, changed
from lamina.tuner.shares import parts_of
from lamina.tuner.statistics import quantile
from lamina.tuner.timing import Clock, race
from lamina.tuner.values import Candidate, Figures, Row
from lamina.tuner.verification import Allowed, EagerRaised, Reference, Verified

__all__ = ["EAGER_FAILED", "Job", "examine", "packed", "serve"]

EAGER_FAILED = "eager itself fails: "
"""How the reason begins where no candidate can be judged."""

_RAW = 200
"""Timings kept in a row: enough to draw them."""

_WATCH = 1.0
"""Seconds between two looks at whether the tuned process still lives."""

_ASKED = (
    "the user's script asks for a GPU when a process imports it, which is to see one alone: move what asks for a GPU "
    "under `if __name__ == '__main__':`"
)
"""Why a process cannot have a GPU of its own: the one that it would use is that of all others."""

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Job:
    """A candidate, how long it is timed in seconds, the ratio that counts as faster, and what is allowed.

    ``memory``: bytes of host memory beyond those of the process as it starts; 0 for no limit. ``rival``: a candidate
    that is right too, against which this one is timed instead of eager. ``attempt``: 1 for the second process that
    measures the same, and so on. ``cores``: those that its process may use; none for all. ``gpu``: the one that its
    process sees, as CUDA_VISIBLE_DEVICES names it; empty for all that this process sees.
    """

    candidate: Candidate
    settings: TorchSettings
    seconds: float = 3.0
    threshold: float = 0.01
    allowed: Allowed = field(default_factory=Allowed)
    memory: int = 0
    rival: Candidate | None = None
    attempt: int = 0
    cores: tuple[int, ...] = ()
    gpu: str = ""

    def facts(self) -> list[Any]:
        """What its row depends on, as plain data; the memory that is free is not part of it."""
        rival = [] if self.rival is None else [self.rival.to_json()]
        mine = self.candidate.to_json()
        again = [self.attempt] if self.attempt else []
        return [mine, repr(self.settings), self.seconds, self.threshold, repr(self.allowed), *rival, *again]


def packed(subject: Subject, by: Any = pickle) -> bytes:
    """The subject as bytes for a process of its own; they are sent to it and never stored. ``by``: pickle, or a module
    of the same functions whose output pickle reads.
    """
    buffer = io.BytesIO()
    torch.save((subject.model, subject.samples, subject.loss, subject.metric), buffer, pickle_module=by)
    return buffer.getvalue()


def serve(pipe: Connection, job: Job, subject: Subject | bytes, log: str) -> None:
    """Examine one candidate and send ("stage", text) for each step and ("row", data) in the end."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)  # so that what a candidate starts ends with it
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)
    for number in (1, 2):
        os.dup2(descriptor, number)
    _track_alone()
    keep_freed_memory()
    if job.cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, job.cores)
    if job.gpu:
        use_gpu(job.gpu)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the user's interrupt is the parent's to handle

    def work() -> None:
        tell("starts")
        try:
            job.settings.apply()
            if job.gpu:
                _check_gpu()
            loaded = subject
            if isinstance(loaded, bytes):
                loaded = Subject(*torch.load(io.BytesIO(loaded), weights_only=False))
            if job.memory and kind_of(device_of(loaded)).host:
                limit_memory(job.memory)
            row = examine(loaded, job, tell)
        except BaseException as raised:  # a thread that ends in silence would be told as a process that did
            traceback.print_exc()
            row = _raised(job.candidate, raised, "its process starts")
        pipe.send(("row", row.to_json()))

    def tell(stage: str) -> None:
        pipe.send(("stage", stage))

    # OpenMP's threads do not survive a fork, but a thread that is new starts its own.
    thread = threading.Thread(target=work)
    parent = multiprocessing.parent_process()
    thread.start()
    while thread.is_alive():
        thread.join(_WATCH)
        if parent is not None and not parent.is_alive():
            if os.getpgrp() == os.getpid():
                os.killpg(0, signal.SIGKILL)
            os._exit(1)  # who waits for the row was killed, and nobody would end a candidate that hangs


def _check_gpu() -> None:
    """Raise ``LaminaError`` where this process has asked for its GPUs before it was told which one is its own."""
    gpu: Any = torch.cuda
    if gpu.is_initialized():
        raise LaminaError(_ASKED)


def _track_alone() -> None:
    """Have a tracker of semaphores of its own for this process: the user's would tell what a killed one left behind."""
    tracker: Any = getattr(resource_tracker, "_resource_tracker", None)
    for name in ("_fd", "_pid"):
        if hasattr(tracker, name):
            setattr(tracker, name, None)


def examine(subject: Subject, job: Job, tell: Tell = lambda stage: None) -> Row:
    """Build, verify and time one candidate in this process. What it raises is a row too."""
    start = time.monotonic()
    stage = "eager runs"

    def at(name: str) -> None:
        nonlocal stage
        stage = name
        tell(name)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            row = (_examined if job.rival is None else _compared)(subject, job, at)
    except BaseException as raised:  # sys.exit, too
        traceback.print_exc()
        row = _raised(job.candidate, raised, stage)
    if row.verdict == "out of memory":
        row = replace(row, limit=float(job.memory))
    return replace(row, seconds=time.monotonic() - start)


def _raised(candidate: Candidate, raised: BaseException, stage: str) -> Row:
    text = next(iter(str(raised).strip().splitlines()), "")[:300]
    said = raised.what if isinstance(raised, LaminaError) else f"{type(raised).__name__}: {text}"
    if isinstance(raised, EagerRaised):
        return Row(candidate, "failed", f"{EAGER_FAILED}{text}")
    if _is_out_of_memory(raised):
        return Row(candidate, "out of memory", f"while {stage}: {said}")
    if isinstance(raised, BadArgument) and "pip install" in raised.remedy:
        return Row(candidate, "unavailable", f"{raised.what}; {raised.remedy}")
    return Row(candidate, "failed", f"while {stage}: {said}")


def _is_out_of_memory(raised: BaseException) -> bool:
    text = str(raised).lower()
    known = isinstance(raised, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in text
    return known or "out of memory" in text or "cannot allocate memory" in text


def _examined(subject: Subject, job: Job, at: Tell) -> Row:
    candidate = job.candidate
    at("eager runs")
    reference = Reference(subject, held_out(subject.samples))
    at("it is built")
    before = ambient()
    start = time.monotonic()
    built = build(candidate, subject.model)
    load_seconds = time.monotonic() - start
    at("it is called first")
    owner = subject.model if built.owner is None else built.owner
    given = arguments_of(subject)
    call = timed_call(built.call, subject, owner, given)
    with reference.kept():
        call()
    build_seconds = time.monotonic() - start
    at("it is verified")
    verified = reference.verify(built, job.allowed)
    if verified.reason:
        return Row(candidate, "refused", verified.reason)
    at("it is timed")
    with reference.kept():
        figures, verdict = _figures(subject, timed_call(subject.model, subject, subject.model, given), call, job)
        wrote = _wrote(subject, given)
    if wrote:
        return Row(candidate, "refused", "arguments: it writes to them while it is timed, and eager does not")
    at("it is verified again")
    again = _verified_again(reference, built, job, before)
    if again.reason:
        return Row(candidate, "refused", f"after it was timed: {again.reason}")
    device = device_of(subject)
    measured = Figures(
        **figures,
        peak_memory=peak_memory(call, tensors_of(owner), *devices_of(subject)),
        build_seconds=build_seconds,
        load_seconds=load_seconds,
        error=max(verified.error, again.error),
        drop=verified.drop,
    )
    if candidate.kind != "eager":
        return Row(candidate, verdict, "", measured)
    forward = timed_call(subject.model, replace(subject, loss=None), subject.model)
    parts = parts_of(subject.model, forward, device)
    return Row(candidate, "baseline", "", measured, parts=parts, draws=reference.draws)


def _verified_again(reference: Reference, built: Built, job: Job, before: Mapping[str, Any]) -> Verified:
    """What later calls give, two in a row: what is right in every other one only is found too."""
    largest = 0.0
    for _ in range(2):
        found = reference.verify(built, job.allowed)
        largest = max(largest, found.error)
        if found.reason:
            return found
    return Verified(reference.overwritten(built) or changed(before), largest)


def _wrote(subject: Subject, given: Arguments) -> bool:
    """Whether arguments that eager leaves alone have changed."""
    if not unlike_the_sample(given, subject):
        return False
    fresh = arguments_of(subject)
    timed_call(subject.model, subject, subject.model, fresh)()
    return not unlike_the_sample(fresh, subject)


def _compared(subject: Subject, job: Job, at: Tell) -> Row:
    """A candidate timed in turns with its rival, both of which were verified in processes of their own."""
    assert job.rival is not None
    at("eager runs")
    reference = Reference(subject, held_out(subject.samples))
    start = time.monotonic()
    calls, given = [], arguments_of(subject)
    for candidate in (job.rival, job.candidate):
        at(f"{candidate.name} is built")
        built = build(candidate, subject.model)
        call = timed_call(built.call, subject, subject.model if built.owner is None else built.owner, given)
        with reference.kept():
            call()
        calls.append(call)
    seconds = time.monotonic() - start
    at("they are timed")
    with reference.kept():
        figures, verdict = _figures(subject, calls[0], calls[1], job)
    measured = Figures(**figures, peak_memory=None, build_seconds=seconds, load_seconds=seconds, error=0.0)
    return Row(job.candidate, verdict, f"against {job.rival.name}", measured)


def _figures(
    subject: Subject, slow: Callable[[], Any], call: Callable[[], Any], job: Job
) -> tuple[dict[str, Any], str]:
    """The figures that a race gives, and its verdict."""
    clock = Clock(*devices_of(subject))
    found = race(slow, call, clock, seconds=job.seconds, threshold=job.threshold)
    mean = sum(found.candidate) / len(found.candidate)
    figures = {
        "p50": quantile(found.candidate, 0.5),
        "p99": quantile(found.candidate, 0.99),
        "mean": mean,
        "baseline": quantile(found.eager, 0.5),
        "speedup": found.speedup,
        "noise": found.noise,
        "samples": len(found.candidate),
        "throughput": rows_of(subject.samples[0]) / mean,
        "timings": found.candidate[:_RAW],
        "baseline_timings": found.eager[:_RAW],
    }
    return figures, found.verdict
