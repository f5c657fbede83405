"""Why a call is compiled again: the fact that does not hold, in the words of the codes of recompiles."""

from __future__ import annotations

from typing import Any

import torch

from lamina.base.reasons import Reason
from lamina.capture.own.reuse.driver import state_of_torch
from lamina.capture.own.reuse.facts import Fact
from lamina.capture.own.reuse.trace import tensor_look
from lamina.capture.recompiles.reasons import GUARDS, OTHER_GUARD

__all__ = ["reason_of"]

_LOOKS = ("dtype", "dispatch", "size", "stride", "offset", "requires_grad", "leaf", "lazy", "lazy")


def reason_of(fact: Fact, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Reason:
    """The reason that ``fact`` does not hold for a call with these arguments."""
    if fact.kind == "state":
        return _of_state(fact.value)
    try:
        found = fact.places[0].value(args, kwargs)
    except Exception:
        return OTHER_GUARD(guard=str(fact))
    name = str(fact.places[0])
    if fact.kind == "look" and isinstance(found, torch.Tensor):
        return _of_tensor(fact, name, found)
    words = {"guard": str(fact), "name": name, "old": _shown(fact.value), "new": _shown(found)}
    if fact.kind == "constant":
        number = type(fact.value) in (int, float)
        return GUARDS["number" if number and type(found) is type(fact.value) else "constant"](**words)
    if fact.kind == "length":
        return GUARDS["length"](**{**words, "new": str(len(found))})
    if fact.kind == "keys" and isinstance(found, dict):
        return GUARDS["keys"](**{**words, "new": _shown(tuple(found))})
    if fact.kind == "type":
        return GUARDS["type"](**{**words, "new": type(found).__qualname__})
    if fact.kind == "is":
        return GUARDS["identity"](**words)
    if fact.kind in ("same", "apart"):
        return GUARDS["alias"](**words)
    return OTHER_GUARD(guard=str(fact))


def _shown(value: Any) -> str:
    return str(getattr(value, "__qualname__", None) or repr(value))[:200]


def _of_tensor(fact: Fact, name: str, found: torch.Tensor) -> Reason:
    for kind, old, new in zip(_LOOKS, fact.value, tensor_look(found), strict=True):
        if old != new:
            if kind in ("dtype", "requires_grad", "dispatch", "lazy"):
                return GUARDS[kind](guard=str(fact), name=name, old=_shown(old), new=_shown(new))
            return OTHER_GUARD(guard=f"{kind} {_shown(old)} of {name}, which is {_shown(new)} now,")
    return OTHER_GUARD(guard=str(fact))


def _of_state(before: tuple[Any, ...]) -> Reason:
    now = state_of_torch()
    for kind, old, new in zip(("grad mode", "autocast", "state"), before, now, strict=True):
        if old != new:
            return GUARDS[kind](guard="", what=f"{kind} was {old} and is {new}")
    return OTHER_GUARD(guard="the state of torch")
