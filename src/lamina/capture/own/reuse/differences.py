"""Why a call is compiled again: the fact that does not hold, in the words of the codes of recompiles."""

from __future__ import annotations

from typing import Any

import torch

from lamina.capture.own.reuse.conditions import Names, given_sentence, said, spoken_place
from lamina.capture.own.reuse.driver import state_of_torch
from lamina.capture.own.reuse.facts import Fact, shown
from lamina.capture.own.reuse.trace import looks_but_for_sizes, tensor_look
from lamina.capture.own.torch_private import SETTINGS
from lamina.capture.recompiles.guard_texts import FailedGuard
from lamina.capture.recompiles.reasons import GUARDS, OTHER_GUARD

__all__ = ["failed_fact"]

_LOOKS = ("dtype", "dispatch", "size", "stride", "offset", "requires_grad", "leaf", "lazy", "lazy", "inference")
Told = tuple[str, dict[str, str]]
"""The kind of a guard, and the words that its code's sentences need."""


def failed_fact(fact: Fact, args: tuple[Any, ...], kwargs: dict[str, Any], names: Names) -> FailedGuard:
    """That ``fact`` does not hold for a call with these arguments, of a callable with these ``names``."""
    kind, words = _told(fact, args, kwargs, names)
    guard = said(fact, names)
    reason = GUARDS.get(kind, OTHER_GUARD)(**{"guard": guard, **words})
    return FailedGuard(guard, reason, words.get("old", ""), words.get("new", ""), fact.line)


def _told(fact: Fact, args: tuple[Any, ...], kwargs: dict[str, Any], names: Names) -> Told:
    if fact.kind == "state":
        return _of_state(fact.value)
    if fact.kind == "arguments":
        return "arguments", {
            "old": given_sentence(*fact.value),
            "new": given_sentence(len(args), tuple(kwargs)),
        }
    try:
        found = fact.places[0].value(args, kwargs)
    except Exception:
        return "", {}
    name = spoken_place(fact.places[0], names)
    if fact.kind == "look" and isinstance(found, torch.Tensor):
        return _of_tensor(fact.value, name, found)
    if fact.kind == "varies" and isinstance(found, torch.Tensor):
        look, positions = fact.value
        return _of_tensor(looks_but_for_sizes(look, tensor_look(found), positions), name, found)
    return _of_value(fact, {"name": name, "old": shown(fact.value), "new": shown(found)}, found)


def _of_value(fact: Fact, words: dict[str, str], found: Any) -> Told:
    kind = _KINDS.get(fact.kind, "")
    if fact.kind == "constant":
        number = type(fact.value) in (int, float) and type(found) is type(fact.value)
        kind = "training" if words["name"].endswith(".training") else "number" if number else "constant"
        words["name"] = words["name"].removesuffix(".training")
    elif fact.kind == "length":
        words["new"] = str(len(found))
    elif fact.kind == "keys":
        words["new"] = shown(tuple(found)) if isinstance(found, dict) else shown(found)
    elif fact.kind == "type":
        words["new"] = type(found).__qualname__
    return kind, words


_KINDS = {
    "length": "length",
    "keys": "keys",
    "type": "type",
    "is": "identity",
    "same": "alias",
    "apart": "alias",
    "absent": "absent",
    "size": "size of graphs",
    "stride": "stride",
}
"""Kinds of guards by those of facts, and by parts of a tensor's look."""


def _of_tensor(wanted: Any, name: str, found: torch.Tensor) -> Told:
    now = tensor_look(found)
    if len(wanted[2]) != len(now[2]):
        return "rank", {"name": name, "old": str(len(wanted[2])), "new": str(len(now[2]))}
    for kind, old, new in zip(_LOOKS, wanted, now, strict=True):
        if old == new:
            continue
        if kind in ("size", "stride"):
            place = next(number for number, pair in enumerate(zip(old, new, strict=True)) if pair[0] != pair[1])
            words = {"name": name, "place": str(place), "old": str(old[place]), "new": str(new[place])}
            return _KINDS[kind], words
        if kind in ("offset", "leaf", "inference"):
            return "", {"guard": f"{kind} {shown(old)} of {name}, which is {shown(new)} now,"}
        words = {"name": name, "old": shown(old), "new": shown(new)}
        if kind == "lazy":
            words |= {"old": _LAZY[bool(old)], "new": _LAZY[bool(new)]}
        elif kind == "dtype":
            words |= {"old": words["old"].removeprefix("torch."), "new": words["new"].removeprefix("torch.")}
        return kind, words
    return "", {}


_LAZY = {True: "a lazy view", False: "an ordinary tensor"}


def _of_state(before: tuple[Any, ...]) -> Told:
    now = state_of_torch()
    for kind, old, new in zip(("grad mode", "autocast", "state"), before, now, strict=True):
        if old != new and kind == "state":
            name, old, new = next(
                (ask.__name__.strip("_"), was, now)
                for ask, was, now in zip(SETTINGS, old, new, strict=True)
                if was != now
            )
            return kind, {"what": f"{name}() was {old} and is {new}", "old": str(old), "new": str(new)}
        if old != new:
            return kind, {"what": f"{kind} was {old} and is {new}", "old": str(old), "new": str(new)}
    return "", {"guard": "the state of torch"}
