"""Candidates that a file may name without leave: recipes of ours, with settings that name no code and no files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from lamina.backends.registry import backend_names
from lamina.errors import BadArgument
from lamina.options import MODES, Options
from lamina.tuner.building import DTYPES, KINDS
from lamina.tuner.values import Candidate, parts_in

__all__ = ["check_plain", "what_it_brings"]

_NUMBERS = (bool, int, float, type(None))


def check_plain(candidate: Candidate) -> None:
    """Raise ``BadArgument`` for a candidate that runs code, or takes files, which its settings name."""
    brings = what_it_brings(candidate)
    if brings:
        raise BadArgument(
            f"the saved candidate {candidate.name!r} {brings}",
            remedy="pass allow_code=True if you trust whoever wrote the file, or tune again",
        )


def what_it_brings(candidate: Candidate) -> str:
    """What of a candidate is neither a recipe of Lamina's nor a number or known name, in words; "" if all of it is."""
    if candidate.kind == "mix":
        return next(filter(None, (what_it_brings(part) for _, part in parts_in(candidate))), "")
    if candidate.kind == "import" or candidate.kind not in KINDS:
        return f"runs code: {dict(candidate.settings).get('target', candidate.kind)}"
    wrong = [name for name, value in candidate.settings.items() if not _is_plain(candidate.kind, name, value)]
    return (
        f"has the setting {wrong[0]} = {candidate.settings[wrong[0]]!r}, which may name code or files" if wrong else ""
    )


def _is_plain(kind: str, name: str, value: Any) -> bool:
    if isinstance(value, _NUMBERS):
        return True
    if name == "options" and isinstance(value, Mapping):
        ours = {f.name: f.metadata["choices"] for f in fields(Options)} if kind == "lamina" else {}
        return all(isinstance(v, _NUMBERS) or v in ours.get(option, ()) for option, v in value.items())
    if not isinstance(value, str):
        return False
    if name == "config":  # a class of TorchAO's without arguments
        return kind == "torchao" and value.isidentifier() and value.endswith("Config")
    known = {"mode": MODES, "dtype": ("", *DTYPES), "compiled": ("", "lamina", "torch")}
    return value in (backend_names() if name == "backend" and kind == "lamina" else known.get(name, ()))
