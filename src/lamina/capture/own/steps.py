"""What each instruction does to a frame: variables, attributes, operators and jumps."""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import CellType
from typing import Any

from lamina.capture.own.building import BUILDING_STEPS
from lamina.capture.own.frame import MISSING, NULL, Frame, Step
from lamina.capture.own.world import World

__all__ = ["DATA_STEPS"]


def _pop_top(machine: Any, frame: Frame, arg: Any) -> None:
    frame.stack.pop()


def _push_null(machine: Any, frame: Frame, arg: Any) -> None:
    frame.stack.append(NULL)


def _copy(machine: Any, frame: Frame, arg: int) -> None:
    frame.stack.append(frame.stack[-arg])


def _swap(machine: Any, frame: Frame, arg: int) -> None:
    stack = frame.stack
    stack[-1], stack[-arg] = stack[-arg], stack[-1]


def _load_const(machine: Any, frame: Frame, arg: Any) -> None:
    frame.stack.append(arg)


def _load_fast(machine: Any, frame: Frame, arg: int) -> None:
    value = frame.variables[arg]
    if value is MISSING:
        name = frame.program.places[arg]
        raise UnboundLocalError(f"cannot access local variable '{name}' where it is not associated with a value")
    frame.stack.append(value)


def _load_raw(machine: Any, frame: Frame, arg: int) -> None:
    frame.stack.append(frame.variables[arg])


def _load_and_clear(machine: Any, frame: Frame, arg: int) -> None:
    frame.stack.append(frame.variables[arg])
    frame.variables[arg] = MISSING


def _store_fast(machine: Any, frame: Frame, arg: int) -> None:
    frame.variables[arg] = frame.stack.pop()


def _delete_fast(machine: Any, frame: Frame, arg: int) -> None:
    if frame.variables[arg] is MISSING:
        name = frame.program.places[arg]
        raise UnboundLocalError(f"cannot access local variable '{name}' where it is not associated with a value")
    frame.variables[arg] = MISSING


def _make_cell(machine: Any, frame: Frame, arg: int) -> None:
    value = frame.variables[arg]
    frame.variables[arg] = machine.world.made(CellType() if value is MISSING else CellType(value))


def _empty_cell(frame: Frame, arg: int) -> Exception:
    name = frame.program.places[arg]
    if name in frame.code.co_freevars:
        return NameError(
            f"cannot access free variable '{name}' where it is not associated with a value in enclosing scope",
            name=name,
        )
    return UnboundLocalError(f"cannot access local variable '{name}' where it is not associated with a value")


def _load_deref(machine: Any, frame: Frame, arg: int) -> None:
    try:
        value = machine.world.cell(frame.variables[arg])
    except ValueError:
        value = MISSING
    if value is MISSING:
        raise _empty_cell(frame, arg)
    frame.stack.append(value)


def _set_cell(cell: CellType, value: Any) -> None:
    cell.cell_contents = value


def _clear_cell(cell: CellType) -> None:
    del cell.cell_contents


def _store_deref(machine: Any, frame: Frame, arg: int) -> None:
    machine.world.change(_set_cell, frame.variables[arg], frame.stack.pop())


def _delete_deref(machine: Any, frame: Frame, arg: int) -> None:
    try:
        empty = machine.world.cell(frame.variables[arg]) is MISSING
    except ValueError:
        empty = True
    if empty:
        raise _empty_cell(frame, arg)
    machine.world.change(_clear_cell, frame.variables[arg])


def _load_global(machine: Any, frame: Frame, arg: str) -> None:
    value = machine.world.variable(frame.function, arg)
    if value is MISSING:
        raise NameError(f"name '{arg}' is not defined", name=arg)
    frame.stack.append(value)


def _store_global(machine: Any, frame: Frame, arg: str) -> None:
    machine.world.change(operator.setitem, frame.function.__globals__, arg, frame.stack.pop())


def _delete_global(machine: Any, frame: Frame, arg: str) -> None:
    if arg not in frame.function.__globals__:
        raise NameError(f"name '{arg}' is not defined", name=arg)
    machine.world.change(operator.delitem, frame.function.__globals__, arg)


def _load_attr(machine: Any, frame: Frame, arg: str) -> None:
    frame.stack[-1] = machine.world.attribute(frame.stack[-1], arg)


def _load_method(machine: Any, frame: Frame, arg: str) -> None:
    found = machine.world.attribute(frame.stack[-1], arg)
    frame.stack[-1] = NULL
    frame.stack.append(found)


def _load_super(machine: Any, frame: Frame, arg: tuple[str, bool, bool]) -> None:
    name, as_method, _ = arg
    kind, owner, itself = frame.stack[-3:]
    del frame.stack[-3:]
    made = machine.world.call(machine.caller(frame), kind, (owner, itself), {})
    found = machine.world.attribute(made, name)
    frame.stack.extend((NULL, found) if as_method else (found,))


def _store_attr(machine: Any, frame: Frame, arg: str) -> None:
    value, owner = frame.stack[-2:]
    machine.world.change(setattr, owner, arg, value)
    del frame.stack[-2:]


def _delete_attr(machine: Any, frame: Frame, arg: str) -> None:
    machine.world.change(delattr, frame.stack[-1], arg)
    frame.stack.pop()


_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "@": operator.matmul,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "+=": operator.iadd,
    "-=": operator.isub,
    "*=": operator.imul,
    "/=": operator.itruediv,
    "//=": operator.ifloordiv,
    "%=": operator.imod,
    "**=": operator.ipow,
    "@=": operator.imatmul,
    "<<=": operator.ilshift,
    ">>=": operator.irshift,
    "&=": operator.iand,
    "|=": operator.ior,
    "^=": operator.ixor,
}
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
}
_UNARY: dict[str, Callable[[Any], Any]] = {
    "UNARY_NEGATIVE": operator.neg,
    "UNARY_POSITIVE": operator.pos,
    "UNARY_INVERT": operator.invert,
    "UNARY_NOT": operator.not_,
    "TO_BOOL": operator.truth,
    "GET_ITER": iter,
    "GET_YIELD_FROM_ITER": iter,
}


def _binary(machine: Any, frame: Frame, arg: str) -> None:
    right = frame.stack.pop()
    function = _BINARY[arg]
    left = frame.stack[-1]
    writes = arg[-1] == "="
    frame.stack[-1] = (machine.world.change if writes else machine.world.operate)(function, left, right)


def _compare(machine: Any, frame: Frame, arg: str) -> None:
    right = frame.stack.pop()
    frame.stack[-1] = machine.world.operate(_COMPARE[arg], frame.stack[-1], right)


def _unary(function: Callable[[Any], Any]) -> Step:
    def step(machine: Any, frame: Frame, arg: Any) -> None:
        frame.stack[-1] = machine.world.operate(function, frame.stack[-1])

    return step


def _is(machine: Any, frame: Frame, arg: int) -> None:
    right = frame.stack.pop()
    frame.stack[-1] = machine.world.operate(operator.is_not if arg else operator.is_, frame.stack[-1], right)


def _contains(machine: Any, frame: Frame, arg: int) -> None:
    container = frame.stack.pop()
    found = machine.world.operate(operator.contains, container, frame.stack[-1])
    frame.stack[-1] = not found if arg else found


def _subscript(machine: Any, frame: Frame, arg: Any) -> None:
    key = frame.stack.pop()
    frame.stack[-1] = machine.world.operate(operator.getitem, frame.stack[-1], key)


def _store_subscript(machine: Any, frame: Frame, arg: Any) -> None:
    value, container, key = frame.stack[-3:]
    machine.world.change(operator.setitem, container, key, value)
    del frame.stack[-3:]


def _delete_subscript(machine: Any, frame: Frame, arg: Any) -> None:
    container, key = frame.stack[-2:]
    machine.world.change(operator.delitem, container, key)
    del frame.stack[-2:]


def _jump(machine: Any, frame: Frame, arg: int) -> None:
    frame.place = arg


def _is_true(world: World, value: Any) -> bool:
    if value is True or value is False:
        return bool(value)
    return bool(world.operate(operator.truth, value))


def _jump_if(wanted: bool) -> Step:
    def step(machine: Any, frame: Frame, arg: int) -> None:
        if _is_true(machine.world, frame.stack.pop()) is wanted:
            frame.place = arg

    return step


def _jump_if_or_pop(wanted: bool) -> Step:
    def step(machine: Any, frame: Frame, arg: int) -> None:
        if _is_true(machine.world, frame.stack[-1]) is wanted:
            frame.place = arg
        else:
            frame.stack.pop()

    return step


def _jump_if_none(machine: Any, frame: Frame, arg: int) -> None:
    if frame.stack.pop() is None:
        frame.place = arg


def _jump_if_not_none(machine: Any, frame: Frame, arg: int) -> None:
    if frame.stack.pop() is not None:
        frame.place = arg


def _for_iter(machine: Any, frame: Frame, arg: int) -> None:
    value = machine.world.operate(next, frame.stack[-1], MISSING)
    if value is MISSING:
        frame.stack.pop()
        frame.place = arg
    else:
        frame.stack.append(value)


def _end_send(machine: Any, frame: Frame, arg: Any) -> None:
    del frame.stack[-2]


DATA_STEPS: dict[str, Step] = {
    "POP_TOP": _pop_top,
    "PUSH_NULL": _push_null,
    "COPY": _copy,
    "SWAP": _swap,
    "LOAD_CONST": _load_const,
    "LOAD_FAST": _load_fast,
    "LOAD_FAST_CHECK": _load_fast,
    "LOAD_CLOSURE": _load_raw,
    "LOAD_FAST_AND_CLEAR": _load_and_clear,
    "STORE_FAST": _store_fast,
    "DELETE_FAST": _delete_fast,
    "MAKE_CELL": _make_cell,
    "LOAD_DEREF": _load_deref,
    "STORE_DEREF": _store_deref,
    "DELETE_DEREF": _delete_deref,
    "LOAD_GLOBAL": _load_global,
    "STORE_GLOBAL": _store_global,
    "DELETE_GLOBAL": _delete_global,
    "LOAD_ATTR": _load_attr,
    "LOAD_METHOD": _load_method,
    "LOAD_SUPER": _load_super,
    "STORE_ATTR": _store_attr,
    "DELETE_ATTR": _delete_attr,
    "BINARY_OP": _binary,
    "COMPARE_OP": _compare,
    "IS_OP": _is,
    "CONTAINS_OP": _contains,
    "BINARY_SUBSCR": _subscript,
    "STORE_SUBSCR": _store_subscript,
    "DELETE_SUBSCR": _delete_subscript,
    "JUMP": _jump,
    "JUMP_IF_TRUE": _jump_if(True),
    "JUMP_IF_FALSE": _jump_if(False),
    "JUMP_IF_NONE": _jump_if_none,
    "JUMP_IF_NOT_NONE": _jump_if_not_none,
    "JUMP_IF_TRUE_OR_POP": _jump_if_or_pop(True),
    "JUMP_IF_FALSE_OR_POP": _jump_if_or_pop(False),
    "FOR_ITER": _for_iter,
    "END_SEND": _end_send,
    **{name: _unary(function) for name, function in _UNARY.items()},
    **BUILDING_STEPS,
}
"""Steps by the names of instructions."""
