"""Several candidates at a time on one machine, each on cores of its own, and on a GPU of its own if it needs one."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch

from lamina.base.devices import kind_of
from lamina.errors import BadArgument
from lamina.options import visible_gpus
from lamina.tuner.process import SENDABLE, Processes
from lamina.tuner.values import Figures, Row
from lamina.tuner.worker import Job

__all__ = ["Lanes"]


@dataclass(slots=True)
class _Lane:
    """Cores and a GPU that no other lane has, and eager's figures there in a process of its own."""

    cores: tuple[int, ...]
    gpu: str = ""
    own: Figures | None = None


@dataclass(frozen=True, slots=True)
class _Told:
    """What a thread says: the step that a job is at, or its row with the seconds that it was given."""

    number: int
    stage: str = ""
    row: Row | None = None
    limit: float = 0.0


class Lanes:
    """``count`` candidates at a time. A context manager.

    For a model on a CPU each has as many cores as torch has threads; for one on a GPU, a GPU and an equal share of the
    cores.

    Raises ``BadArgument`` where there are not so many cores or GPUs of the model's kind, and for a model that cannot be
    sent to a process: a fork of this one would come in the middle of what other threads do.
    """

    def __init__(self, processes: Processes, count: int, device: torch.device, threads: int) -> None:
        cores = _cores()
        gpus = _gpus(count, device) if kind_of(device).queued else [""] * count
        each = max(1, min(threads, len(cores) // count)) if kind_of(device).queued else threads
        if count * each > len(cores):
            raise BadArgument(
                f"{count} candidates at a time with {each} threads each need {count * each} cores, and there are "
                f"{len(cores)}",
                remedy="torch.set_num_threads(...) or OMP_NUM_THREADS=..., or fewer at a time",
            )
        if processes.forks:
            raise BadArgument(
                "the model, its inputs, loss or metric cannot be sent to another process",
                remedy=f'{SENDABLE}; or give executor="local"',
            )
        self.processes = processes
        self.lanes = [_Lane(tuple(cores[k * each : (k + 1) * each]), gpu) for k, gpu in enumerate(gpus)]
        self.pool = ThreadPoolExecutor(count, thread_name_prefix="lamina-tuner")

    def __enter__(self) -> Lanes:
        return self

    def __exit__(self, *error: object) -> None:
        self.pool.shutdown(cancel_futures=True)

    @property
    def slots(self) -> int:
        """Candidates that are at work at a time."""
        return len(self.lanes)

    def rows(
        self, jobs: Sequence[Job], seconds: Callable[[Job], float], told: Callable[[Job, str], None]
    ) -> Iterator[tuple[int, Row, float]]:
        """The number of each job, its row and the seconds that it was given, in the order in which they end.

        ``seconds``: what a job may take as it begins; it is left out where that is none.
        """
        free: SimpleQueue[_Lane] = SimpleQueue()
        for lane in self.lanes:
            free.put(lane)
        said: SimpleQueue[_Told | BaseException] = SimpleQueue()
        stopped = threading.Event()

        def work(number: int) -> None:
            lane, job = free.get(), jobs[number]
            try:
                limit = 0.0 if stopped.is_set() else seconds(job)
                if limit > 0:
                    said.put(_Told(number, "is at work"))
                    job = replace(job, cores=lane.cores, gpu=lane.gpu)
                    row, lane.own = self.processes.examine(job, limit, lane.own)
                    if row.verdict == "baseline" and lane.own is None:
                        lane.own = row.figures
                    said.put(_Told(number, row=row, limit=limit))
            except BaseException as error:
                said.put(error)
            finally:
                free.put(lane)
                said.put(_Told(number))

        left = [self.pool.submit(work, number) for number in range(len(jobs))]
        ended = 0
        try:
            while ended < len(left):
                word = said.get()
                if isinstance(word, BaseException):
                    raise word
                if word.row is not None:
                    yield word.number, word.row, word.limit
                elif word.stage:
                    told(jobs[word.number], word.stage)
                else:
                    ended += 1
        finally:
            stopped.set()
            if ended < len(left):
                self.processes.stop()


def _gpus(count: int, device: torch.device) -> list[str]:
    """``count`` GPUs like ``device``, as CUDA_VISIBLE_DEVICES names them. Raises ``BadArgument``."""
    if device.index not in (0, None):
        raise BadArgument(
            f"the model is on {device}, and a candidate's process sees one GPU, cuda:0",
            remedy="move the model to cuda:0",
        )
    kinds = [_kind(number) for number in range(torch.cuda.device_count())]
    alike = [number for number, kind in enumerate(kinds) if kind == kinds[0]]
    if count > len(alike):
        raise BadArgument(
            f"{count} candidates at a time need {count} GPUs of one kind, and there are {len(alike)} like {device}",
            remedy='fewer at a time, or executor="ray" for GPUs of several machines',
        )
    names = visible_gpus() or [str(number) for number in range(len(kinds))]
    if len(names) < len(kinds):
        raise BadArgument(
            f"CUDA_VISIBLE_DEVICES names {len(names)} GPUs, and torch sees {len(kinds)}",
            remedy="set it before the process asks for a GPU",
        )
    return [names[number] for number in alike[:count]]


def _kind(gpu: int) -> tuple[str, int, int, int]:
    found = torch.cuda.get_device_properties(gpu)
    return found.name, found.major, found.minor, found.total_memory


def _cores() -> list[int]:
    """The processors that this process may use: one of each core first, then those that share a core with these."""
    asked: Any = getattr(os, "sched_getaffinity", None)
    allowed = sorted(asked(0)) if asked is not None else list(range(os.cpu_count() or 1))
    seen: Counter[str] = Counter()
    turns = {}
    for processor in allowed:
        core = _core_of(processor)
        turns[processor] = seen[core]
        seen[core] += 1
    return sorted(allowed, key=lambda processor: (turns[processor], processor))


def _core_of(processor: int) -> str:
    """The processors of one core, as Linux lists them; elsewhere each is taken for a core of its own."""
    try:
        return Path(f"/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list").read_text("ascii")
    except OSError:
        return str(processor)
