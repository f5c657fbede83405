"""Arguments of ``lamina.tune`` that cannot be right, said before anything runs."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lamina.errors import BadArgument
from lamina.options import Options
from lamina.runtime.cache import cache_root
from lamina.tuner.values import EAGER, Candidate

__all__ = ["checked", "checked_lists", "journal_path", "seconds_of"]

_UNITS = {"": 1.0, "s": 1.0, "min": 60.0, "h": 3600.0}


def checked(model: Any, functions: dict[str, Any], numbers: dict[str, Any], shares: dict[str, Any]) -> None:
    """Raise ``BadArgument`` unless a model can be called, ``functions`` too where they are given, ``numbers`` are above
    0 and ``shares`` not below 0.
    """
    if not callable(model) or isinstance(model, type):
        what = f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
        raise BadArgument(f"lamina.tune was given {what}", remedy="pass a module, a function or a pipeline object")
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise BadArgument(f"{name} is {function!r}", remedy=f"give a function as {name}")
    for name, number in (numbers | shares).items():
        least = {"memory_limit": 1.0}.get(name, 0.0 if name in shares else math.ulp(0.0))
        most = sys.maxsize if name == "memory_limit" else math.inf
        known = isinstance(number, (int, float)) and not isinstance(number, bool)
        if number is None or (known and least <= number <= most):
            continue
        wanted = "of bytes" if most < math.inf else "of 0 or more" if least == 0 else "above 0"
        raise BadArgument(f"{name} is {number!r}", remedy=f"give a number {wanted}")


def checked_lists(candidates: Any, modules: Any) -> None:
    """Raise ``BadArgument`` unless ``candidates`` are such, of plain data, and ``modules`` names or a truth value."""
    wrong = [c for c in candidates or () if not isinstance(c, Candidate)] if isinstance(candidates, Sequence) else []
    if isinstance(candidates, str) or wrong or not isinstance(candidates, (Sequence, type(None))):
        raise BadArgument(
            f"candidates hold {wrong[0] if wrong else candidates!r}",
            remedy='give a list such as [Candidate("lamina", "lamina")], from lamina.tuner.values',
        )
    for candidate in candidates or ():
        try:
            json.dumps(candidate.to_json())
        except (TypeError, ValueError) as error:
            raise BadArgument(
                f"the settings of candidate {candidate.name!r} are no plain data: {error}",
                remedy="give numbers, texts, lists and mappings of these: they go to another process and into a file",
            ) from error
    names = [EAGER.name, *(candidate.name for candidate in candidates or ())]
    twice = next((name for number, name in enumerate(names) if name in names[:number]), None)
    if twice is not None:
        raise BadArgument(
            f"two candidates are called {twice!r}",
            remedy="give each a name of its own, which rows and files know it by; eager is always tried",
        )
    if isinstance(modules, str):
        raise BadArgument(f"modules is the text {modules!r}", remedy=f"give a list of names, such as [{modules!r}]")
    if not isinstance(modules, (bool, Sequence, type(None))):
        raise BadArgument(f"modules is {modules!r}", remedy="give a list of names, True, False or None")


def seconds_of(budget: str | float) -> float:
    """A time in seconds from a number or text such as "10min". Raises ``BadArgument``."""
    found = re.fullmatch(r"\s*([0-9.]+)\s*(s|min|h|)\s*", str(budget))
    try:
        value = float(found.group(1)) * _UNITS[found.group(2)] if found else -1.0
    except ValueError:
        value = -1.0
    if value <= 0:
        raise BadArgument(f"the budget is {budget!r}", remedy='give seconds, or text such as "90s", "10min" or "2h"')
    return value


def journal_path(journal: str | Path | bool) -> Path | None:
    """The file of rows; None for none. Raises ``BadArgument`` for a folder."""
    if journal is False:
        return None
    if journal is True:
        return cache_root(Options.from_environment().cache_dir) / "tuner" / "journal.jsonl"
    if not isinstance(journal, (str, Path)):
        raise BadArgument(f"the journal is {journal!r}", remedy="give the path of a file, True or False")
    path = Path(journal)
    if path.is_dir():
        raise BadArgument(f"the journal {path} is a folder", remedy="name a file, which need not be there yet")
    return path
