"""What tuning gives: the chosen model, all rows, other choices, and a file of them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lamina.base.tables import Table
from lamina.tuner.building import build
from lamina.tuner.choice import choose, pareto
from lamina.tuner.files import write_whole
from lamina.tuner.identity import device_facts, model_key, versions
from lamina.tuner.objective import Objective, parse_objective
from lamina.tuner.page import tuning_page, write_tuning_page
from lamina.tuner.plain import check_plain
from lamina.tuner.programs import Built, Subject
from lamina.tuner.samples import held_out
from lamina.tuner.settings import TorchSettings, ambient, changed
from lamina.tuner.table import rows_table, table_text
from lamina.tuner.values import Row
from lamina.tuner.verification import Allowed, Reference

__all__ = ["FORM", "Environment", "Result", "refusal"]

FORM = 1
"""Of saved files."""
_ONE_AT_A_TIME = threading.Lock()
"""Held while a choice is verified in the user's process: that draws random numbers, sets torch's default dtype, and
looks at the state of both before and after, which another thread's would disturb."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The device and the versions that rows were measured on."""

    device: Mapping[str, Any]
    versions: Mapping[str, str]

    @classmethod
    def here(cls, device: torch.device) -> Environment:
        """Those of this process."""
        return cls(device_facts(device, torch.get_num_threads()), versions())


class Result:
    """The rows of all candidates, and the one chosen by ``objective``.

    Printed, it is the table. ``model`` is the chosen candidate, built when it is first asked for. A result that is not
    ``trusted``, as one of a file, builds no candidate that runs code which the file names.
    """

    def __init__(
        self,
        original: Callable[..., Any],
        rows: Sequence[Row],
        objective: Objective,
        environment: Environment,
        trusted: bool = True,
    ) -> None:
        self.original, self.rows, self.objective, self.environment = original, tuple(rows), objective, environment
        self.trusted = trusted
        self.chosen = choose(self.rows, objective)
        self._model: Callable[..., Any] | None = None
        self.command = ""  # the command line that tuned, where there was one

    @property
    def model(self) -> Callable[..., Any]:
        """The model as the chosen candidate runs it; the original itself where that is eager. Raises ``BadArgument``
        where it would run code that only a file names.
        """
        if self._model is None:
            self._model = self.built().call
        return self._model

    def built(self) -> Built:
        """The chosen candidate, built anew. Raises as ``model`` does."""
        if not self.trusted:
            check_plain(self.chosen.candidate)
        return build(self.chosen.candidate, self.original)

    def pick(self, objective: str | Objective) -> Result:
        """The choice by another objective from the same rows; nothing runs again. Raises ``BadArgument``."""
        found = Result(self.original, self.rows, parse_objective(objective), self.environment, self.trusted)
        found.command = self.command
        return found

    def pareto(self) -> list[Row]:
        """The rows that no other is at least as good as in latency, memory and error, and better in one."""
        return pareto(self.rows)

    def table(self) -> Table:
        """A row for each candidate, the chosen one marked."""
        return rows_table(self.rows, self.chosen, f"tuned for {self.objective}: {self.chosen.candidate.name}")

    def __str__(self) -> str:
        return table_text(self.table())

    def __repr__(self) -> str:
        return f"Result({self.chosen.candidate.name!r} of {len(self.rows)} candidates, {self.objective})"

    def to_json(self) -> dict[str, Any]:
        """Plain data: the rows, the choice and where they were measured; no weights and no inputs."""
        return {
            "version": FORM,
            "model": model_key(self.original),
            "objective": str(self.objective),
            "chosen": self.chosen.candidate.name,
            "rows": [row.to_json() for row in self.rows],
            "device": dict(self.environment.device),
            "versions": dict(self.environment.versions),
        }

    def report(self, path: str | Path) -> Path:
        """Write a page that shows rows, timings and environment, and how to measure each row again; returns the path.

        Raises ``BadArgument`` for another ending than ``.html``.
        """
        environment = {"device": self.environment.device, "versions": self.environment.versions}
        text = tuning_page(self.rows, self.chosen, self.objective, environment, self.command)
        return write_tuning_page(path, text)

    def save(self, path: str | Path) -> None:
        """Write the result as JSON, for ``lamina.load``. Weights and inputs are not in it."""
        write_whole(path, json.dumps(self.to_json(), indent=1, sort_keys=True))


def refusal(result: Result, subject: Subject, allowed: Allowed = Allowed()) -> str:  # noqa: B008 - it is frozen
    """Why the chosen candidate, built in this process, is not right here; "" if it is."""
    candidate = result.chosen.candidate
    if candidate.kind == "eager":
        return ""
    limit = allowed if allowed.error is not None else Allowed(result.objective.error, allowed.drop)
    with _ONE_AT_A_TIME:
        before, settings = ambient(), TorchSettings.here()
        try:
            built = result.built()
            reason = Reference(subject, held_out(subject.samples)).verify(built, limit).reason or changed(before)
        except Exception as raised:
            return f"{type(raised).__name__}: {raised}"
        finally:
            settings.apply()
            torch.set_grad_enabled(before["grad_mode"])
    result._model = built.call
    return reason
