"""What tuning gives: the chosen model, all rows, other choices, and a file that brings the choice back."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from lamina.errors import BadArgument
from lamina.tuner.building import build
from lamina.tuner.candidates import device_of
from lamina.tuner.choice import choose, pareto
from lamina.tuner.files import write_whole
from lamina.tuner.identity import device_facts, model_key, versions
from lamina.tuner.objective import Objective, parse_objective
from lamina.tuner.page import tuning_page, write_tuning_page
from lamina.tuner.programs import Subject
from lamina.tuner.samples import Sample, held_out, samples_of
from lamina.tuner.settings import TorchSettings, ambient, changed
from lamina.tuner.table import rows_table, table_text
from lamina.tuner.values import CHOOSABLE, Row
from lamina.tuner.verification import Allowed, Reference

__all__ = ["Environment", "Result", "load", "refusal", "restored"]

_VERSION = 1
"""Form of saved files."""
_ONE_AT_A_TIME = threading.Lock()
"""Verification draws random numbers and looks at what is left of them, which another thread's would disturb."""


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

    Printed, it is the table. ``model`` is the chosen candidate, built when it is first asked for.
    """

    def __init__(
        self, original: Callable[..., Any], rows: Sequence[Row], objective: Objective, environment: Environment
    ) -> None:
        self.original, self.rows, self.objective, self.environment = original, tuple(rows), objective, environment
        self.chosen = choose(self.rows, objective)
        self._model: Callable[..., Any] | None = None
        self.command = ""  # the command line that tuned, where there was one

    @property
    def model(self) -> Callable[..., Any]:
        """The model as the chosen candidate runs it; the original itself where that is eager."""
        if self._model is None:
            self._model = build(self.chosen.candidate, self.original).call
        return self._model

    def pick(self, objective: str | Objective) -> Result:
        """The choice by another objective from the same rows; nothing runs again. Raises ``BadArgument``."""
        found = Result(self.original, self.rows, parse_objective(objective), self.environment)
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
            "version": _VERSION,
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


def load(path: str | Path, model: Callable[..., Any], inputs: Any = None) -> Result:
    """The result that was saved, for a model of the same code and layout of weights, on a machine of the same kind.

    With ``inputs``, as ``lamina.tune`` takes them, the chosen candidate is built and verified against eager. Raises
    ``BadArgument`` for another model, another device, a file that is none of these, and a choice that is not right.
    """
    samples = None if inputs is None else samples_of(inputs)
    return restored(_read(Path(path)), model, str(path), samples)


def restored(
    data: Mapping[str, Any], model: Callable[..., Any], path: str, samples: tuple[Sample, ...] | None = None
) -> Result:
    """The result that ``Result.to_json`` gave, from the file ``path``; else as ``load``."""
    subject = Subject(model, (Sample(),) if samples is None else samples)
    environment = Environment.here(device_of(subject))
    try:
        objective = parse_objective(data["objective"])
        saved = Environment(dict(data["device"]), dict(data["versions"]))
        rows = [Row.from_json(row) for row in data["rows"]]
        flaw = next(filter(None, (row.flaw() for row in rows)), "")
        key, named = data["model"], [row for row in rows if row.candidate.name == data["chosen"]]
    except (KeyError, TypeError, ValueError, AttributeError, BadArgument) as error:
        flaw = f"{type(error).__name__}: {error}"
    if flaw or not named or named[0].verdict not in CHOOSABLE:
        raise BadArgument(f"{path} is damaged: {flaw or 'its choice is none of its rows'}", remedy="tune again")
    other = [
        f"{name} is {environment.device.get(name)!r} here and was {value!r}"
        for name, value in saved.device.items()
        if environment.device.get(name) != value
    ]
    if other:
        raise BadArgument(
            f"{path} was measured on another device: {'; '.join(other)}", remedy="tune again on this machine"
        )
    if key != model_key(model):
        raise BadArgument(f"{path} is of another model, or of one with other weights", remedy="tune this one")
    result = Result(model, rows, objective, saved)
    result.chosen = named[0]
    if samples is not None:
        wrong = refusal(result, subject)
        if wrong:
            raise BadArgument(f"{result.chosen.candidate.name} of {path}: {wrong}", remedy="tune again")
    return result


def _read(path: Path) -> dict[str, Any]:
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        known = data["version"] == _VERSION
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadArgument(f"{path} is no saved result: {error}", remedy="give a file that Result.save wrote") from error
    if not known:
        raise BadArgument(f"{path} has the form {data['version']}, not {_VERSION}", remedy="tune again")
    return data


def refusal(result: Result, subject: Subject, allowed: Allowed = Allowed()) -> str:  # noqa: B008 - it is frozen
    """Why the chosen candidate, built in this process, is not right here; "" if it is."""
    candidate = result.chosen.candidate
    if candidate.kind == "eager":
        return ""
    before, settings = ambient(), TorchSettings.here()
    limit = allowed if allowed.error is not None else Allowed(result.objective.error, allowed.drop)
    try:
        with _ONE_AT_A_TIME:
            built = build(candidate, result.original)
            reason = Reference(subject, held_out(subject.samples)).verify(built, limit).reason or changed(before)
    except Exception as raised:
        return f"{type(raised).__name__}: {raised}"
    finally:
        settings.apply()
        torch.set_grad_enabled(before["grad_mode"])
    result._model = built.call
    return reason
