"""Runs many programs in several processes and collects what differs."""

from __future__ import annotations

import json
import platform
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

import torch

from lamina.testing.fuzz.generate import generate
from lamina.testing.fuzz.pool import Answer, Job, Worker
from lamina.testing.fuzz.target import LAMINA, compile_function

__all__ = ["Campaign", "Finding", "fuzz", "target_of"]

KERNELS = 3
"""Every so many-th program runs C++ kernels, the others Lamina's interpreter of the same plans."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A program that showed a difference."""

    seed: int
    target: str
    kind: str
    text: str
    capture: bool
    """True if torch.compile's capture (backend "eager") alone differs as well."""
    source: str


@dataclass(slots=True)
class Campaign:
    """What a run of the fuzzer found."""

    target: str
    first_seed: int
    programs: int = 0
    targets: Counter[str] = field(default_factory=Counter)
    eager_raised: int = 0
    undecided: int = 0
    several_draws: int = 0
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)

    @property
    def own(self) -> list[Finding]:
        """Findings that the compiler has to answer for, as capture alone does not show them."""
        return [f for f in self.findings if not f.capture]

    def as_json(self) -> dict[str, Any]:
        """The counts, versions and findings."""
        values = {k: v for k, v in asdict(self).items() if k != "findings"}
        values["targets"] = dict(self.targets)
        values["kinds"] = dict(Counter(f.kind for f in self.own))
        values["own"], values["capture"] = len(self.own), len(self.findings) - len(self.own)
        versions = {"torch": torch.__version__, "python": platform.python_version()}
        return {**values, "versions": versions, "findings": [asdict(f) for f in self.findings]}

    def __str__(self) -> str:
        """One line."""
        capture = len(self.findings) - len(self.own)
        return (
            f"{self.programs} programs from seed {self.first_seed}: {len(self.own)} differ, and {capture} with "
            f"torch.compile's capture alone; {self.undecided} undecided; eager raised in {self.eager_raised}"
        )


def target_of(name: str, seed: int) -> str:
    """The compile function of a seed: for "lamina" kernels in some programs, the interpreter in the others."""
    base, sign, options = name.partition("+")
    return name if base != LAMINA or seed % KERNELS == 0 else f"{LAMINA}:interp{sign}{options}"


def fuzz(
    programs: int = 200,
    seed: int = 0,
    *,
    target: str = LAMINA,
    only: Sequence[str] = (),
    workers: int = 1,
    seconds: float = 120.0,
    each: Callable[[Finding], None] | None = None,
    seeds: Iterable[int] | None = None,
) -> Campaign:
    """Run the programs of ``seeds``, or of so many seeds from ``seed`` on, in ``workers`` processes.

    ``only`` names ingredients; ``seconds`` is how long a program may take; ``each`` is told of every finding at once.
    Raises ``BadArgument`` for an unknown compile function or ingredient.
    """
    compile_function(target)
    generate(seed, only)
    given = iter(range(seed, seed + programs) if seeds is None else seeds)
    campaign = Campaign(target, seed)
    lock = threading.Lock()
    before = time.monotonic()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            with Worker(seconds) as worker:
                for number in _shared(given, lock):
                    chosen = target_of(target, number)
                    answer = worker.ask(Job(chosen, seed=number, only=tuple(only)))
                    with lock:
                        _count(campaign, number, chosen, answer, each)
        except BaseException as problem:
            failures.append(problem)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(max(1, workers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(0.2)  # so that Ctrl-C is seen
    if failures:
        raise failures[0]
    campaign.seconds = round(time.monotonic() - before, 1)
    campaign.findings.sort(key=lambda f: f.seed)
    return campaign


def _shared(seeds: Iterator[int], lock: threading.Lock) -> Iterator[int]:
    while True:
        with lock:
            taken = list(islice(seeds, 1))
        if not taken:
            return
        yield taken[0]


def _count(campaign: Campaign, seed: int, target: str, answer: Answer, each: Callable[[Finding], None] | None) -> None:
    verdict = answer.verdict
    campaign.programs += 1
    campaign.targets[target] += 1
    campaign.eager_raised += verdict.eager_raised
    campaign.undecided += not verdict.decided
    campaign.several_draws += verdict.drawn > 1
    if not verdict.ok:
        text = str(verdict.differences[0])
        finding = Finding(seed, target, verdict.kind, text, answer.capture, answer.source)
        campaign.findings.append(finding)
        if each is not None:
            each(finding)


def dumps(campaign: Campaign) -> str:
    """The campaign as the text of a JSON file."""
    return json.dumps(campaign.as_json(), indent=1) + "\n"
