"""Saved results: read as plain data, refused for another model or device, and without leave nothing of them runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lamina.base.paths import path_of
from lamina.base.user_warnings import warn_user
from lamina.errors import BadArgument
from lamina.tuner.candidates import device_of, lacking
from lamina.tuner.compiled import before_compiled
from lamina.tuner.identity import model_key
from lamina.tuner.objective import Objective, parse_objective
from lamina.tuner.plain import check_plain
from lamina.tuner.programs import Subject
from lamina.tuner.result import FORM, Environment, Result, refusal
from lamina.tuner.samples import Sample, samples_of
from lamina.tuner.values import CHOOSABLE, Candidate, Row, parts_in

__all__ = ["load", "restored"]

_ALWAYS = ("python", "cuda", "lamina", "torch", "triton")
"""What the speed of every choice may depend on."""


def load(path: str | Path, model: Callable[..., Any], inputs: Any = None, *, allow_code: bool = False) -> Result:
    """The result that was saved, for a model of the same code and layout of weights, on a machine of the same kind.

    With ``inputs``, as ``lamina.tune`` takes them, the chosen candidate is built and verified against eager. A choice
    that names code, as candidates of your own do, is taken with ``allow_code`` only. Where other versions are installed
    than those that it was measured with, a warning says so.

    Raises ``BadArgument`` for another model, another device, a file that is none of these, a choice that names code or
    needs a package that is not installed, and one that is not right.
    """
    samples = None if inputs is None else samples_of(inputs)
    return restored(_read(path_of(path, "the file to load")), model, str(path), samples, allow_code)


def restored(
    data: Mapping[str, Any],
    model: Callable[..., Any],
    path: str,
    samples: tuple[Sample, ...] | None = None,
    allow_code: bool = False,
) -> Result:
    """The result that ``Result.to_json`` gave, from the file ``path``; else as ``load``."""
    model, _ = before_compiled(model)
    subject = Subject(model, (Sample(),) if samples is None else samples)
    environment = Environment.here(device_of(subject))
    saved, objective, rows, chosen, key = _parsed(data, path)
    _check_place(saved, environment, path)
    if key != model_key(model):
        raise BadArgument(f"{path} is of another model, or of one with other weights", remedy="tune this one")
    if not allow_code:
        check_plain(chosen.candidate)
    missing = lacking(chosen.candidate)
    if missing:
        raise BadArgument(f"{path} chose {chosen.candidate.name}, which needs what is not installed", remedy=missing)
    other = _other_versions(saved.versions, environment.versions, chosen.candidate)
    if other:
        more = "" if samples is not None else ", or load it with inputs, which verifies the choice"
        warn_user(f"{path} was measured with other versions: {'; '.join(other)}", f"tune again{more}")
    result = Result(model, rows, objective, saved, allow_code)
    result.chosen = chosen
    if samples is not None:
        wrong = refusal(result, subject)
        if wrong:
            raise BadArgument(f"{chosen.candidate.name} of {path}: {wrong}", remedy="tune again")
    return result


def _parsed(data: Mapping[str, Any], path: str) -> tuple[Environment, Objective, list[Row], Row, Any]:
    """Where it was measured, the objective, the rows, the chosen one, and the key of the model."""
    try:
        objective = parse_objective(data["objective"])
        saved = Environment(dict(data["device"]), dict(data["versions"]))
        rows = [Row.from_json(row) for row in data["rows"]]
        flaw = next(filter(None, (row.flaw() for row in rows)), "")
        key, named = data["model"], [row for row in rows if row.candidate.name == data["chosen"]]
    except (KeyError, TypeError, ValueError, AttributeError, BadArgument) as error:
        flaw = f"{type(error).__name__}: {error}"
    if not flaw and len(named) != 1:
        flaw = f"its choice is {'more than one' if named else 'none'} of its rows"
    if flaw or named[0].verdict not in CHOOSABLE:
        raise BadArgument(f"{path} is damaged: {flaw or 'its choice is not right'}", remedy="tune again")
    return saved, objective, rows, named[0], key


def _check_place(saved: Environment, here: Environment, path: str) -> None:
    other = [
        f"{name} is {here.device.get(name)!r} here and was {value!r}"
        for name, value in saved.device.items()
        if here.device.get(name) != value
    ]
    if other:
        raise BadArgument(
            f"{path} was measured on another device: {'; '.join(other)}", remedy="tune again on this machine"
        )


def _other_versions(saved: Mapping[str, str], here: Mapping[str, str], chosen: Candidate) -> list[str]:
    """The versions that differ, in words, of what any choice depends on and of the backend of this one."""
    kinds = [chosen, *(part for _, part in parts_in(chosen))]
    names = {*_ALWAYS, *(c.kind for c in kinds), *(str(dict(c.settings).get("backend", "")) for c in kinds)}

    def of(versions: Mapping[str, str], name: str) -> str:
        return ".".join(versions.get(name, "none").split(".")[: 2 if name == "python" else None])

    told = sorted(n for n in names if n and of(saved, n) != of(here, n))
    return [f"{name} is {of(here, name)} here and was {of(saved, name)}" for name in told]


def _read(path: Path) -> dict[str, Any]:
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        known = data["version"] == FORM
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        told = f"{path} is no saved result and no package: {error}"
        raise BadArgument(told, remedy="give a file that Result.save or lamina.package wrote") from error
    if not known:
        raise BadArgument(f"{path} has the form {data['version']}, not {FORM}", remedy="tune again")
    return data
