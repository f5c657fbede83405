"""What each instruction does to a frame: variables, operators, containers and jumps."""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import CellType
from typing import Any

from lamina.capture.own.frame import MISSING, NULL, Frame
from lamina.capture.own.places import native
from lamina.capture.own.world import World

__all__ = ["DATA_STEPS", "Step", "described"]

Step = Callable[[Any, Frame, Any], Any]
"""A step is given the machine, the frame and the instruction's argument; it returns nothing but to leave the frame."""


def _unpackers(count: int) -> Callable[[Any], Any]:
    """What CPython's own unpacking into ``count`` names gives, with its errors."""
    names = "".join(f"v{place}," for place in range(count))
    unpack: Callable[[Any], Any] = native(f"def unpack(value):\n    [{names}] = value\n    return ({names})", "unpack")
    return unpack


_UNPACK: dict[int, Callable[[Any], Any]] = {}
"""Unpackers by the number of names, of which programs have few."""


def _unpack_with_star(before: int, after: int) -> Callable[[Any], Any]:
    names = [*(f"a{place}" for place in range(before)), "*rest", *(f"b{place}" for place in range(after))]
    given = ",".join(name.lstrip("*") for name in names)
    source = f"def unpack(value):\n    {','.join(names)}, = value\n    return ({given},)"
    unpack: Callable[[Any], Any] = native(source, "unpack")
    return unpack


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


def _taken(frame: Frame, count: int) -> list[Any]:
    """The topmost values of the stack, which has them no longer."""
    if not count:
        return []
    values = frame.stack[-count:]
    del frame.stack[-count:]
    return values


def _build(make: Callable[[list[Any]], Any]) -> Step:
    def step(machine: Any, frame: Frame, arg: int) -> None:
        frame.stack.append(machine.world.made(make(_taken(frame, arg))))

    return step


def _build_map(machine: Any, frame: Frame, arg: int) -> None:
    values = _taken(frame, 2 * arg)
    frame.stack.append(machine.world.made(dict(zip(values[::2], values[1::2], strict=True))))


def _build_const_key_map(machine: Any, frame: Frame, arg: int) -> None:
    keys = frame.stack.pop()
    frame.stack.append(machine.world.made(dict(zip(keys, _taken(frame, arg), strict=True))))


_listed: Callable[[Any], list[Any]] = native("def listed(values): return [*values]", "listed")


def _list_extend(machine: Any, frame: Frame, arg: int) -> None:
    values = machine.world.operate(_listed, frame.stack.pop())
    frame.stack[-arg].extend(values)


def _set_update(machine: Any, frame: Frame, arg: int) -> None:
    values = frame.stack.pop()
    machine.world.change(set.update, frame.stack[-arg], values)


def _dict_update(machine: Any, frame: Frame, arg: int) -> None:
    values = frame.stack.pop()
    if not hasattr(values, "keys"):
        raise TypeError(f"'{type(values).__name__}' object is not a mapping")
    machine.world.change(dict.update, frame.stack[-arg], values)


def _dict_merge(machine: Any, frame: Frame, arg: int) -> None:
    values = frame.stack.pop()
    target = frame.stack[-arg]
    if type(values) is not dict or not target.keys().isdisjoint(values) or not all(type(k) is str for k in values):
        called = frame.stack[-arg - 2]
        called = frame.stack[-arg - 3] if called is NULL else called
        values = _merged(called, target, values)
    machine.world.change(dict.update, target, values)


def _merged(called: Any, before: dict[Any, Any], values: Any) -> Any:
    """``values`` as a dictionary; raises what a call of ``called`` with both raises."""
    if not hasattr(values, "keys"):
        raise TypeError(f"{described(called)} argument after ** must be a mapping, not {type(values).__name__}")
    found = {key: values[key] for key in values.keys()}  # noqa: SIM118 - a mapping of the user's may have no more
    for key in found:
        if key in before and isinstance(key, str):
            raise TypeError(f"{described(called)} got multiple values for keyword argument '{key}'")
    return found


def described(called: Any) -> str:
    """How CPython names what is called in errors about keyword arguments."""
    name = getattr(called, "__qualname__", None)
    if not isinstance(name, str):
        return str(called)
    module = getattr(called, "__module__", None)
    return f"{name}()" if module in (None, "builtins") else f"{module}.{name}()"


def _list_append(machine: Any, frame: Frame, arg: int) -> None:
    value = frame.stack.pop()
    frame.stack[-arg].append(value)


def _set_add(machine: Any, frame: Frame, arg: int) -> None:
    value = frame.stack.pop()
    frame.stack[-arg].add(value)


def _map_add(machine: Any, frame: Frame, arg: int) -> None:
    key, value = _taken(frame, 2)
    frame.stack[-arg][key] = value


def _list_to_tuple(machine: Any, frame: Frame, arg: Any) -> None:
    frame.stack[-1] = machine.world.made(tuple(frame.stack[-1]))


def _unpack_sequence(machine: Any, frame: Frame, arg: int) -> None:
    function = _UNPACK.get(arg)
    if function is None:
        function = _UNPACK[arg] = _unpackers(arg)
    values = machine.world.operate(function, frame.stack.pop())
    frame.stack.extend(reversed(values))


def _unpack_ex(machine: Any, frame: Frame, arg: int) -> None:
    function = _unpack_with_star(arg & 255, arg >> 8)
    values = machine.world.operate(function, frame.stack.pop())
    machine.world.made(values[arg & 255])
    frame.stack.extend(reversed(values))


_CONVERSIONS: dict[int, Callable[[Any], str]] = {1: str, 2: repr, 3: ascii}


def _format_value(machine: Any, frame: Frame, arg: int) -> None:
    spec = frame.stack.pop() if arg & 4 else ""
    value = frame.stack.pop()
    if arg & 3:
        value = machine.world.operate(_CONVERSIONS[arg & 3], value)
    frame.stack.append(machine.world.operate(format, value, spec))


def _convert_value(machine: Any, frame: Frame, arg: int) -> None:
    frame.stack[-1] = machine.world.operate(_CONVERSIONS[arg], frame.stack[-1])


def _format_simple(machine: Any, frame: Frame, arg: Any) -> None:
    frame.stack[-1] = machine.world.operate(format, frame.stack[-1], "")


def _format_with_spec(machine: Any, frame: Frame, arg: Any) -> None:
    spec = frame.stack.pop()
    frame.stack[-1] = machine.world.operate(format, frame.stack[-1], spec)


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
    "BUILD_TUPLE": _build(tuple),
    "BUILD_LIST": _build(list),
    "BUILD_SET": _build(set),
    "BUILD_STRING": _build("".join),
    "BUILD_SLICE": _build(lambda values: slice(*values)),
    "BUILD_MAP": _build_map,
    "BUILD_CONST_KEY_MAP": _build_const_key_map,
    "LIST_EXTEND": _list_extend,
    "SET_UPDATE": _set_update,
    "DICT_UPDATE": _dict_update,
    "DICT_MERGE": _dict_merge,
    "LIST_APPEND": _list_append,
    "SET_ADD": _set_add,
    "MAP_ADD": _map_add,
    "LIST_TO_TUPLE": _list_to_tuple,
    "UNPACK_SEQUENCE": _unpack_sequence,
    "UNPACK_EX": _unpack_ex,
    "FORMAT_VALUE": _format_value,
    "CONVERT_VALUE": _convert_value,
    "FORMAT_SIMPLE": _format_simple,
    "FORMAT_WITH_SPEC": _format_with_spec,
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
}
"""Steps by the names of instructions."""
