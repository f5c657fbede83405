"""Facts asked one after the other, without a program: what a call does once, when what is stored is looked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lamina.capture.own.reuse.driver import state_of_torch
from lamina.capture.own.reuse.facts import Fact, Place, constant_key
from lamina.capture.own.reuse.trace import looks_but_for_sizes, tensor_look
from lamina.capture.own.torch_private import is_plain, unseen

__all__ = ["holds", "is_so", "values_of"]


_TOLD_BY_VALUE = (bool, int, str, type(None))
"""Classes of constants that are one if they are equal."""


def values_of(
    rows: Sequence[Place | Fact],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    holds: Callable[[Fact, list[Any]], bool],
) -> dict[int, Any] | Fact:
    """What is at each place for a call, by the places' numbers, or the first fact of which ``holds`` says no.

    ``holds`` is given a fact and what is at its places; it is asked in the order of the rows, so that no more is read
    of an object than the facts before say that it has.
    """
    values: dict[int, Any] = {}
    for row in rows:
        if isinstance(row, Place):
            values[row.number] = _read(row, values, args, kwargs)
        elif row.kind == "arguments":
            if (len(args), tuple(kwargs)) != row.value:
                return row
        elif not holds(row, [values[place.number] for place in row.places]):
            return row
    return values


def _read(place: Place, values: dict[int, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if place.parent is None:
        return place.value(args, kwargs)
    owner = values[place.parent.number]
    return getattr(owner, place.key) if place.how == "attribute" else owner[place.key]


def holds(fact: Fact, values: list[Any]) -> bool:
    """Whether a fact holds of the ``values`` at its places, but for one about arguments. What it asks may raise."""
    return is_so(fact.kind, values, fact.value)


def is_so(kind: str, values: list[Any], wanted: Any) -> bool:
    """Whether a fact of a ``kind`` holds of ``values``, as ``holds`` says of one."""
    return bool(_HOLDS[kind](values, wanted))


def _is_constant(values: list[Any], wanted: Any) -> bool:
    found = values[0]
    if type(found) in _TOLD_BY_VALUE:
        return type(found) is type(wanted) and bool(found == wanted)
    return bool(constant_key(found) == constant_key(wanted))


def _has_keys(values: list[Any], wanted: tuple[Any, ...]) -> bool:
    found = (*values[0],)
    return [*map(type, found)] == [*map(type, wanted)] and found == wanted


def _looks(values: list[Any], wanted: Any) -> bool:
    with unseen():
        return is_plain(values[0]) and tensor_look(values[0]) == wanted


def _varies(values: list[Any], wanted: Any) -> bool:
    look, positions = wanted
    with unseen():
        found = tensor_look(values[0]) if is_plain(values[0]) else None
    return found is not None and found == looks_but_for_sizes(look, found, positions)


_HOLDS: dict[str, Callable[[list[Any], Any], Any]] = {
    "state": lambda values, wanted: constant_key(state_of_torch()) == constant_key(wanted),
    "type": lambda values, wanted: type(values[0]) is wanted,
    "is": lambda values, wanted: values[0] is wanted,
    "constant": _is_constant,
    "length": lambda values, wanted: len(values[0]) == wanted,
    "keys": _has_keys,
    "absent": lambda values, wanted: wanted not in values[0],
    "present": lambda values, wanted: wanted in values[0],
    "same": lambda values, wanted: values[0] is values[1],
    "apart": lambda values, wanted: values[0] is not values[1],
    "look": _looks,
    "varies": _varies,
    "bare": lambda values, wanted: not values[0].__dict__,
    "distinct": lambda values, wanted: len({*map(id, values)}) == len(values),
    "answer": lambda values, wanted: wanted[0](*values) is wanted[1],
}
