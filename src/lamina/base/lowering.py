"""Lowerings of the user's own: what an operation computes, so that it is compiled instead of called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from lamina.base.identity import identity_of, place_of
from lamina.base.namespaces import BUILT_IN
from lamina.base.torch_private import OpOverload, OpOverloadPacket, operator_of, returns_arguments, schema_of
from lamina.errors import BadArgument

__all__ = ["FORMS", "CustomLowering", "arguments_of", "find_lowering", "is_programs_own", "lowering", "lowerings_key"]

F = TypeVar("F", bound=Callable[..., Any])

FORMS = ("torch", "scalar", "nest")
"""How a lowering is written: in torch's functions, as arithmetic on one element, or as loop nests."""


def is_programs_own(target: Any) -> bool:
    """Whether a call's target is an operation that is neither torch's nor Lamina's, such as ``custom_op`` makes."""
    overload = operator_of(target)
    if not isinstance(overload, (OpOverload, OpOverloadPacket)):
        return False
    return str(overload).replace("::", ".").split(".")[0] not in BUILT_IN


@dataclass(frozen=True, slots=True)
class CustomLowering:
    """A function that says what the operation ``op`` ("space.name.overload") computes, and in which of ``FORMS``."""

    op: str
    function: Callable[..., Any]
    form: str

    @property
    def place(self) -> str:
        """Where it is written: "file.py:line"."""
        return place_of(self.function)


_LOWERINGS: dict[str, CustomLowering] = {}
"""By operation: the user's registrations."""


def lowering(op: Any, *, form: str = "torch") -> Callable[[F], F]:
    """Say what the custom operation ``op`` computes, so that Lamina fuses it with its neighbours. A decorator.

    ``op`` is what ``torch.library.custom_op`` gave, ``torch.ops.space.name``, one of its overloads, or "space::name".
    ``form`` says how the function is written:

    - "torch": with the operation's arguments, in torch's functions, writing to nothing; it returns the operation's
      results. It is traced where the operation is used. The operation keeps its own gradient (``register_autograd``),
      whose operations may have lowerings in turn.
    - "scalar": one element of each result from one element of each tensor, which are broadcast; tensors come as
      values with Python's operators and ``.op("exp")``, numbers as numbers.
    - "nest": ``function(low, node, *arguments)`` writes loop nests; see docs/lowerings.md.

    The last lowering given for an operation counts, from the next compilation on. Raises ``BadArgument`` for an
    operation that does not exist, writes to its arguments, or is torch's.
    """
    if form not in FORMS:
        raise BadArgument(f"form is {form!r}", remedy=f"use one of {', '.join(FORMS)}")
    overload = _overload(op)
    schema = schema_of(overload)
    if overload.namespace in BUILT_IN:
        raise BadArgument(f"{overload} is not a custom operation", remedy="write a rule to change what it becomes")
    if schema.is_mutable or returns_arguments(overload):
        raise BadArgument(
            f"{overload} writes to its arguments or returns a view of one",
            remedy="give a lowering to an operation that returns new tensors",
        )

    def register(function: F) -> F:
        if not callable(function):
            raise BadArgument(f"the lowering of {overload} is a {type(function).__name__}", remedy="pass a function")
        name = str(overload)
        _LOWERINGS[name] = CustomLowering(name, function, form)
        return function

    return register


def find_lowering(target: Any, *forms: str) -> CustomLowering | None:
    """The user's lowering of a call's target, if it has one that is written in one of ``forms``."""
    found = _LOWERINGS.get(str(target)) if _LOWERINGS else None
    return found if found is not None and found.form in forms else None


def arguments_of(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A call's arguments with the defaults of the operation ``target``, which graphs leave out."""
    missing = [a for a in schema_of(target).arguments[len(args) :] if a.name not in kwargs and a.has_default_value()]
    places = [] if kwargs else [a for a in missing if not a.kwarg_only]
    named = {a.name: a.default_value for a in missing if a not in places}
    return (*args, *(a.default_value for a in places)), {**kwargs, **named}


def lowerings_key() -> tuple[tuple[str, str, str], ...]:
    """Operation, form, and the function's name and source hash, of all lowerings: part of every cache key."""
    return tuple((name, found.form, identity_of(found.function)) for name, found in sorted(_LOWERINGS.items()))


def _overload(op: Any) -> OpOverload:
    found = operator_of(op)
    if isinstance(found, str):
        space, _, name = found.replace("::", ".", 1).partition(".")
        name, _, which = name.partition(".")
        try:
            found = getattr(getattr(getattr(torch.ops, space), name), which or "default")
        except AttributeError:
            raise BadArgument(f"torch has no operation {op!r}", remedy="define it before its lowering") from None
    if isinstance(found, OpOverloadPacket):
        names = list(found)
        if len(names) != 1:
            raise BadArgument(f"{op} has the overloads {', '.join(names)}", remedy="pass one of them")
        found = getattr(found, names[0])
    if not isinstance(found, OpOverload):
        raise BadArgument(
            f"a lowering was given for a {type(op).__name__}",
            remedy="pass what torch.library.custom_op gave, or torch.ops.space.name",
        )
    return found
