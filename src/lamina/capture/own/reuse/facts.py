"""What a call has read of the world outside, as data: places, and what was found there."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from lamina.capture.own.frame import MISSING

__all__ = ["Fact", "Facts", "Place", "constant_key", "is_settled"]

_NUMBERS = (int, float, complex, str, bytes, bool, type(None), type(...))
_SINGLETONS = (bool, type(None), type(...), torch.dtype, torch.layout, torch.memory_format)
_CONSTANTS = frozenset((*_NUMBERS, *_SINGLETONS, torch.device, torch.Size, type(NotImplemented), type(MISSING)))


def is_settled(value: Any) -> bool:
    """Whether ``value`` is a constant: it has no parts that may change and nobody asks which of equal ones it is."""
    kind = type(value)
    if kind is tuple or kind is frozenset:
        return all(is_settled(part) for part in value)
    if kind is slice:
        return all(is_settled(part) for part in (value.start, value.stop, value.step))
    return kind in _CONSTANTS


def constant_key(value: Any) -> Any:
    """What tells a constant from all others: 0.0 from -0.0, 1 from True, each NaN from numbers."""
    kind = type(value)
    if kind is tuple:
        return kind, tuple(constant_key(part) for part in value)
    if kind is frozenset:
        return kind, frozenset(constant_key(part) for part in value)
    if kind is slice:
        return kind, constant_key((value.start, value.stop, value.step))
    if kind is float or kind is complex:
        return kind, repr(value)
    return kind, value


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Where a value is found: ``how`` from the value at ``parent``, or from the arguments or a fixed object.

    ``how`` is "argument" (``key`` a position), "keyword" (a name), "object" (the object itself, with ``name``),
    "attribute" (a name) or "item" (a key of a dictionary or a position in a sequence).
    """

    number: int
    how: str
    parent: Place | None
    key: Any
    name: str = ""

    @property
    def variable(self) -> str:
        """Its name in the driver."""
        return f"p{self.number}"

    def value(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What is there for a call; raises where the place is not there."""
        if self.how == "argument":
            return args[self.key]
        if self.how == "keyword":
            return kwargs[self.key]
        if self.how == "object":
            return self.key
        assert self.parent is not None
        owner = self.parent.value(args, kwargs)
        return getattr(owner, self.key) if self.how == "attribute" else owner[self.key]

    def __str__(self) -> str:
        if self.how == "argument":
            return f"args[{self.key}]"
        if self.how == "keyword":
            return f"kwargs[{self.key!r}]"
        if self.how == "object":
            return self.name
        return f"{self.parent}.{self.key}" if self.how == "attribute" else f"{self.parent}[{self.key!r}]"


@dataclass(frozen=True, slots=True, eq=False)
class Fact:
    """What a call found: ``kind`` says what was asked of ``places``, ``value`` what the answer was.

    ``line`` is the user's line that asked.
    """

    kind: str
    places: tuple[Place, ...]
    value: Any
    line: str

    def __str__(self) -> str:
        told = _SENTENCES[self.kind].format(
            place=self.places[0] if self.places else "",
            other=self.places[-1] if self.places else "",
            value=getattr(self.value, "__qualname__", None) or repr(self.value)[:200],
        )
        return f"{told}  # {self.line}" if self.line else told


_SENTENCES = {
    "arguments": "{value[0]} positional arguments and the keywords {value[1]}",
    "state": "the state of torch is {value}",
    "type": "type({place}) is {value}",
    "is": "{place} is {value}",
    "constant": "{place} is {value}",
    "length": "len({place}) is {value}",
    "keys": "the keys of {place} are {value}",
    "absent": "{place} has no {value}",
    "present": "{place} has {value}",
    "same": "{place} is {other}",
    "apart": "{place} is not {other}",
    "look": "{place} looks like {value}",
    "bare": "{place} has no attributes of its own",
    "unshared": "the tensors {place} to {other} share no memory",
    "answer": "{value[1]} is what {value[0]} says of {place}",
}
_SENTENCES["arguments"] = "arguments: {value}"
_SENTENCES["answer"] = "{place}: {value}"


@dataclass(slots=True)
class Facts:
    """Facts in the order in which they were found: what a fact needs to be asked safely stands before it.

    ``objects`` are those that facts compare with and programs use, by the names that they have there.
    """

    rows: list[Place | Fact] = field(default_factory=list)
    objects: dict[str, Any] = field(default_factory=dict)
    _places: dict[Any, Place] = field(default_factory=dict)
    _names: dict[int, str] = field(default_factory=dict)
    _noted: set[Any] = field(default_factory=set)

    def place(self, how: str, parent: Place | None, key: Any, name: str = "") -> Place:
        """The place, the same one each time."""
        wanted = (how, parent and parent.number, id(key) if how == "object" else constant_key(key))
        found = self._places.get(wanted)
        if found is None:
            found = self._places[wanted] = Place(len(self._places), how, parent, key, name)
            self.rows.append(found)
        return found

    def note(self, kind: str, places: tuple[Place, ...], value: Any, line: str) -> None:
        """Note a fact, once."""
        told = id(value) if kind in ("type", "is") else constant_key(value)
        wanted = (kind, tuple(place.number for place in places), told)
        try:
            known = wanted in self._noted
        except TypeError:
            known = False
        else:
            self._noted.add(wanted)
        if not known:
            self.rows.append(Fact(kind, places, value, line))

    def object(self, value: Any) -> str:
        """The name of an object in a program's namespace."""
        found = self._names.get(id(value))
        if found is None:
            found = self._names[id(value)] = f"o{len(self._names)}"
            self.objects[found] = value
        return found

    @property
    def facts(self) -> list[Fact]:
        """The facts without the places."""
        return [row for row in self.rows if isinstance(row, Fact)]

    def text(self) -> str:
        """One line a fact."""
        return "\n".join(map(str, self.facts))

    def lines(self) -> list[str]:
        """A program that leaves by ``return m<n>`` where fact n does not hold; it has each place as a variable."""
        found, number = [], 0
        for row in self.rows:
            if isinstance(row, Place):
                found.append(f"{row.variable} = {self._read(row)}")
                continue
            found.append(f"if {self._broken(row)}: return m{number}")
            number += 1
        return found

    def question(self, fact: Fact, space: dict[str, Any]) -> Callable[..., bool]:
        """A function that tells of the values at a fact's places whether it is broken; it uses names of ``space``."""
        names = [f"q{number}" for number in range(len(fact.places))]
        broken = _CONDITIONS[fact.kind](self, names, fact.value)
        asked: Callable[..., bool] = eval(f"lambda {', '.join(names)}: bool({broken})", {**space, **self.objects})
        return asked

    def _read(self, place: Place) -> str:
        if place.how == "argument":
            return f"args[{place.key}]"
        if place.how == "keyword":
            return f"kwargs[{place.key!r}]"
        if place.how == "object":
            return self.object(place.key)
        assert place.parent is not None
        if place.how == "attribute":
            return f"{place.parent.variable}.{place.key}"
        return f"{place.parent.variable}[{self.literal(place.key)}]"

    def literal(self, value: Any) -> str:
        """An expression for a constant."""
        plain = type(value) in (int, str, bool, type(None)) or (type(value) is float and math.isfinite(value))
        return repr(value) if plain else self.object(value)

    def _broken(self, fact: Fact) -> str:
        names = [place.variable for place in fact.places]
        return _CONDITIONS[fact.kind](self, names, fact.value)


def _constant(facts: Facts, names: list[str], value: Any) -> str:
    kind = type(value)
    if kind in _SINGLETONS:
        return f"{names[0]} is not {facts.literal(value)}"
    if kind in (int, str) or (kind is float and value and math.isfinite(value)):
        return f"type({names[0]}) is not {kind.__name__} or {names[0]} != {value!r}"
    return f"constant_key({names[0]}) != {facts.object(constant_key(value))}"


def _looks(facts: Facts, names: list[str], value: Any) -> str:
    dtype, device, shape, stride, offset, requires_grad, is_leaf, conj, neg = value
    p = names[0]
    asked = [
        f"{p}.dtype is not {facts.object(dtype)}",
        f"{p}.shape != {shape!r}",
        f"{p}.stride() != {stride!r}",
        f"{p}.requires_grad is not {requires_grad}",
        f"{p}.is_leaf is not {is_leaf}",
        f"{p}.storage_offset() != {offset}",
        f"{p}.device != {facts.object(device)}",
        f"{p}.is_conj() is not {conj}",
        f"{p}.is_neg() is not {neg}",
        f"{p}.layout is not {facts.object(torch.strided)}",
        f"{p}.is_quantized or {p}.is_inference() or is_wrapped({p})",
    ]
    return " or ".join(asked)


def _keys(facts: Facts, names: list[str], value: Any) -> str:
    kinds = facts.object([*map(type, value)])
    return f"len({names[0]}) != {len(value)} or [*map(type, {names[0]})] != {kinds} or (*{names[0]},) != {value!r}"


_CONDITIONS: dict[str, Callable[[Facts, list[str], Any], str]] = {
    "arguments": lambda f, n, v: f"len(args) != {v[0]} or " + (f"(*kwargs,) != {v[1]!r}" if v[1] else "kwargs"),
    "state": lambda f, n, v: f"state() != {f.object(v)}",
    "type": lambda f, n, v: f"type({n[0]}) is not {f.object(v)}",
    "is": lambda f, n, v: f"{n[0]} is not {f.object(v)}",
    "constant": _constant,
    "length": lambda f, n, v: f"len({n[0]}) != {v}",
    "keys": _keys,
    "absent": lambda f, n, v: f"{f.literal(v)} in {n[0]}",
    "present": lambda f, n, v: f"{f.literal(v)} not in {n[0]}",
    "same": lambda f, n, v: f"{n[0]} is not {n[1]}",
    "apart": lambda f, n, v: f"{n[0]} is {n[1]}",
    "look": _looks,
    "bare": lambda f, n, v: f"{n[0]}.__dict__",
    "unshared": lambda f, n, v: f"share_memory(({', '.join(n)},))",
    "answer": lambda f, n, v: f"{f.object(v[0])}({', '.join(n)}) is not {v[1]}",
}
