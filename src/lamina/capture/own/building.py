"""What each instruction does to a frame: containers, strings and unpacking."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from lamina.capture.own.frame import NULL, Frame, Step
from lamina.capture.own.places import native

__all__ = ["BUILDING_STEPS", "described", "listed"]


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
    frame.stack.append(_mapping(machine, values[::2], values[1::2]))


def _mapping(machine: Any, keys: Sequence[Any], values: Sequence[Any]) -> dict[Any, Any]:
    """A new dictionary."""
    made: dict[Any, Any] = machine.world.made({})
    for key, value in zip(keys, values, strict=True):
        machine.world.build(operator.setitem, made, key, value)
    return made


def _build_set(machine: Any, frame: Frame, arg: int) -> None:
    made: set[Any] = machine.world.made(set())
    for value in _taken(frame, arg):
        machine.world.build(set.add, made, value)
    frame.stack.append(made)


def _build_const_key_map(machine: Any, frame: Frame, arg: int) -> None:
    keys = frame.stack.pop()
    frame.stack.append(_mapping(machine, keys, _taken(frame, arg)))


listed: Callable[[Any], list[Any]] = native("def listed(values): return [*values]", "listed")


def _list_extend(machine: Any, frame: Frame, arg: int) -> None:
    values = machine.world.operate(listed, frame.stack.pop())
    frame.stack[-arg].extend(values)


def _set_update(machine: Any, frame: Frame, arg: int) -> None:
    values = frame.stack.pop()
    machine.world.build(set.update, frame.stack[-arg], values)


def _dict_update(machine: Any, frame: Frame, arg: int) -> None:
    values = frame.stack.pop()
    if not hasattr(values, "keys"):
        raise TypeError(f"'{type(values).__name__}' object is not a mapping")
    machine.world.build(dict.update, frame.stack[-arg], values)


def _dict_merge(machine: Any, frame: Frame, arg: int) -> None:
    values = frame.stack.pop()
    target = frame.stack[-arg]
    if type(values) is not dict or not target.keys().isdisjoint(values) or not all(type(k) is str for k in values):
        called = frame.stack[-arg - 2]
        called = frame.stack[-arg - 3] if called is NULL else called
        values = _merged(called, target, values)
    machine.world.build(dict.update, target, values)


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
    machine.world.build(set.add, frame.stack[-arg], value)


def _map_add(machine: Any, frame: Frame, arg: int) -> None:
    key, value = _taken(frame, 2)
    machine.world.build(operator.setitem, frame.stack[-arg], key, value)


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


BUILDING_STEPS: dict[str, Step] = {
    "BUILD_TUPLE": _build(tuple),
    "BUILD_LIST": _build(list),
    "BUILD_SET": _build_set,
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
}
"""Steps by the names of instructions."""
