"""Operators that write to operands, and those that give what is written as results instead."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch

from lamina.base.aliasing import is_elementwise
from lamina.base.overloads import overloads_named
from lamina.base.torch_private import OpOverload, schema_of

__all__ = ["Written", "elementwise_writes", "written_by"]


@dataclass(frozen=True, slots=True)
class Written:
    """What an operator does that writes to the operands at ``places``, all of them whole.

    ``operator`` takes the same arguments, writes to none, and gives the operands' new values last. If ``in_place``, the
    operator that writes gives its operand back, else what ``operator`` gives before the new values.
    """

    operator: OpOverload
    places: tuple[int, ...]
    in_place: bool


@functools.lru_cache(maxsize=1024)
def written_by(func: OpOverload) -> Written | None:
    """What ``func`` writes, if it works element by element in place, or has a functional form by name; None for others.

    Operators that draw, or that change their operand's sizes, are others.
    """
    schema = schema_of(func)
    namespace, _, name = schema.name.partition("::")
    places = tuple(i for i, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write)
    if namespace != "aten" or not places or any(schema.arguments[i].kwarg_only for i in places):
        return None
    if {torch.Tag.inplace_view, torch.Tag.nondeterministic_seeded} & set(func.tags):
        return None
    in_place = name.endswith("_") and not name.endswith("__")
    if in_place and (places != (0,) or not is_elementwise(name)):
        return None
    wanted = name.removesuffix("_") if in_place else f"{name}_functional"
    for other in overloads_named(wanted):
        plain = schema_of(other)
        if plain.overload_name == schema.overload_name and _takes(plain) == _takes(schema) and not plain.is_mutable:
            gives = len(places) if in_place else len(schema.returns) + len(places)
            whole = all(result.alias_info is None and str(result.type) == "Tensor" for result in plain.returns)
            return Written(other, places, in_place) if whole and len(plain.returns) == gives else None
    return None


def _takes(schema: Any) -> list[tuple[str, str, bool]]:
    return [(a.name, str(a.type), a.kwarg_only) for a in schema.arguments]


def elementwise_writes(target: Any) -> bool:
    """Whether a captured call that writes to its first operand only does what ``written_by`` knows to say otherwise.

    So it does not change its operand's sizes or memory.
    """
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    if getattr(target, "__module__", None) == "torch.nn.functional" and not name.endswith("_"):
        return True  # of an activation that is asked to work in place
    return name.endswith("_") and not name.endswith("__") and is_elementwise(name)
