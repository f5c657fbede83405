"""Rules by which a module's way to run is chosen: which backends are tried, and what is best.

``error`` of a strategy allows backends that compute in fewer bits than eager: the largest error, as a fraction of the
largest element of a tensor. Without it, results are held to eager's own rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lamina.aitune.backend import Backend
from lamina.errors import BadArgument
from lamina.tuner.candidates import candidates_for
from lamina.tuner.objective import parse_objective
from lamina.tuner.programs import Subject
from lamina.tuner.result import Result
from lamina.tuner.samples import Sample
from lamina.tuner.search import tune
from lamina.tuner.values import EAGER, Candidate

__all__ = [
    "FirstWins",
    "FirstWinsStrategy",
    "LatencyBudget",
    "LatencyBudgetStrategy",
    "MaxThroughput",
    "MaxThroughputStrategy",
    "MinLatency",
    "MinLatencyStrategy",
    "OneBackend",
    "OneBackendStrategy",
    "TuneStrategy",
]


def is_above_zero(value: Any) -> bool:
    """Whether ``value`` is a finite number above zero."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf


@dataclass(frozen=True)
class TuneStrategy:
    """Tries ``backends``, or those that suit the model and device where none are given, and takes the best."""

    backends: Sequence[Backend] | None = None
    error: float | None = None

    def __post_init__(self) -> None:
        if self.backends is not None and not isinstance(self.backends, Sequence):
            raise BadArgument(
                f"{type(self).__name__} was given {self.backends!r} as backends",
                remedy="give a list of backends of lamina.aitune.backend",
            )
        if self.error is not None and not is_above_zero(self.error):
            raise BadArgument(
                f"{type(self).__name__} was given the error {self.error!r}",
                remedy="give a number above 0: 1e-2",
            )
        if self.backends is not None and not self.backends:
            raise BadArgument(
                f"{type(self).__name__} was given no backend", remedy="give some, or None for those that suit"
            )
        wrong = [b for b in self.backends or () if not isinstance(b, Backend)]
        if wrong:
            raise BadArgument(
                f"{type(self).__name__} was given {wrong[0]!r} as a backend",
                remedy="give backends of lamina.aitune.backend, such as TorchInductorBackend()",
            )

        lossy = [b for b in self.backends or () if self.error is None and b.candidate().lossy]
        if lossy:
            raise BadArgument(
                f"{lossy[0]!r} computes in fewer bits than eager", remedy="allow an error too, such as error=1e-2"
            )

    metric = "latency"

    @property
    def objective(self) -> str:
        """What is wanted, as ``lamina.tune`` takes it."""
        return self.metric if self.error is None else f"{self.metric}, error<={self.error!r}"

    def run(self, model: Callable[..., Any], samples: Sequence[Sample], **given: Any) -> Result:
        """The result for a module; ``given`` are arguments of ``lamina.tune``. Raises as that does."""
        return tune(model, list(samples), objective=self.objective, candidates=self._candidates(), **given)

    def _candidates(self) -> tuple[Candidate, ...] | None:
        if self.backends is None:
            return None
        found = [backend.candidate() for backend in self.backends]
        return tuple(candidate for candidate in found if candidate.kind != "eager")  # eager is always there


@dataclass(frozen=True)
class MinLatency(TuneStrategy):
    """The shortest median time of a call."""


@dataclass(frozen=True)
class MaxThroughput(TuneStrategy):
    """The most rows per second."""

    metric = "throughput"


@dataclass(frozen=True)
class LatencyBudget(TuneStrategy):
    """The most rows per second among what takes ``latency_budget_ms`` milliseconds a call at most, eager included.

    Tuning raises ``BadArgument`` if nothing does.
    """

    latency_budget_ms: float = 0.0

    def __init__(
        self, latency_budget_ms: float, backends: Sequence[Backend] | None = None, error: float | None = None
    ) -> None:
        if not is_above_zero(latency_budget_ms):
            raise BadArgument(f"the latency budget is {latency_budget_ms!r} ms", remedy="give more than 0 ms")
        for name, value in (("latency_budget_ms", latency_budget_ms), ("backends", backends), ("error", error)):
            object.__setattr__(self, name, value)
        self.__post_init__()

    @property
    def objective(self) -> str:
        """What is wanted, as ``lamina.tune`` takes it."""
        error = "" if self.error is None else f", error<={self.error!r}"
        return f"throughput, latency<={self.latency_budget_ms!r}ms{error}"


@dataclass(frozen=True)
class OneBackend(TuneStrategy):
    """That backend, where it is faster than eager by ``min_speedup_threshold_percent``; else eager."""

    min_speedup_threshold_percent: float = 1.0

    def __init__(
        self, backend: Backend, min_speedup_threshold_percent: float = 1.0, error: float | None = None
    ) -> None:
        values = (("backends", (backend,)), ("error", error))
        for name, value in (*values, ("min_speedup_threshold_percent", min_speedup_threshold_percent)):
            object.__setattr__(self, name, value)
        self.__post_init__()

    def run(self, model: Callable[..., Any], samples: Sequence[Sample], **given: Any) -> Result:
        """The result for a module; ``given`` are arguments of ``lamina.tune``. Raises as that does."""
        return super().run(model, samples, threshold=self.min_speedup_threshold_percent / 100.0, **given)


@dataclass(frozen=True)
class FirstWins(TuneStrategy):
    """The first that is right and faster than eager, in the order that they are given in; later ones are not tried."""

    def run(self, model: Callable[..., Any], samples: Sequence[Sample], **given: Any) -> Result:
        """The result for a module; ``given`` are arguments of ``lamina.tune``. Raises as that does."""
        candidates = self._candidates()
        if candidates is None:
            candidates = candidates_for(Subject(model, tuple(samples)), lossy=self.error is not None)
        found = tune(model, list(samples), objective=self.objective, candidates=candidates[:1], **given)
        rows = [*found.rows]
        for candidate in candidates[1:]:
            if found.chosen.candidate != EAGER:
                break
            found = tune(model, list(samples), objective=self.objective, candidates=(candidate,), **given)
            rows += found.rows[1:]
        return Result(found.original, rows, parse_objective(self.objective), found.environment)


OneBackendStrategy = OneBackend
FirstWinsStrategy = FirstWins
MinLatencyStrategy = MinLatency
MaxThroughputStrategy = MaxThroughput
LatencyBudgetStrategy = LatencyBudget
