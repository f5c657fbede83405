"""Texts of steps that several programs have, each printed once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from lamina.base.text import Writer
from lamina.ir.expressions import atoms_of, step_exprs
from lamina.ir.index import Atom
from lamina.ir.loops import LibraryCall, Nest, Source

__all__ = ["Printing", "StepTexts"]


class Printing(Protocol):
    """What a printer of steps goes by: where it writes, names that are taken, and what sizes and axes are called.

    ``plain``: all of them are called what they are.
    """

    out: Writer
    names: set[str]
    variables: dict[Atom, str]
    size_names: set[str]
    plain: bool


class StepTexts:
    """What was printed of programs of the same ``sources``; they may not change and are kept alive.

    A step of a later program is written as it was if it is the very object, is called the same beside the same sizes,
    and all sizes and axes are called what they are.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = sources
        self.source_lines: list[str] = []
        self._kept: dict[tuple[int, str, frozenset[str]], tuple[Nest | LibraryCall, Writer, dict[Atom, str]]] = {}
        self._atoms: dict[int, tuple[Nest | LibraryCall, set[Atom]]] = {}

    def atoms(self, step: Nest | LibraryCall) -> set[Atom]:
        """Every atom of a step's expressions."""
        found = self._atoms.get(id(step))
        if found is None:
            found = self._atoms[id(step)] = step, atoms_of(step_exprs(step))
        return found[1]

    def print(self, printer: Printing, step: Nest | LibraryCall, name: str, define: Callable[[str], None]) -> None:
        """Have ``printer`` ``define`` a step that is called ``name``, or write what it wrote of it before."""
        if not printer.plain:
            define(name)
            return
        key = (id(step), name, frozenset(printer.size_names))
        found = self._kept.get(key)
        if found is None:
            outer, printer.out = printer.out, Writer()
            try:
                define(name)
            finally:
                part, printer.out = printer.out, outer
            if printer.plain:
                self._kept[key] = (step, part, printer.variables)
        else:
            _, part, printer.variables = found
            printer.names.update(printer.variables.values())
        printer.out.extend(part)
