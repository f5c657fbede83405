"""Program text: literals, and indented lines with a source map from its lines to where they come from and back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

import torch

__all__ = ["SourceMap", "Writer", "literal", "one_line", "targets_text", "tuple_text"]

Origin = tuple[str, ...]

_WIDTH = 110
"""Columns that a line of names has at most."""


@dataclass(frozen=True, slots=True)
class SourceMap:
    """For each line of a text (line 1 first), the names it comes from: those of FX nodes, or any other."""

    origins: tuple[Origin, ...]

    def origin(self, line: int) -> Origin:
        """Names that line number ``line`` (from 1) comes from; empty for punctuation and lines outside the text."""
        return self.origins[line - 1] if 1 <= line <= len(self.origins) else ()

    def lines(self, name: str) -> tuple[int, ...]:
        """Numbers (from 1) of the lines that come from ``name``."""
        return tuple(number for number, origin in enumerate(self.origins, 1) if name in origin)


_LONGEST = 500
"""Characters of another's text that are written into a program's comments."""


def one_line(text: str) -> str:
    """Text of others, such as names of rules and files, as it may stand in a comment of a program in any language.

    What ends a line in Python or C++, continues one, closes a comment or controls a terminal becomes a space or a sign
    that looks like it.
    """
    plain = "".join(c if c.isprintable() else " " for c in text[:_LONGEST])
    return plain.replace("\\", "/").replace("*/", "* /").replace("??/", "? ?/").replace('"', "'")


class Writer:
    """Collects lines at the present depth. Linear in the length of the text.

    >>> w = Writer()
    >>> w.line("def f():")
    >>> with w.indent():
    ...     w.line("return 1", ("add",))
    >>> print(w.text(), end="")
    def f():
        return 1
    """

    def __init__(self, step: str = "    ") -> None:
        self._step, self._prefix = step, ""
        self._lines: list[str] = []
        self._origins: list[Origin] = []

    def __len__(self) -> int:
        return len(self._lines)

    def line(self, text: str = "", origin: Origin = ()) -> None:
        """Add one line at the present depth (text with line breaks: each of them)."""
        for part in text.split("\n"):
            self._lines.append(self._prefix + part if part else "")
            self._origins.append(origin)

    def extend(self, other: Writer) -> None:
        """Add all lines of another writer at the present depth."""
        for part, origin in zip(other._lines, other._origins, strict=True):
            self._lines.append(self._prefix + part if part else "")
            self._origins.append(origin)

    @contextmanager
    def indent(self, opening: str = "", closing: str = "") -> Iterator[None]:
        """One step deeper, between the lines ``opening`` and ``closing`` where they are given."""
        if opening:
            self.line(opening)
        before, self._prefix = self._prefix, self._prefix + self._step
        try:
            yield
        finally:
            self._prefix = before
        if closing:
            self.line(closing)

    def unpack(self, names: Sequence[str], value: str) -> None:
        """Assign the items of ``value`` to ``names``, in as many lines as that takes."""
        if len(line := f"{targets_text(names)} = {value}") <= _WIDTH:
            self.line(line)
            return
        with self.indent("(", f") = {value}"):
            for text in wrap(", ".join(names) + ",", _WIDTH - 5):
                self.line(text)

    def text(self) -> str:
        """All lines, each ended by a line break."""
        return "\n".join([*self._lines, ""]) if self._lines else ""

    def source_map(self) -> SourceMap:
        """Where each line comes from."""
        return SourceMap(tuple(self._origins))


def tuple_text(items: Iterable[str]) -> str:
    """A tuple display of the given source texts."""
    parts = list(items)
    return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"


def targets_text(names: Sequence[str]) -> str:
    """Names as the left side of an assignment that unpacks."""
    return tuple_text(names) if len(names) == 1 else ", ".join(names)


def literal(value: Any) -> str:
    """Source text of a plain value: a number, string, dtype, device, layout or memory format. ``TypeError`` for others.

    It needs nothing but the builtins and ``torch``.
    """
    if value is None or isinstance(value, bool | int | str):
        return repr(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else f'float("{value}")'
    if isinstance(value, complex):
        return f"complex({literal(value.real)}, {literal(value.imag)})"
    if isinstance(value, torch.device):
        return f'torch.device("{value}")'
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return str(value)
    raise TypeError(f"no source text for a value of type {type(value).__name__}")
