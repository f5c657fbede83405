"""What a compiled version of a function rests on, as sentences: made when they are asked for, whichever front end."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from weakref import ref

import torch

from lamina.base.plurals import counted

__all__ = ["CODE", "HOOKS", "PARAMETERS", "SIZES", "Condition", "Conditions", "spoken", "state_sentence", "whole_path"]

CODE, HOOKS, PARAMETERS, SIZES = "classes and functions", "hooks", "parameters and buffers", "marks of sizes"
"""What a condition may be about that hardly anybody wants to read one by one."""
_GLOBAL = re.compile(r"\bG\['(\w+)'\]")
_LOCAL = re.compile(r"\bL\[['\"](\w+)['\"]\]")
_MODULE = re.compile(r"\b__import_(\w+)")
_BUILTIN = re.compile(r"\b__builtins_dict__\w*\['(\w+)'\]")
_ENTRY = re.compile(r"\.__dict__\['(\w+)'\]")
_CONTAINED = re.compile(r"\._(?:modules|parameters|buffers)\['(\w+)'\]")
_CLASS_ENTRY = re.compile(r"\bvars\((\w+)\)\['(\w+)'\]")
_OUTER = re.compile(r"\b(?:globals\(\)|builtins)\['(\w+)'\]")


@dataclass(frozen=True, slots=True)
class Condition:
    """``what`` must hold for a call; ``line`` is the place (file:line) that asked, "" where that is not known.

    ``about`` is one of the constants of this file for what belongs to Python's and torch's own work, else "".
    """

    what: str
    line: str = ""
    about: str = ""

    def __str__(self) -> str:
        return f"{self.what}  # {self.line}" if self.line else self.what

    def data(self) -> dict[str, str]:
        """It as values that JSON knows."""
        return {"what": self.what, "line": self.line, "about": self.about}


class Conditions:
    """Those of one version of ``function``; ``owner`` knows them, and is not kept alive.

    A front end says by ``_conditions`` and ``_raw`` what they are.
    """

    def __init__(self, function: str, owner: Any) -> None:
        self.function = function
        self._owner = ref(owner)
        self._known: tuple[int, tuple[Condition, ...]] = -1, ()
        """Sentences that were asked for, and how many parts the version had then."""

    def _conditions(self, owner: Any) -> Iterable[Condition]:
        raise NotImplementedError

    def _raw(self, owner: Any) -> Iterable[str]:
        raise NotImplementedError

    def _parts(self, owner: Any) -> int:
        """How many parts the version has; where that changes its conditions do."""
        return 1

    def conditions(self) -> tuple[Condition, ...]:
        """Each condition, once; none where the version is gone."""
        owner = self._owner()
        if owner is None:
            return ()
        if self._known[0] != (parts := self._parts(owner)):
            self._known = parts, tuple(dict.fromkeys(self._conditions(owner)))
        return self._known[1]

    def raw(self) -> tuple[str, ...]:
        """The front end's own text, line by line; none where the version is gone."""
        owner = self._owner()
        return () if owner is None else tuple(self._raw(owner))

    @property
    def summary(self) -> str:
        """How many there are."""
        if self._owner() is None:
            return f"guards of {self.function}"
        return f"{counted(len(self.conditions()), 'guard')} of {self.function}"

    def lines(self, most: bool = True) -> list[str]:
        """A line for each condition; without ``most``, of those about Python's and torch's own work only a count."""
        found = self.conditions()
        if not found:
            return ["the compiled version is gone"]
        if most:
            return [str(one) for one in found]
        rest = Counter(one.about for one in found if one.about)
        told = [str(one) for one in found if not one.about]
        if rest:
            told.append(
                f"and {rest.total()} more: {', '.join(f'{count} about {name}' for name, count in rest.items())}"
            )
        return told

    def __str__(self) -> str:
        return "\n".join((f"# {self.function}", *self.lines())) + "\n"

    def files(self) -> dict[str, str]:
        """The conditions as text."""
        return {".txt": str(self)}


def spoken(text: str) -> str:
    """A front end's ``text`` of a place as a user would write it."""
    text = _OUTER.sub(r"\1", _GLOBAL.sub(r"\1", _LOCAL.sub(r"\1", text)))
    text = _MODULE.sub(lambda found: found[1].replace("_dot_", "."), _BUILTIN.sub(r"\1", text))
    text = _CLASS_ENTRY.sub(r"\1.\2", _ENTRY.sub(r".\1", text))
    return _CONTAINED.sub(lambda found: f"[{found[1]}]" if found[1].isdigit() else f".{found[1]}", text)


def state_sentence(grad: bool, autocast: bool, threads: int) -> str:
    """What the state of torch must be."""
    return (
        f"torch {'records' if grad else 'does not record'} gradients, autocast is {'on' if autocast else 'off'}, "
        f"{counted(threads, 'thread')}; its default dtype and its settings of precision and determinism as they were"
    )


def whole_path(short: str, likely: str = "") -> str:
    """The path of a file of which ``short`` is the end, with a line number behind it or not; ``short`` if not known.

    ``likely`` is tried first. Torch leaves out what a path has in common with that of torch's own folder.
    """
    name, colon, line = short.partition(":")
    if name.startswith(("/", "<")) or not name:
        return short
    found = likely
    if not _ends_in(likely, name):
        try:
            found = _shortened_by_torch(name)
        except LookupError:
            found = name
    return f"{found}{colon}{line}"


@lru_cache(maxsize=256)
def _shortened_by_torch(name: str) -> str:
    """The one file that torch calls ``name``; raises ``LookupError``, so that nothing is kept, without one."""
    base = Path(torch.__file__).parent
    *above, root = base, *base.parents
    found = [str(folder / name) for folder in above if _in_common(folder / name, base) == folder]
    # Of what has only the root in common it leaves out the first letter as well.
    first, *rest = Path(name).parts
    found += [str(Path(top, *rest)) for top in root.iterdir() if top.name[1:] == first]
    found = [path for path in found if os.path.isfile(path)]
    if len(found) != 1:
        raise LookupError(name)
    return found[0]


def _in_common(path: Path, base: Path) -> Path:
    return Path(os.path.commonpath((path, base)))


def _ends_in(path: str, name: str) -> bool:
    """Whether ``name`` is the last parts of ``path``; torch leaves a letter out below the root directory."""
    return name in (path, path[2:]) or path.endswith(os.sep + name)
