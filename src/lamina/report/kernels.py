"""Kernels of a report: which equations each line of a kernel's text computes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lamina.codegen.origins import cpp_nests
from lamina.ir.loops import Load, Nest, Store, defined
from lamina.ir.plan import Kernel, KernelCall
from lamina.report.loops import LoopText
from lamina.report.texts import Text, Texts

__all__ = ["KernelLines", "add_kernel", "computes", "kernel_lines", "link_call"]

_DEFINED = re.compile(r"\b(v\d+)(?:_\w+)?(?:\[[^\]]*\])? (?:[-+*/|&^]|<<|>>)?= ")
_VALUE = re.compile(r"\b(v\d+)(?:_\w+)?\b")
_BUFFER = re.compile(r"\bb(\d+)_?\b")
_STORES = re.compile(r"\bstore\w*\(|\batomic\w*\(|\bdrain\(|\bsettle\(")
_PLAIN = re.compile(
    r"^\s*(?:[{}()\[\];,\s]*|//.*|#.*|\"\"\".*|import .*|from .*|return\b.*|@.*|else\b.*|\}\)*.*"
    r"|def .*|extern .*|static .*|int64 failed = 0;|\w+\* const b\d+ = .*)$"
)
"""Lines that compute nothing: brackets, comments, imports, declarations of functions and of their arguments."""


@dataclass(frozen=True, slots=True)
class KernelLines:
    """What the lines (from 1) of a kernel's text compute.

    ``equations`` are pairs of nest and equation; ``steers`` are lines that only say how a nest is iterated, with the
    number of the nest.
    """

    equations: Mapping[int, frozenset[tuple[int, int]]]
    steers: Mapping[int, int]


def computes(line: str) -> bool:
    """Whether a line of a kernel's text does part of its work: not brackets, comments, imports and declarations."""
    return not _PLAIN.match(line)


def kernel_lines(lines: Sequence[str], kernel: Kernel) -> KernelLines:
    """Read the names of values and buffers in a kernel's text, C++ or Triton."""
    nests = list(cpp_nests(list(lines))) if not any(line.startswith("@triton") for line in lines) else [0] * len(lines)
    tables = [_Names.of(nest) for nest in kernel.nests]
    equations: dict[int, frozenset[tuple[int, int]]] = {}
    steers: dict[int, int] = {}
    for number, (line, nest) in enumerate(zip(lines, nests, strict=True), 1):
        if not computes(line):
            continue
        code = line.partition("  // ")[0]
        order = [nest, *(k for k in range(len(tables)) if k != nest)] if nest < len(tables) else range(len(tables))
        found = next(((k, own) for k in order if (own := tables[k].computed(code))), None)
        if found:
            equations[number] = frozenset((found[0], index) for index in found[1])
        elif tables:
            steers[number] = min(nest, len(tables) - 1)
    return KernelLines(equations, steers)


@dataclass(frozen=True, slots=True)
class _Names:
    """Where the values of a nest are defined, its buffers written and read."""

    values: Mapping[str, int]
    stores: Mapping[int, Sequence[tuple[int, str]]]
    loads: Mapping[int, Sequence[int]]

    @classmethod
    def of(cls, nest: Nest) -> _Names:
        values: dict[str, int] = {}
        stores: dict[int, list[tuple[int, str]]] = {}
        loads: dict[int, list[int]] = {}
        for index, eqn in enumerate(nest.body):
            values.update(dict.fromkeys(defined(eqn), index))
            match = re.fullmatch(r"b(\d+)", getattr(eqn, "buffer", ""))
            if match and isinstance(eqn, Store):
                stores.setdefault(int(match[1]), []).append((index, eqn.value))
            elif match and isinstance(eqn, Load):
                loads.setdefault(int(match[1]), []).append(index)
        return cls(values, stores, loads)

    def computed(self, line: str) -> set[int]:
        """Equations of a line: what it defines, else what it stores, else what it mentions."""
        target = _DEFINED.search(line)
        if target and target[1] in self.values and not _STORES.search(line):
            return {self.values[target[1]]}
        mentioned = {v for v in _VALUE.findall(line) if v in self.values}
        buffers = {int(b) for b in _BUFFER.findall(line)}
        written = [(index, value) for b in buffers for index, value in self.stores.get(b, ())]
        exact = {index for index, value in written if value in mentioned}
        if exact:
            return exact
        if written and _STORES.search(line):
            return {index for index, _ in written}
        if mentioned:
            return {self.values[v] for v in mentioned}
        return {index for b in buffers for index in self.loads.get(b, ())} | {index for index, _ in written}


def add_kernel(texts: Texts, key: str, title: str, language: str, source: str, kernel: Kernel) -> KernelLines:
    """The text of one kernel, and what its lines compute."""
    lines = source.splitlines()
    found = kernel_lines(lines, kernel)
    texts.add(Text(key, "kernel", title, language, tuple(lines)))
    return found


def link_call(texts: Texts, key: str, lines: KernelLines, kernel: Kernel, call: KernelCall, loops: LoopText) -> None:
    """Link a kernel's lines to the equations of the program that one call of it computes."""
    places: list[list[int]] = []
    buffers = {f"b{number}": name for number, name in enumerate(call.buffers)}
    for own, called in zip(kernel.nests, call.nests, strict=False):
        matched = loops.matched(called)
        same = len(own.body) == len(called.body)
        places.append(matched if same else [matched[i] if i >= 0 else 0 for i in _counterparts(own, called, buffers)])
    for line, pairs in lines.equations.items():
        for nest, index in pairs:
            if nest < len(places) and index < len(places[nest]) and places[nest][index]:
                texts.links.add(loops.key, places[nest][index], key, line)
    for line, nest in lines.steers.items():
        header = loops.headers.get(call.nests[nest].name, 0) if nest < len(call.nests) else 0
        found = [header] if header else _first(places, nest)
        for number in found:
            texts.links.add(loops.key, number, key, line)


def _counterparts(own: Nest, called: Nest, buffers: Mapping[str, str]) -> list[int]:
    """For each equation of a kernel's nest the one of its call's that it is a copy of (-1: none).

    Where scheduling unrolled an axis, copies have the name of the value and a suffix; values are numbered in the order
    in which the call's nest defines them.
    """
    values = [index for index, eqn in enumerate(called.body) for _ in defined(eqn)]
    stores = {eqn.buffer: index for index, eqn in enumerate(called.body) if isinstance(eqn, Store)}
    found = []
    for eqn in own.body:
        match = _VALUE.match(next(iter(defined(eqn)), ""))
        number = int(match[1][1:]) if match else -1
        if 0 <= number < len(values):
            found.append(values[number])
        else:
            found.append(stores.get(buffers.get(getattr(eqn, "buffer", ""), ""), -1))
    return found


def _first(places: Sequence[Iterable[int]], nest: int) -> list[int]:
    return [next((line for line in places[nest] if line), 0)] if nest < len(places) and any(places[nest]) else []
