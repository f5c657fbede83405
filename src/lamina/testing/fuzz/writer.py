"""Writes the body of a function statement by statement, running each as it goes, eagerly and in double precision."""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lamina.base.reference import in_double
from lamina.testing.fuzz.values import attempt, backward, loss, pause, sample

__all__ = ["NAMES", "Writer"]

MOST = 4096
"""Elements of a tensor."""

NAMES: dict[str, Any] = {
    "np": np,
    "torch": torch,
    "nn": nn,
    "F": nn.functional,
    "attempt": attempt,
    "backward": backward,
    "loss": loss,
    "pause": pause,
    "sample": sample,
}
"""What every program can name."""

_HOLE = re.compile(r"\{([a-z]+)(\d*)\}")

_LITERALS = {
    "c": ("0", "1", "2", "3", "-1", "-2"),
    "p": ("1", "2", "3"),
    "x": ("0", "1", "-1", "-2"),
    "q": ("0.5", "2.0", "-1.5", "0.25", "3.0"),
    "dt": (
        "torch.float32",
        "torch.float64",
        "torch.bfloat16",
        "torch.float16",
        "torch.int32",
        "torch.int64",
        "torch.bool",
    ),
    "ft": ("torch.float32", "torch.float64", "torch.bfloat16", "torch.float16"),
}
"""Holes that literals fill."""

_INTS = (
    "{0}",
    "{0}",
    "{0}",
    "-{0}",
    "{0} // 2",
    "{0} % 3",
    "{0} + 1",
    "{0} * 2",
    "{0} // 2 + 2",
    "abs({0})",
    "{0} - 2",
    "round({0} * 7, -1)",
    "divmod({0}, 2)[1]",
)
_FLOATS = (
    "{0}",
    "{0}",
    "-{0}",
    "{0} * 2",
    "{0} + 0.5",
    "abs({0})",
    "{0} / 2",
    "{0} % 1",
    "{0} // 1",
    "round({0}, -1)",
    "len(str({0})) / 2",
    "len(f'{{{0}}}') / 2",
)


class Writer:
    """Keeps the variables of a function while it is written, with the values that they have in the first call.

    A template is a statement with holes: ``{f}`` is a floating tensor, ``{f2}`` maybe another one. What a statement's
    holes mean is in ``fill``. One that raises is left out, unless errors are wanted.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.env: dict[str, Any] = dict(NAMES)
        self.wide: dict[str, Any] = dict(NAMES)
        self.lines: list[str] = []
        self.names: list[str] = []
        self.count = 0
        self.fixed: set[str] = set()
        """Tensors that must not be written: leaves that require a gradient."""

    def run(self, statement: str) -> bool:
        """Run one statement in both spaces; False if it raises or makes something too large."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exec(statement, self.env)
                with in_double():
                    exec(statement, self.wide)
        except Exception:
            return False
        return True

    def add_argument(self, name: str, expression: str) -> bool:
        """A variable that the function is given."""
        if not self.run(f"{name} = {expression}"):
            return False
        self.names.append(name)
        return True

    def add(self, template: str, depth: int = 0) -> bool:
        """Fill a template and append it, as ``vN = ...`` if it is an expression."""
        filled = self.fill(template)
        if filled is None:
            return False
        target = ""
        statement = filled
        if filled.startswith("= "):
            target = f"v{self.count}"
            statement = f"{target} {filled}"
        if not self.run(statement):
            return False
        if target:
            value = self.env[target]
            if any(t.numel() > MOST for t in _tensors(value)) or not _known(value):
                return False
            self.names.append(target)
            self.count += 1
        self.lines.append("    " * depth + statement)
        return True

    def fill(self, template: str) -> str | None:
        """The template with its holes filled, None if there is nothing that fits.

        t any tensor, f floating, e floating and exact, i integers, l int64, b truth values, m floating matrix, v
        floating of one axis or more, w floating that may be written, g floating that requires a gradient; n an
        integer, k one that is a variable, s a float; the rest are literals.
        """
        chosen: dict[str, str] = {}
        for hole in _HOLE.finditer(template):
            key = hole.group(0)
            if key in chosen:
                continue
            value = self._choose(hole.group(1))
            if value is None:
                return None
            chosen[key] = value
        return _HOLE.sub(lambda hole: chosen[hole.group(0)], template)

    def _choose(self, kind: str) -> str | None:
        if kind in _LITERALS:
            return self.rng.choice(_LITERALS[kind])
        if kind == "n":
            return self._number(int, _INTS, ("1", "2", "-1"))
        if kind == "s":
            return self._number(float, _FLOATS, _LITERALS["q"])
        if kind == "k":
            found = [n for n in self.names if type(self.env[n]) is int]
        else:
            fits = _FITS[kind]
            found = [n for n in self.names if isinstance(self.env[n], Tensor) and fits(self, n, self.env[n])]
        if not found:
            return None
        # Later variables depend on earlier ones: long chains are worth more than many short ones.
        return found[-1] if self.rng.random() < 0.35 else self.rng.choice(found)

    def _number(self, kind: type, forms: tuple[str, ...], literals: tuple[str, ...]) -> str:
        found = [n for n in self.names if type(self.env[n]) is kind]
        if kind is int and self.rng.random() < 0.15:
            sized = [n for n in self.names if isinstance(self.env[n], Tensor) and self.env[n].dim()]
            found += [f"{self.rng.choice(sized)}.shape[0]"] if sized else []
        if not found or self.rng.random() < 0.1:
            return self.rng.choice(literals)
        form = self.rng.choice(forms).format(self.rng.choice(found))
        return form if form.isidentifier() else f"({form})"

    def any_number(self) -> str:
        """An expression of a number among the arguments; "" if there is none."""
        found = [n for n in self.names if type(self.env[n]) in (int, float)]
        if not found:
            return ""
        name = self.rng.choice(found)
        return self.rng.choice(_INTS if type(self.env[name]) is int else _FLOATS).format(name)

    def exact(self, name: str) -> bool:
        """Whether the variable has the value that exact arithmetic gives it."""
        here, there = self.env[name], self.wide.get(name)
        if not isinstance(there, Tensor) or here.shape != there.shape:
            return False
        return torch.equal(here.detach().to(there.dtype), there.detach())


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    items: Iterable[Any] = (
        value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    )
    return [t for item in items for t in _tensors(item)]


def _known(value: Any) -> bool:
    return isinstance(value, (Tensor, int, float, list, tuple, dict)) and value != [] and type(value) is not torch.Size


def _floating(tensor: Tensor) -> bool:
    return tensor.is_floating_point()


_FITS: dict[str, Callable[[Writer, str, Tensor], bool]] = {
    "t": lambda w, n, t: True,
    "f": lambda w, n, t: _floating(t),
    "e": lambda w, n, t: _floating(t) and w.exact(n),
    "i": lambda w, n, t: t.dtype in (torch.int32, torch.int64),
    "l": lambda w, n, t: t.dtype == torch.int64,
    "b": lambda w, n, t: t.dtype == torch.bool,
    "m": lambda w, n, t: _floating(t) and t.dim() == 2,
    "v": lambda w, n, t: _floating(t) and t.dim() >= 1,
    "w": lambda w, n, t: _floating(t) and n not in w.fixed,
    "g": lambda w, n, t: _floating(t) and t.requires_grad,
}
