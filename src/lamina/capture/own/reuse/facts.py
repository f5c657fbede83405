"""What a call has read of the world outside, as data: places, and what was found there."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    FunctionType,
    MethodDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

import torch

from lamina.capture.own.frame import MISSING

__all__ = ["SINGLETONS", "Fact", "Facts", "Place", "called", "constant_key", "is_settled", "shown"]

_NUMBERS = (int, float, complex, str, bytes, bool, type(None), type(...))
SINGLETONS = (bool, type(None), type(...), torch.dtype, torch.layout, torch.memory_format)
"""Classes of constants each of which is one object."""
_CONSTANTS = frozenset((*_NUMBERS, *SINGLETONS, torch.device, torch.Size, type(NotImplemented), type(MISSING)))


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
    "attribute" (a name) or "item" (a key of a dictionary or a position in a sequence). "computed" is what a function
    gives of numbers: ``key`` is the function and its operands, which are places and constants.
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
        if self.how == "computed":
            function, *operands = self.key
            return function(*(one.value(args, kwargs) if type(one) is Place else one for one in operands))
        assert self.parent is not None
        owner = self.parent.value(args, kwargs)
        return getattr(owner, self.key) if self.how == "attribute" else owner[self.key]

    @property
    def operands(self) -> tuple[Place, ...]:
        """The places that it is computed from, if it is."""
        return tuple(one for one in self.key if type(one) is Place) if self.how == "computed" else ()

    def __str__(self) -> str:
        if self.how == "computed":
            return _computation(*self.key)
        if self.how == "argument":
            return f"args[{self.key}]"
        if self.how == "keyword":
            return f"kwargs[{self.key!r}]"
        if self.how == "object":
            return self.name
        return f"{self.parent}.{self.key}" if self.how == "attribute" else f"{self.parent}[{self.key!r}]"


_SIGNS = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "lt": "<",
    "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "lshift": "<<", "rshift": ">>", "and_": "&",
    "or_": "|", "xor": "^",
}  # fmt: skip


def _computation(function: Any, *operands: Any) -> str:
    """A function of numbers with its operands, as a program has it."""
    name = str(getattr(function, "__name__", "a function"))
    sign = _SIGNS.get(name) or _SIGNS.get(name.removeprefix("i"))
    texts = [str(one) if type(one) is Place else repr(one) for one in operands]
    return f"({texts[0]} {sign} {texts[1]})" if sign and len(texts) == 2 else f"{name}({', '.join(texts)})"


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
        told = self.sentence(str(self.places[0]), str(self.places[-1])) if self.places else self.sentence("", "")
        return f"{told}  # {self.line}" if self.line else told

    def sentence(self, place: str, other: str) -> str:
        """What holds of the first and the last of its places, which are called ``place`` and ``other``."""
        return _SENTENCES[self.kind].format(place=place, other=other, value=shown(self.value))


def shown(value: Any) -> str:
    """A constant, or what an object is called, as a text of at most 200 characters; no code of the object's runs."""
    if is_settled(value):
        return repr(value)[:200]
    if type(value) is tuple:
        return f"({', '.join(shown(part) for part in value)})"[:200]
    return called(value) or f"one {type(value).__qualname__}"


def called(value: Any) -> str:
    """The name of a class, function or module, "" for others; no code of the object's or of its class's runs."""
    kind = type(value)
    if issubclass(kind, type):
        return str(_CLASS_NAME.__get__(value))
    if kind is ModuleType:
        return str(vars(value).get("__name__", ""))
    return str(value.__qualname__) if kind in _FUNCTIONS else ""


_CLASS_NAME: Any = type.__dict__["__qualname__"]
_FUNCTIONS = frozenset(
    (FunctionType, BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType, ClassMethodDescriptorType)
)
"""Types of functions whose name is their own attribute."""


_SENTENCES = {
    "arguments": "arguments: {value}",
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
    "varies": "{place} looks like {value}, but for some sizes and strides",
    "bare": "{place} has no attributes of its own",
    "distinct": "{place} to {other} are different objects",
    "answer": "{place}: {value}",
}


@dataclass(slots=True)
class Facts:
    """Facts in the order in which they were found: what a fact needs to be asked safely stands before it."""

    rows: list[Place | Fact] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    _places: dict[Any, Place] = field(default_factory=dict)
    _noted: set[Any] = field(default_factory=set)

    def place(self, how: str, parent: Place | None, key: Any, name: str = "") -> Place:
        """The place, the same one each time."""
        wanted = (how, parent and parent.number, id(key) if how == "object" else constant_key(key))
        found = self._places.get(wanted)
        if found is None:
            found = self._places[wanted] = Place(len(self._places), how, parent, key, name)
            self.places.append(found)
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

    @property
    def facts(self) -> list[Fact]:
        """The facts without the places."""
        return [row for row in self.rows if isinstance(row, Fact)]

    def text(self) -> str:
        """One line a fact."""
        return "\n".join(map(str, self.facts))
