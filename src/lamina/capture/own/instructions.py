"""Bytecode of CPython 3.11 to 3.13 as one set of instructions, with jumps by place and names by slot."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Any

__all__ = ["Handler", "Program", "UnknownInstruction", "decode", "slots_of"]

_VERSION = sys.version_info[:2]
_AFTER_EXHAUSTION = {(3, 11): 0, (3, 12): 1, (3, 13): 2}.get(_VERSION, 2)
"""Instructions that a loop passes over when its iterator is exhausted: END_FOR, and in 3.13 the POP_TOP after it."""


class UnknownInstruction(Exception):
    """A function has an instruction that is not translated; Python is to run it."""


@dataclass(frozen=True, slots=True)
class Handler:
    """A row of the exception table: instructions from ``start`` to before ``end`` lead to ``target``.

    The stack is cut to ``depth``; with ``keeps_place`` the place of the instruction is pushed before the exception.
    """

    start: int
    end: int
    target: int
    depth: int
    keeps_place: bool


@dataclass(frozen=True, slots=True)
class Program:
    """A code object decoded: pairs of an operation's name and its argument, the line of each, and its handlers.

    ``places`` names the variables by slot: locals, cells and free variables.
    """

    code: CodeType
    steps: tuple[tuple[str, Any], ...]
    lines: tuple[int, ...]
    handlers: tuple[Handler, ...]
    places: tuple[str, ...]

    def handler(self, place: int) -> Handler | None:
        """What catches an exception of the instruction at ``place``."""
        return next((h for h in self.handlers if h.start <= place < h.end), None)


def slots_of(code: CodeType) -> tuple[str, ...]:
    """Names of the variables of a frame by slot; a cell that is an argument, too, has one slot."""
    cells = tuple(name for name in code.co_cellvars if name not in code.co_varnames)
    return (*code.co_varnames, *cells, *code.co_freevars)


_PLAIN = frozenset(
    [
        "POP_TOP",
        "PUSH_NULL",
        "UNARY_NEGATIVE",
        "UNARY_NOT",
        "UNARY_INVERT",
        "BINARY_SUBSCR",
        "STORE_SUBSCR",
        "DELETE_SUBSCR",
        "BINARY_SLICE",
        "STORE_SLICE",
        "GET_ITER",
        "GET_YIELD_FROM_ITER",
        "RETURN_VALUE",
        "RETURN_GENERATOR",
        "LOAD_BUILD_CLASS",
        "PUSH_EXC_INFO",
        "POP_EXCEPT",
        "CHECK_EXC_MATCH",
        "BEFORE_WITH",
        "WITH_EXCEPT_START",
        "MATCH_MAPPING",
        "MATCH_SEQUENCE",
        "MATCH_KEYS",
        "GET_LEN",
        "LIST_TO_TUPLE",
        "LOAD_ASSERTION_ERROR",
        "TO_BOOL",
        "FORMAT_SIMPLE",
        "FORMAT_WITH_SPEC",
        "END_SEND",
        "CLEANUP_THROW",
        "UNARY_POSITIVE",
    ]
)
"""Operations without an argument, the same everywhere they exist."""

_COUNTED = frozenset(
    [
        "COPY",
        "SWAP",
        "BUILD_TUPLE",
        "BUILD_LIST",
        "BUILD_SET",
        "BUILD_MAP",
        "BUILD_STRING",
        "BUILD_SLICE",
        "LIST_EXTEND",
        "SET_UPDATE",
        "DICT_UPDATE",
        "DICT_MERGE",
        "LIST_APPEND",
        "SET_ADD",
        "MAP_ADD",
        "UNPACK_SEQUENCE",
        "UNPACK_EX",
        "CALL",
        "CALL_KW",
        "CALL_FUNCTION_EX",
        "RAISE_VARARGS",
        "RERAISE",
        "MATCH_CLASS",
        "IS_OP",
        "CONTAINS_OP",
        "SET_FUNCTION_ATTRIBUTE",
        "BUILD_CONST_KEY_MAP",
        "CONVERT_VALUE",
        "MAKE_FUNCTION",
        "FORMAT_VALUE",
        "YIELD_VALUE",
    ]
)
"""Operations whose argument is a number, the same everywhere they exist."""

_NAMED = frozenset(["STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_NAME", "IMPORT_FROM"])
"""Operations whose argument is a name."""

_SLOTS = frozenset(
    [
        "LOAD_FAST",
        "STORE_FAST",
        "DELETE_FAST",
        "LOAD_CLOSURE",
        "LOAD_DEREF",
        "STORE_DEREF",
        "DELETE_DEREF",
        "MAKE_CELL",
        "LOAD_FAST_CHECK",
        "LOAD_FAST_AND_CLEAR",
    ]
)
"""Operations on a variable."""

_NOTHING = frozenset(["NOP", "RESUME", "PRECALL", "CACHE", "COPY_FREE_VARS", "EXTENDED_ARG", "END_FOR"])

_JUMPS = {
    "JUMP_FORWARD": "JUMP",
    "JUMP_BACKWARD": "JUMP",
    "JUMP_BACKWARD_NO_INTERRUPT": "JUMP",
    "JUMP_IF_TRUE_OR_POP": "JUMP_IF_TRUE_OR_POP",
    "JUMP_IF_FALSE_OR_POP": "JUMP_IF_FALSE_OR_POP",
    "FOR_ITER": "FOR_ITER",
    "SEND": "SEND",
    **{
        f"POP_JUMP{way}_IF_{test}": f"JUMP_IF_{test}"
        for way in ("", "_FORWARD", "_BACKWARD")
        for test in ("TRUE", "FALSE", "NONE", "NOT_NONE")
    },
}

_INTRINSICS = {3: "STOP_ITERATION_ERROR", 5: "UNARY_POSITIVE", 6: "LIST_TO_TUPLE"}
"""Arguments of CALL_INTRINSIC_1 (3.12 and newer)."""

_PAIRS = {
    "LOAD_FAST_LOAD_FAST": ("LOAD_FAST", "LOAD_FAST"),
    "STORE_FAST_LOAD_FAST": ("STORE_FAST", "LOAD_FAST"),
    "STORE_FAST_STORE_FAST": ("STORE_FAST", "STORE_FAST"),
}
"""Two instructions in one (3.13)."""


def _global(found: dis.Instruction) -> list[tuple[str, Any]]:
    load = ("LOAD_GLOBAL", found.argval)
    return [("PUSH_NULL", None), load] if (found.arg or 0) & 1 else [load]


def _attribute(found: dis.Instruction) -> list[tuple[str, Any]]:
    as_method = _VERSION >= (3, 12) and (found.arg or 0) & 1
    return [("LOAD_METHOD" if as_method else "LOAD_ATTR", found.argval)]


def _super_attribute(found: dis.Instruction) -> list[tuple[str, Any]]:
    return [("LOAD_SUPER", (found.argval, bool((found.arg or 0) & 1), bool((found.arg or 0) & 2)))]


def _comparison(found: dis.Instruction) -> list[tuple[str, Any]]:
    arg = found.arg or 0
    if _VERSION < (3, 12):
        return [("COMPARE_OP", dis.cmp_op[arg])]
    if _VERSION < (3, 13):
        return [("COMPARE_OP", dis.cmp_op[arg >> 4])]
    steps: list[tuple[str, Any]] = [("COMPARE_OP", dis.cmp_op[arg >> 5])]
    return [*steps, ("TO_BOOL", None)] if arg & 16 else steps


def _operation(found: dis.Instruction) -> list[tuple[str, Any]]:
    return [("BINARY_OP", found.argrepr)]


def _intrinsic(found: dis.Instruction) -> list[tuple[str, Any]]:
    name = _INTRINSICS.get(found.arg or 0)
    if name is None:
        raise UnknownInstruction(f"CALL_INTRINSIC_1 {found.arg}")
    return [(name, None)]


_SPECIAL: dict[str, Callable[[dis.Instruction], list[tuple[str, Any]]]] = {
    "LOAD_GLOBAL": _global,
    "LOAD_ATTR": _attribute,
    "LOAD_METHOD": lambda found: [("LOAD_METHOD", found.argval)],
    "LOAD_SUPER_ATTR": _super_attribute,
    "COMPARE_OP": _comparison,
    "BINARY_OP": _operation,
    "CALL_INTRINSIC_1": _intrinsic,
    "RETURN_CONST": lambda found: [("LOAD_CONST", found.argval), ("RETURN_VALUE", None)],
    "BINARY_SLICE": lambda found: [("BUILD_SLICE", 2), ("BINARY_SUBSCR", None)],
    "STORE_SLICE": lambda found: [("BUILD_SLICE", 2), ("STORE_SUBSCR", None)],
}


def _translated(found: dis.Instruction, code: CodeType, slots: dict[str, int]) -> list[tuple[str, Any]]:
    """The instructions that stand for one of CPython's; jumps still lead to offsets."""
    name = found.opname
    if name in _SPECIAL:
        return _SPECIAL[name](found)
    if name in _NOTHING:
        return []
    if name in _SLOTS:
        return [(name, slots[found.argval])]
    if name in _PLAIN:
        return [(name, None)]
    if name in _COUNTED:
        return [(name, found.arg or 0)]
    if name in ("LOAD_CONST", "KW_NAMES"):
        return [(name, code.co_consts[found.arg or 0])]
    if name in _NAMED:
        return [(name, found.argval)]
    if name in _JUMPS:
        return [(_JUMPS[name], found.argval)]
    if name in _PAIRS:
        first, second = found.argval
        return [(_PAIRS[name][0], slots[first]), (_PAIRS[name][1], slots[second])]
    raise UnknownInstruction(name)


def decode(code: CodeType) -> Program:
    """The instructions of ``code``. Raises ``UnknownInstruction``."""
    places = slots_of(code)
    slots = {name: place for place, name in enumerate(places)}
    steps: list[tuple[str, Any]] = []
    lines: list[int] = []
    at: dict[int, int] = {}
    order: list[int] = []
    line = code.co_firstlineno
    for found in dis.get_instructions(code):
        line = (found.positions.lineno if found.positions else None) or line
        at[found.offset] = len(steps)
        order.append(found.offset)
        for step in _translated(found, code, slots):
            steps.append(step)
            lines.append(line)
    at[len(code.co_code)] = len(steps)
    final = tuple(_with_place(step, at, order) for step in steps)
    return Program(code, final, tuple(lines), _handlers(code, at, order), places)


def _with_place(step: tuple[str, Any], at: dict[int, int], order: list[int]) -> tuple[str, Any]:
    name, arg = step
    if name not in _JUMPS.values():
        return step
    if name == "FOR_ITER" and _AFTER_EXHAUSTION:
        arg = order[order.index(arg) + _AFTER_EXHAUSTION]
    return name, at[arg]


def _handlers(code: CodeType, at: dict[int, int], order: list[int]) -> tuple[Handler, ...]:
    """The exception table, which is a sequence of variable-length numbers (Objects/exception_handling_notes.txt)."""
    table = iter(code.co_exceptiontable)

    def number() -> int:
        byte = next(table)
        value = byte & 63
        while byte & 64:
            byte = next(table)
            value = value << 6 | byte & 63
        return value

    def place(offset: int) -> int:
        return at[next((o for o in order if o >= offset), len(code.co_code))]

    rows: list[Handler] = []
    while True:
        try:
            start = number() * 2
        except StopIteration:
            return tuple(rows)
        end = start + number() * 2
        target, packed = number() * 2, number()
        rows.append(Handler(place(start), place(end), place(target), packed >> 1, bool(packed & 1)))
