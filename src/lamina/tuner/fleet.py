"""Candidates spread over the machines of a Ray cluster that are of one kind, several at a time on each."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from lamina.backends.adapters.optional import check_installed, optional
from lamina.base.devices import kind_of
from lamina.errors import BadArgument, LaminaError
from lamina.options import visible_gpus
from lamina.tuner.identity import device_facts, versions
from lamina.tuner.process import LOOK, Processes
from lamina.tuner.programs import Subject
from lamina.tuner.values import Figures, Row
from lamina.tuner.worker import Job, packed

__all__ = ["Fleet"]

_ATTEMPTS = 3
"""Workers that a candidate is given to, one after the other, if they end: the third has hardly had bad luck."""
_SLACK = 60.0
"""Seconds beyond a candidate's own in which its worker starts and answers."""


@dataclass(slots=True)
class _Node:
    """A machine: how many candidates it takes at a time, and eager's figures there in a process of its own."""

    name: str
    slots: int
    busy: int = 0
    own: Figures | None = None


@dataclass(slots=True)
class _Flight:
    """A candidate at work: its number, where it is, its time limit, and when its worker is given up."""

    number: int
    node: _Node
    limit: float
    end: float


@dataclass(slots=True)
class _Plan:
    """What is left to do of one call of ``Fleet.rows``."""

    jobs: Sequence[Job]
    waiting: deque[int]
    flying: dict[Any, _Flight] = field(default_factory=dict)
    ended: Counter[int] = field(default_factory=Counter)
    last: dict[int, str] = field(default_factory=dict)  # the machine whose worker ended


class Fleet:
    """The machines of a Ray cluster that are of this one's kind. A context manager.

    The cluster is the one that the user is connected to, or that RAY_ADDRESS names; else one of this machine alone is
    started and ended. A worker holds ``threads`` CPUs, and a GPU if the model is on one, and loads the modules of
    ``preload`` once for its candidates. Timings are compared within one process only, and machines of another kind, or
    with other versions installed, take no part.

    Raises ``BadArgument`` where Ray is not installed, where no machine is of this kind or large enough, and for a
    subject that cannot be sent.
    """

    def __init__(self, subject: Subject, device: torch.device, threads: int, preload: Sequence[str] = ()) -> None:
        check_installed("ray", ("ray",), "executor")
        if kind_of(device).queued and device.index not in (0, None):
            raise BadArgument(
                f"the model is on {device}, and a worker has one GPU, cuda:0", remedy="move the model to cuda:0"
            )
        self.preload = tuple(preload)
        self.ray: Any = optional("ray")
        self.exceptions: Any = optional("ray.exceptions")
        self.affinity: Any = optional("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
        self.started = not self.ray.is_initialized()
        if self.started:
            self.ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        try:
            self.needs = {"num_cpus": threads, "num_gpus": 1 if kind_of(device).queued else 0}
            self.nodes = self._alike(device, threads)
            self.payload = self.ray.put(_sent(subject))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the cluster, if it was started for this."""
        if self.started:
            self.ray.shutdown()

    @property
    def slots(self) -> int:
        """Candidates that are at work at a time on one machine, at most."""
        return max(node.slots for node in self.nodes)

    def rows(
        self, jobs: Sequence[Job], seconds: Callable[[Job], float], told: Callable[[Job, str], None]
    ) -> Iterator[tuple[int, Row, float]]:
        """The number of each job, its row and the seconds that it was given, in the order in which they end.

        ``seconds``: what a job may take as it begins; it is left out where that is none. A job whose worker ends is
        given to another. Where no machine is left, the rest is left out.
        """
        plan = _Plan(jobs, deque(range(len(jobs))))
        try:
            while plan.waiting or plan.flying:
                self._begin(plan, seconds, told)
                if not plan.flying:
                    return
                done, _ = self.ray.wait(list(plan.flying), timeout=LOOK)
                for ref in done:
                    flight = plan.flying.pop(ref)
                    flight.node.busy -= 1
                    row = self._answer(ref, flight, plan)
                    if row is not None:
                        yield flight.number, row, flight.limit
                yield from self._overdue(plan)
        finally:
            for ref in plan.flying:
                self.ray.cancel(ref, force=True)

    def _alike(self, device: torch.device, threads: int) -> list[_Node]:
        """The machines that are like this one and large enough."""
        here = _facts(device.type, threads)
        found, others = [], []
        asked = {}
        for node in self.ray.nodes():
            slots = _slots(node, self.needs)
            if slots:
                needs = {"num_cpus": 0, "num_gpus": min(0.01, self.needs["num_gpus"])}
                ref = self._remote(_facts, node["NodeID"], needs).remote(device.type, threads)
                asked[ref] = _Node(node["NodeID"], slots)
        if not asked:
            raise BadArgument(
                f"no machine of the Ray cluster has {threads} CPUs{' and a GPU' if self.needs['num_gpus'] else ''}",
                remedy="torch.set_num_threads(...) to what its machines have",
            )
        answered, _ = self.ray.wait(list(asked), num_returns=len(asked), timeout=_SLACK)
        for ref in answered:
            try:
                there = self.ray.get(ref)
            except self.exceptions.RayError as error:
                others.append(_first_line(error))
                continue
            names = [name for name in here if there.get(name) != here[name]]
            different = [f"{name} is {there.get(name)!r} there and {here[name]!r} here" for name in names]
            if different:
                others.append(", ".join(different))
            else:
                found.append(asked[ref])
        if not found:
            raise BadArgument(
                f"no machine of the Ray cluster is like this one: {'; '.join(others) or 'none answered'}",
                remedy="call lamina.tune on a machine of the cluster's kind",
            )
        return found

    def _remote(self, function: Callable[..., Any], node: str, needs: Mapping[str, float]) -> Any:
        strategy = self.affinity(node_id=node, soft=False)
        return self.ray.remote(function).options(scheduling_strategy=strategy, max_retries=0, **needs)

    def _begin(self, plan: _Plan, seconds: Callable[[Job], float], told: Callable[[Job, str], None]) -> None:
        """Give jobs to the machines that have a slot free, each to one where it has not just failed, if there is."""
        while plan.waiting:
            number = plan.waiting[0]
            free = [node for node in self.nodes if node.busy < node.slots]
            if not free:
                return
            node = min(free, key=lambda n: (n.name == plan.last.get(number), n.busy / n.slots))
            plan.waiting.popleft()
            job = plan.jobs[number]
            limit = seconds(job)
            if limit <= 0:
                continue
            node.busy += 1
            told(job, "is at work")
            ref = self._remote(_examined, node.name, self.needs).remote(
                self.payload, self.preload, job, limit, node.own
            )
            plan.flying[ref] = _Flight(number, node, limit, time.monotonic() + limit + _SLACK)

    def _answer(self, ref: Any, flight: _Flight, plan: _Plan) -> Row | None:
        """The row; None where the worker ended and another one has the job next."""
        try:
            answer = self.ray.get(ref)
        except self.exceptions.RayTaskError as error:
            raise LaminaError(
                f"a worker of the Ray cluster failed: {_last_line(error)}", remedy="see its log"
            ) from error
        except self.exceptions.RayError as error:
            alive = {node["NodeID"] for node in self.ray.nodes() if node["Alive"]}
            self.nodes = [node for node in self.nodes if node.name in alive]
            plan.ended[flight.number] += 1
            plan.last[flight.number] = flight.node.name
            if plan.ended[flight.number] < _ATTEMPTS:
                plan.waiting.appendleft(flight.number)
                return None
            text = f"{_ATTEMPTS} workers ended, one after the other: {_first_line(error)}"
            return Row(plan.jobs[flight.number].candidate, "crashed", text)
        if isinstance(answer, _Failed):
            raise LaminaError(answer.what, remedy=answer.remedy)
        made: Row
        made, flight.node.own = answer
        if made.verdict == "baseline" and flight.node.own is None:
            flight.node.own = made.figures
        return made

    def _overdue(self, plan: _Plan) -> Iterator[tuple[int, Row, float]]:
        now = time.monotonic()
        for ref, flight in [*plan.flying.items()]:
            if now > flight.end:
                self.ray.cancel(ref, force=True)
                del plan.flying[ref]
                flight.node.busy -= 1
                text = "its worker gave no answer in time"
                candidate = plan.jobs[flight.number].candidate
                yield flight.number, Row(candidate, "hung", text, limit=flight.limit), flight.limit


def _facts(device: str, threads: int) -> dict[str, Any]:
    """What two machines must have in common for rows of both to be compared."""
    return {**device_facts(torch.device(device), threads), **versions()}


def _slots(node: Any, needs: Mapping[str, float]) -> int:
    if not node["Alive"]:
        return 0
    there = node["Resources"]
    return int(min(there.get("CPU", 0) // needs["num_cpus"], *[there.get("GPU", 0)] * bool(needs["num_gpus"]), 1 << 16))


def _sent(subject: Subject) -> bytes:
    """The subject for another machine: classes and functions of the user's script are sent with their code."""
    try:
        return packed(subject, optional("ray.cloudpickle"))
    except Exception as error:
        raise BadArgument(
            f"the model, its inputs, loss or metric cannot be sent to another machine: {error}",
            remedy="leave out what only this process has, such as open files, locks and generators",
        ) from error


def _first_line(error: Exception) -> str:
    return [*str(error).strip().splitlines(), type(error).__name__][0][:200]


def _last_line(error: Exception) -> str:
    return [type(error).__name__, *str(error).strip().splitlines()][-1][:200]


@dataclass(frozen=True, slots=True)
class _Failed:
    """An error of Lamina's own at a worker."""

    what: str
    remedy: str


def _examined(
    payload: bytes, preload: Sequence[str], job: Job, seconds: float, own: Figures | None
) -> tuple[Row, Figures | None] | _Failed:
    """What a worker does: a row, with eager's figures on its machine if they were needed.

    Ray may give a worker another GPU for each candidate, while the server of its processes keeps the first one's
    environment.
    """
    gpus = visible_gpus()
    if len(gpus) == 1:
        job = replace(job, gpu=gpus[0])
    try:
        return Processes(payload, preload).examine(job, seconds, own)
    except LaminaError as error:
        return _Failed(error.what, error.remedy)
