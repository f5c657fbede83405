"""``torch.func.functional_call``: a module is called with other tensors in place of its own, and has these again then.

The exchange is no write of the program's: reads within find what was put there, and a later call, whose graphs read the
tensors themselves, does without it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch.func import functional_call

from lamina.base.torch_names.torch_private import REGISTRIES
from lamina.capture.own.frame import MISSING
from lamina.capture.own.pending import Pending
from lamina.capture.own.reuse.answers import is_function
from lamina.capture.own.reuse.attribute_reads import Attributes
from lamina.capture.own.reuse.calls import Calls
from lamina.capture.own.reuse.facts import constant_key
from lamina.capture.own.reuse.trace import TENSORS, Trace

__all__ = ["called_functionally", "names_of_shared"]

*_KEPT_IN, _PARTS = REGISTRIES


def called_functionally(
    trace: Trace,
    attributes: Attributes,
    calls: Calls,
    interpret: Callable[..., Any],
    function: Any,
    args: Any,
    more: Any,
) -> Any:
    """What a call of ``functional_call`` gives; ``MISSING``, and nothing was done, for others."""
    if function is not functional_call or not 1 < len(args) < 5 or not is_function(trace, function):
        return MISSING
    named, tied = {**more}, more.get("tie_weights", True)
    given = args[2] if len(args) > 2 else named.pop("args", None)
    keywords = args[3] if len(args) > 3 else named.pop("kwargs", None)
    module, tensors = args[0], _tensors(calls, args[1])
    if not isinstance(module, torch.nn.Module) or isinstance(module, (torch.jit.ScriptModule, torch.nn.DataParallel)):
        return MISSING
    if type(tied) is not bool or named.pop("tie_weights", True) is not tied or named.pop("strict", False) is not False:
        return MISSING
    if named or tensors is None or not (keywords is None or type(keywords) is dict):
        return MISSING
    places = _places(trace, attributes, module, _shared(trace, module, tensors) if tied else tensors)
    if places is None or trace.ended is not None:
        return MISSING
    for value in (given, keywords):
        calls.opened_deep(value)
    arguments = given if isinstance(given, tuple) else () if given is None else (given,)
    with _Exchange(trace, places, args[1] if type(args[1]) is dict else {}):
        return interpret(module, *arguments, **(keywords or {}))


def _tensors(calls: Calls, given: Any) -> dict[str, Any] | None:
    """What is to be put in place, by names; None if these are not what they are to be."""
    parts = given if type(given) in (tuple, list) else (given,)
    calls.opened_deep(given)
    if not all(type(part) is dict for part in parts):
        return None
    found = {name: tensor for part in parts for name, tensor in part.items()}
    if len(found) < sum(map(len, parts)) or not all(type(name) is str for name in found):
        return None
    return found if all(type(tensor) in (Pending, *TENSORS) for tensor in found.values()) else None


def names_of_shared(module: torch.nn.Module) -> tuple[tuple[str, ...], ...]:
    """The names of tensors that a module has under several ones, by what its dictionaries hold."""
    names: dict[int, list[str]] = defaultdict(list)
    waiting = [("", module)]
    while waiting:
        prefix, owner = waiting.pop()
        space = object.__getattribute__(owner, "__dict__")
        for kept in _KEPT_IN:
            for name, tensor in dict.items(space.get(kept, {})):
                if tensor is not None:
                    names[id(tensor)].append(prefix + name)
        parts = dict.items(space.get(_PARTS, {}))
        waiting.extend((f"{prefix}{name}.", part) for name, part in parts if isinstance(part, torch.nn.Module))
        if len(prefix) > 1000:
            raise RecursionError("a module is within itself")
    return tuple(tuple(sorted(found)) for found in names.values() if len(found) > 1)


def _shared(trace: Trace, module: torch.nn.Module, tensors: dict[str, Any]) -> dict[str, Any] | None:
    """What is to be put in place where one tensor of the module has several names; None if that is not known."""
    place = trace.place_of(module)
    if place is None or trace.effects:
        return None
    groups = names_of_shared(module)
    trace.note("constant", (trace.facts.place("computed", None, (names_of_shared, place)),), groups)
    found = dict(tensors)
    for group in groups:
        given = [tensors[name] for name in group if name in tensors]
        if len({*map(id, given)}) > 1:
            return None  # eager says what is wrong
        if given:
            found.update(dict.fromkeys(group, given[0]))
    return found


def _places(
    trace: Trace, attributes: Attributes, module: torch.nn.Module, tensors: dict[str, Any] | None
) -> list[tuple[Any, dict[str, Any], str, Any]] | None:
    """Modules with their dictionaries, the names in these, and what is to be put there; None if it is not known."""
    found = []
    for path, tensor in ({} if tensors is None else tensors).items():
        owner: Any = module
        *parts, name = path.split(".")
        for part in parts:
            held = attributes.stored(owner, _PARTS)
            owner = trace.dict_item(held, part) if type(held) is dict else MISSING
            if not isinstance(owner, torch.nn.Module):
                return None
        for kept in _KEPT_IN:
            held = attributes.stored(owner, kept)
            if type(held) is not dict or trace.place_of(held) is None:
                return None
            if (id(held), constant_key(name)) in trace.changed:
                return None
            if trace.dict_item(held, name) is not MISSING:
                found.append((owner, held, name, tensor))
                break
        else:
            return None
    return None if tensors is None else found


class _Exchange:
    """Within it dictionaries of modules hold other tensors, which no fact is about.

    What the module puts in their place then is in ``given``, as with torch.
    """

    def __init__(self, trace: Trace, places: list[tuple[Any, dict[str, Any], str, Any]], given: dict[str, Any]) -> None:
        self.trace, self.places, self.given = trace, places, given
        self.before = [held[name] for _, held, name, _ in places]
        self.effects = len(trace.effects)

    def __enter__(self) -> None:
        for _, held, name, tensor in self.places:
            self.trace.changed.add((id(held), constant_key(name)))
            held[name] = tensor

    def __exit__(self, *error: object) -> None:
        trace, names = self.trace, {name for _, _, name, _ in self.places}
        replaced = {name: held[name] for _, held, name, tensor in self.places if held.get(name) is not tensor}
        for (_, held, name, _), tensor in zip(reversed(self.places), reversed(self.before), strict=True):
            held[name] = tensor
            trace.changed.discard((id(held), constant_key(name)))
        self.given.update({name: tensor for name, tensor in replaced.items() if name in self.given})
        owners = {id(one) for owner, held, _, _ in self.places for one in (owner, held)}
        written = trace.effects[self.effects :]
        if replaced or any(id(one.target) in owners and not names.isdisjoint(one.operands[:1]) for one in written):
            trace.end("a module replaces what it was given in place of its own")
