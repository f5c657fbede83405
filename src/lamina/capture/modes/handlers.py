"""Calls in a graph that may raise for their data where the user's program handles the exception.

A graph has no handlers: what it raises leaves the function, and what the program does about the exception is not done.
"""

from __future__ import annotations

import dis
import os
import re
from collections.abc import Iterable, Sequence
from types import CodeType

import torch
from torch.fx import GraphModule, Node

__all__ = ["caught_errors"]

_TORCH = os.path.dirname(torch.__file__) + os.sep
_PLACE = re.compile(r'File "([^"]+)", line (\d+)')
_RAISING = re.compile(
    r"linalg|cholesky|inverse|^inv$|svd|symeig|^eig|lstsq|geqrf|^lu|triangular_solve|_assert|^embedding|index|gather"
    r"|scatter|^take|one_hot|nll_loss|cross_entropy|bincount|multinomial|bernoulli|^binomial|ctc_loss|^getitem$|^setitem$"
    r"|masked_|repeat_interleave|histogram|searchsorted|bucketize"
)
"""Names of calls that look at values and refuse some."""


def caught_errors(gm: GraphModule, codes: Sequence[CodeType]) -> str:
    """Which call of ``gm``, traced from ``codes``, may raise what the program handles itself; "" if there is none."""
    lines = {(c.co_filename, n) for c in codes if not c.co_filename.startswith(_TORCH) for n in _handled_lines(c)}
    if not lines:
        return ""
    for node in gm.graph.nodes:
        if node.op in ("call_function", "call_method") and _may_raise(node) and not lines.isdisjoint(_places(node)):
            return f"{_name(node)} may raise an exception that the function handles"
    return ""


def _name(node: Node) -> str:
    return str(getattr(node.target, "__name__", node.target))


def _may_raise(node: Node) -> bool:
    name = _name(node)
    if name in ("getitem", "setitem"):  # numbers and slices are checked as the graph is captured
        index = node.args[1]
        return any(isinstance(i, Node) for i in (index if isinstance(index, (tuple, list)) else (index,)))
    return _RAISING.search(name) is not None


def _places(node: Node) -> Iterable[tuple[str, int]]:
    return ((file, int(line)) for file, line in _PLACE.findall(node.meta.get("stack_trace") or node.stack_trace or ""))


def _handled_lines(code: CodeType) -> set[int]:
    """Lines of a function within ``try`` statements that have an ``except`` or a ``finally``."""
    read = dis.Bytecode(code)
    instructions = [i for i in read if i.opname != "CACHE"]
    at = {i.offset: place for place, i in enumerate(instructions)}
    found: set[int] = set()
    for entry in getattr(read, "exception_entries", ()):
        place = at.get(entry.target)
        if place is None or [i.opname for i in instructions[place : place + 2]][:1] != ["PUSH_EXC_INFO"]:
            continue
        if instructions[place + 1].opname == "WITH_EXCEPT_START":
            continue
        within = (i for i in instructions if entry.start <= i.offset < entry.end)
        found.update(i.positions.lineno for i in within if i.positions is not None and i.positions.lineno is not None)
    return found
