"""Values that a kernel keeps in its own memory, for each point of some axes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from lamina.codegen.cpp.bounds import Bounds
from lamina.codegen.cpp.expressions import atomic, element, index_text, scalar_type, vector_type
from lamina.codegen.cpp.nest_analysis import NestAnalysis
from lamina.codegen.cpp.operands import Operands
from lamina.codegen.cpp.text import Scope

__all__ = ["Array", "Arrays"]

_STACK_BYTES = 16384
"""Arrays up to this many bytes live on the stack of the thread."""


@dataclass(frozen=True, slots=True)
class Array:
    """A value kept in memory of the kernel: for each point of ``axes`` (loop order), counted from ``begins``.

    ``kind`` is the element type in memory, ``begins`` the axes' first values where only a block of them is held.
    """

    pointer: str
    axes: tuple[str, ...]
    extents: tuple[str, ...]
    kind: str
    begins: tuple[tuple[str, str], ...] = ()

    def at(self) -> str:
        """Address of the current point."""
        text = ""
        begins = dict(self.begins)
        for axis, extent in zip(self.axes, self.extents, strict=True):
            place = f"{axis} - {begins[axis]}" if axis in begins else axis
            text = place if not text else f"({text}) * {extent} + {place}"
        return f"{self.pointer} + {text}" if text else self.pointer

    def count(self) -> str:
        """Number of elements, as C++ text."""
        return " * ".join(self.extents) or "1"


class Arrays:
    """The arrays at hand in the code being written, by the value that each keeps."""

    def __init__(self, facts: NestAnalysis, bounds: Bounds, operands: Operands) -> None:
        self.facts, self.bounds, self.operands = facts, bounds, operands
        self._kept: dict[str, Array] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._kept

    def __getitem__(self, name: str) -> Array:
        return self._kept[name]

    def __setitem__(self, name: str, array: Array) -> None:
        self._kept[name] = array

    def all(self) -> list[Array]:
        """The arrays, in the order in which their values were first kept."""
        return list(self._kept.values())

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Write code behind which values that are first kept in it are out of scope."""
        before = frozenset(self._kept)
        yield
        self._kept = {name: array for name, array in self._kept.items() if name in before}

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Write another function: behind it, all values are kept where they were before."""
        before = dict(self._kept)
        yield
        self._kept = before

    def allocate(self, scope: Scope, name: str, axes: tuple[str, ...], kind: str) -> Array:
        """Memory for a value over ``axes``: on the stack where it is small, else in scratch memory."""
        extents = []
        begins = []
        for axis in axes:
            if self.bounds.is_block(axis):
                begins.append((axis, self.bounds.of(axis)[0]))
                extents.append(str(self.facts.tiles[axis]))
            else:
                extents.append(index_text(self.facts.extent[axis], {}))
        extents = [atomic(e) for e in extents]
        made = Array(name, axes, tuple(extents), "flag" if kind == "bool" else kind, tuple(begins))
        if all(e.isdigit() for e in extents):
            count = 1
            for e in extents:
                count *= int(e)
            if scope.stack + count * 8 <= _STACK_BYTES:
                scope.stack += count * 8
                scope.text.add(f"alignas(64) {kind} {name}[{max(count, 1)}];")
                return made
            scope.text.add(f"{kind}* const {name} = {scope.memory.take(kind, str(count))};")
        else:
            scope.text.add(f"{kind}* const {name} = {scope.memory.take(kind, made.count())};")
        return made

    def load(self, name: str) -> str:
        """The statement that defines a value as what its array keeps at the current point."""
        dtype, array = self.facts.dtype[name], self._kept[name]
        if self.operands.is_vector(name):
            return f"const {vector_type(dtype)} {name} = load_{array.kind}({array.at()}, n);  // kept"
        return f"const {scalar_type(dtype)} {name} = load_{array.kind}({array.at()});  // kept"

    def store(self, name: str) -> str:
        """The statement that puts a value into its array."""
        kind, array = element(self.facts.dtype[name]), self._kept[name]
        if self.operands.is_vector(name):
            return f"store_{kind}({array.at()}, {self.operands.value(name, True)}, n);  // keep {name}"
        return f"store_{kind}({array.at()}, {self.operands.value(name, False)});  // keep {name}"
