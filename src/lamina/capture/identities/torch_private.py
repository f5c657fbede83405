"""Guards on which values are the same object, which Dynamo leaves out; names as read in torch 2.11 to 2.13."""

from __future__ import annotations

import contextlib
import enum
import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.source import GlobalStateSource
from torch._dynamo.variables.base import AttributeMutationExisting, ValueMutationExisting
from torch._guards import Guard, Source

from lamina.capture.external_state import reads
from lamina.capture.guards.torch_private import add_check_of_call, expression, reader

__all__ = ["identity_guards"]


def identity_guards(effects: Any, sources: Sequence[Source], codes: Sequence[types.CodeType]) -> list[Guard]:
    """The guard on which of the values at ``sources`` are the same object, if that matters to the trace of ``codes``.

    It does where ``codes`` compare values, and where the trace, by its side ``effects``, writes to objects: what is
    written through one name is read through another if both name one object.
    """
    written = _written_kinds(effects)
    if not written and not reads.compares_identity(codes) and not reads.compares_equality(codes):
        return []
    places = [*sources, *(v.source for v in _of_cells(effects) if v.source is not None)]
    return [Guard(GlobalStateSource(), functools.partial(_guard_identity, places, _compared(codes, written)))]


def _written_kinds(effects: Any) -> frozenset[type]:
    """The classes of those objects the trace found, not made, that it writes to."""
    modified = {id(variable) for variable in effects._get_modified_vars() if _existed(variable)}
    written = {key for key, variable in effects.id_to_variable.items() if id(variable) in modified}
    return frozenset(type(item) for item in effects.keepalive if id(item) in written)


def _existed(variable: Any) -> bool:
    return isinstance(variable.mutation_type, (AttributeMutationExisting, ValueMutationExisting))


def _of_cells(effects: Any) -> list[Any]:
    """What stands for the variables of functions around functions, which have no place among other values."""
    cells = {id(item) for item in effects.keepalive if isinstance(item, types.CellType)}
    return [variable for key, variable in effects.id_to_variable.items() if key in cells]


def _compared(codes: Sequence[types.CodeType], written: frozenset[type]) -> Callable[[type], bool]:
    """Of which classes it matters which values are the same object.

    All, where ``codes`` ask with ``is``; with ``==`` those whose values are equal only to themselves; and always those
    of objects that are ``written`` to.
    """
    all_kinds, equal = reads.compares_identity(codes), reads.compares_equality(codes)

    def compared(kind: type) -> bool:
        if issubclass(kind, _COMPARED_BY_VALUE):
            return False
        if all_kinds or kind in written:
            return True
        by_itself = kind.__eq__ is object.__eq__ and not issubclass(kind, torch.nn.Module)
        return equal and by_itself and kind.__module__ not in ("torch", "builtins")

    return compared


_COMPARED_BY_VALUE = (
    *(type(None), bool, int, float, complex, str, bytes, type, enum.Enum, torch.Tensor, torch.dtype, torch.device),
    *(types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.CodeType),
)
"""Classes of values that Dynamo guards on by identity, or that are hardly told apart by it."""


def _guard_identity(
    sources: Sequence[Source], compared: Callable[[type], bool], builder: GuardBuilder, guard: Guard
) -> None:
    """Which values of one class are the same object, of those classes that ``compared`` takes."""
    by_kind: dict[type, list[str]] = {}
    for source in sources:
        with contextlib.suppress(Exception):  # a source that names no value
            value, place = builder.get(source), expression(source)
            if compared(type(value)):
                by_kind.setdefault(type(value), []).append(place)
            if isinstance(value, types.FunctionType) and compared(types.CellType):
                cells = [f"{place}.__closure__[{at}]" for at in range(len(value.__closure__ or ()))]
                by_kind.setdefault(types.CellType, []).extend(cells)
    places = [name for names in by_kind.values() if len(names) > 1 for name in dict.fromkeys(names)]
    if not places:
        return
    read = reader(builder, places)
    expected = _pattern(read(builder.scope["L"]))
    add_check_of_call(
        builder, guard, lambda found: _pattern(read(found)) == expected, "values that are the same object"
    )


def _pattern(values: Sequence[Any]) -> tuple[int, ...]:
    """For each of ``values`` which one is the first that it is the same object as."""
    first: dict[int, int] = {}
    return tuple(first.setdefault(id(value), at) for at, value in enumerate(values))
