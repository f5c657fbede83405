"""Operands whose fast axis is not the vector axis, turned a tile at a time so that the loops read along rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lamina.codegen.cpp.addresses import Addresses
from lamina.codegen.cpp.arrays import Array, Arrays
from lamina.codegen.cpp.expressions import SHORT, index_text
from lamina.codegen.cpp.nest_analysis import NestAnalysis
from lamina.codegen.cpp.text import Text
from lamina.ir.index import Axis, Loaded
from lamina.ir.loops import Load

__all__ = ["Transposes"]


@dataclass(frozen=True, slots=True)
class Transposes:
    """Writes transposed copies of tiles, and keeps them as the arrays of what is loaded."""

    facts: NestAnalysis
    dtypes: Mapping[str, str]
    addresses: Addresses
    arrays: Arrays

    def write(self, text: Text) -> None:
        """Turn the tiles of a nest with two tiled axes."""
        facts = self.facts
        slow, fast = facts.tiles
        atoms = {a: Axis(a, facts.extent[a]) for a in (slow, fast)}
        for eqn in facts.body:
            if not isinstance(eqn, Load) or eqn.mask is not None:
                continue
            expr = eqn.index[0]
            pitch = expr.coefficient(atoms[fast])
            if pitch is None or pitch == 0 or pitch == 1 or expr.coefficient(atoms[slow]) != 1:
                continue
            if any(isinstance(a, Loaded) for a in expr.atoms()):
                continue
            kind = SHORT[self.dtypes[eqn.buffer]]
            name, rows, columns = f"{eqn.out}_turned", facts.tiles[slow], facts.tiles[fast]
            begins = ((slow, f"{slow}_begin"), (fast, f"{fast}_begin"))
            text.add(f"alignas(64) {kind} {name}[{rows * columns}];")
            source = self.addresses.at(eqn.buffer, expr, dict(begins))
            counts = f"{slow}_end - {slow}_begin, {fast}_end - {fast}_begin"
            text.add(f"transpose({name}, {columns}, {source}, {index_text(pitch, {})}, {counts});")
            self.arrays[eqn.out] = Array(name, (slow, fast), (str(rows), str(columns)), kind, begins)
