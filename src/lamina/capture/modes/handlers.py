"""Calls in a graph that may raise for their data where the user's program handles the exception.

A graph has no handlers: what it raises leaves the function, and what the program does about the exception is not done.
"""

from __future__ import annotations

import dis
import inspect
import itertools
import os
import re
from collections.abc import Callable, Iterable, Sequence
from types import CodeType
from typing import Any

import torch
from torch.fx import GraphModule, Node

from lamina.base.lowering import is_programs_own
from lamina.base.write_conflicts import write_conflict
from lamina.capture.bytecode import instructions

__all__ = ["caught_errors", "looks_at_values"]

_TORCH = os.path.dirname(torch.__file__) + os.sep
_PLACE = re.compile(r'File "([^"]+)", line (\d+)')
_RAISING = re.compile(
    r"linalg|cholesky|inverse|^inv$|svd|symeig|^eig|lstsq|geqrf|^lu|triangular_solve|_assert|^embedding|index|gather"
    r"|scatter|^take|^put_|one_hot|nll_loss|cross_entropy|bincount|multinomial|bernoulli|^binomial|ctc_loss|^getitem$|^setitem$"
    r"|masked_|repeat_interleave|histogram|searchsorted|bucketize"
)
"""Names of calls that look at values and refuse some."""


def caught_errors(gm: GraphModule, codes: Sequence[CodeType], refused: Callable[[Node], bool]) -> str:
    """Which call of ``gm``, traced from ``codes``, may raise what the program handles itself; "" if there is none.

    ``refused`` tells of calls that eager refuses whatever their values are, and tracing takes.
    """
    own = [c for c in codes if not c.co_filename.startswith(_TORCH)]
    suppressed = any(map(_may_suppress, own))
    handled = {(c.co_filename, n) for c in own for n in _handled_lines(c, suppressed, _NONE)}
    if not handled:
        return ""
    of_data = {(c.co_filename, n) for c in own for n in _handled_lines(c, suppressed, _NOT_OF_DATA)}
    for node in gm.graph.nodes:
        if node.op not in ("call_function", "call_method") or handled.isdisjoint(_places(node)):
            continue
        if (_may_raise(node) and not of_data.isdisjoint(_places(node))) or refused(node):
            return f"{_name(node)} may raise an exception that the function handles"
    return ""


def _name(node: Node) -> str:
    return str(getattr(node.target, "__name__", node.target))


def _may_raise(node: Node) -> bool:
    name = _name(node)
    if name in ("getitem", "setitem"):  # numbers and slices are checked as the graph is captured
        index = node.args[1]
        return any(isinstance(i, Node) for i in (index if isinstance(index, (tuple, list)) else (index,)))
    return looks_at_values(node) or write_conflict(node) is not None


def looks_at_values(node: Node) -> bool:
    """Whether a call looks at the values of its operands, and refuses some, as far as its name tells."""
    return _RAISING.search(_name(node)) is not None or is_programs_own(node.target)


def _places(node: Node) -> Iterable[tuple[str, int]]:
    return ((file, int(line)) for file, line in _PLACE.findall(node.meta.get("stack_trace") or node.stack_trace or ""))


def _may_suppress(code: CodeType) -> bool:
    """Whether a function may be what ends an exception within a ``with`` statement of its caller."""
    if code.co_flags & inspect.CO_GENERATOR:
        handled = _handled_lines(code, True, _NOT_OF_DATA)
        yields = (i for i in instructions(code) if i.opname == "YIELD_VALUE")
        return any(i.positions is not None and i.positions.lineno in handled for i in yields)
    if code.co_name != "__exit__" or code.co_qualname == "_GeneratorContextManager.__exit__":
        return False
    read = instructions(code)
    returned = (before for before, i in itertools.pairwise(read) if i.opname == "RETURN_VALUE")
    return any(before.opname != "LOAD_CONST" or before.argval not in (None, False) for before in returned) or any(
        i.opname == "RETURN_CONST" and i.argval not in (None, False) for i in read
    )


def _handled_lines(code: CodeType, suppressed: bool, others: frozenset[str]) -> set[int]:
    """Lines of a function within ``try`` statements that have an ``except``, not only of what is named in ``others``.

    If exceptions may be ``suppressed`` by a context manager, those within ``with`` statements as well. And those that
    have a ``finally``, in the rest of a function after a graph break: what was done before the break is done, and that
    statement undoes it. In a function captured from its begin nothing is done yet where its graph raises.
    """
    counted = (suppressed, code.co_name.startswith("torch_dynamo_resume_in"), others)
    entries = list(getattr(dis.Bytecode(code), "exception_entries", ()))
    if not entries:
        return set()
    read = instructions(code)
    found: set[int] = set()
    for entry in entries:
        if _is_handled(entry, entries, read, *counted):
            within = (i for i in read if entry.start <= i.offset < entry.end)
            found.update(i.positions.lineno for i in within if i.positions is not None and i.positions.lineno)
    return found


def _is_handled(
    entry: Any,
    entries: list[Any],
    read: Sequence[dis.Instruction],
    suppressed: bool,
    finished: bool,
    others: frozenset[str],
) -> bool:
    """Whether what is raised under ``entry`` reaches an ``except``, not one of exceptions named in ``others``.

    ``suppressed``: or the end of a ``with`` statement; ``finished``: or a ``finally``, which raises it again.

    The table has one entry at most for each instruction: a handler that raises again is itself under the next one.
    """
    for _ in entries:
        first, second, *rest = (i for i in read if i.offset >= entry.target)
        of_with = second.opname == "WITH_EXCEPT_START"
        ends = suppressed if of_with else finished or _may_end([second, *rest], others)
        if ends and first.opname == "PUSH_EXC_INFO":
            return True
        entry = next((e for e in entries if e.start <= entry.target < e.end), None)
        if entry is None:
            return False
    return False


def _may_end(handler: list[dis.Instruction], others: frozenset[str]) -> bool:
    """Whether a handler may end an exception that is none of the ``others``: a ``finally`` always raises it again."""
    while True:
        names: list[Any] = []
        for instruction in handler:
            if instruction.opname in ("RERAISE", "POP_EXCEPT", "CHECK_EXC_MATCH"):
                break
            if instruction.opname.startswith("LOAD_"):
                names.append(instruction.argval)
        else:
            return True
        if instruction.opname != "CHECK_EXC_MATCH":
            return instruction.opname == "POP_EXCEPT"
        if not names or not others.issuperset(names):
            return True
        jump = handler[handler.index(instruction) + 1]
        handler = [i for i in handler if i.offset >= jump.argval]


_NONE: frozenset[str] = frozenset()
_NOT_OF_DATA = frozenset(("NotImplementedError", "ImportError", "AttributeError", "KeyError", "NameError", "TypeError"))
"""Exceptions that calls of torch do not raise for the values of their operands."""
