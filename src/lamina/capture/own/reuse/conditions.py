"""The facts of a driver as sentences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from lamina.base.plurals import counted
from lamina.capture.conditions import CODE, HOOKS, PARAMETERS, Condition, Conditions, spoken, state_sentence
from lamina.capture.modes.switches import place_of
from lamina.capture.own.reuse.driver import Driver
from lamina.capture.own.reuse.facts import Fact, Place
from lamina.capture.own.reuse.paths import program

__all__ = ["Names", "OwnConditions", "given_sentence", "said", "spoken_place"]

_OF_CODE = ("vars(", ".__code__", ".__globals__", ".__builtins__", ".__mro__", "defaults__", "__closure__", "builtins[")
_LOOKS = ("look", "varies")
_ENTRIES = (".__dict__", "globals()", "builtins", "_modules']", "_parameters']", "_buffers']")


@dataclass(frozen=True, slots=True)
class Names:
    """How a callable is called in texts, with its file and line, and ``values`` outside of it by their places' texts.

    Those are its arguments and the variables of the functions around it.
    """

    callable: str = ""
    values: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, target: Any) -> Names:
        """Those of a function or module."""
        function = getattr(target, "forward", target)
        code = getattr(function, "__code__", None)
        if not isinstance(code, CodeType):
            return cls(str(getattr(target, "__name__", type(target).__name__)))
        first = 1 if hasattr(function, "__self__") else 0
        given = code.co_varnames[first : code.co_argcount]
        keywords = code.co_varnames[first : code.co_argcount + code.co_kwonlyargcount]
        cells = f"{getattr(function, '__qualname__', '')}.__closure__"
        return cls(
            place_of(code),
            {
                **{f"args[{number}]": name for number, name in enumerate(given)},
                **{f"kwargs[{name!r}]": name for name in keywords},
                **{f"{cells}[{number}].cell_contents": name for number, name in enumerate(code.co_freevars)},
            },
        )


class OwnConditions(Conditions):
    """Those of a driver of the callable that has these ``names``."""

    def __init__(self, driver: Driver, names: Names) -> None:
        super().__init__(names.callable, driver)
        self._names = names

    def _conditions(self, owner: Driver) -> Iterator[Condition]:
        facts = program(owner.root)[1]
        looked = {fact.places[0].number for fact in facts if fact.kind in _LOOKS}
        for fact in facts:
            if fact.kind != "type" or fact.places[0].number not in looked:
                yield Condition(said(fact, self._names), fact.line, _about(fact, self._names))

    def _parts(self, owner: Driver) -> int:
        return owner.leaves

    def _raw(self, owner: Driver) -> Iterable[str]:
        return map(str, program(owner.root)[1])


def _about(fact: Fact, names: Names) -> str:
    """What it is about, see ``Condition``."""
    if not fact.places:
        return ""
    text = _named(fact.places[0], names)
    if "_hooks'" in text or (fact.kind in ("absent", "present") and "_hooks" in str(fact.value)):
        return HOOKS
    if any(part in text for part in _OF_CODE) or fact.kind in ("is", "bare", "distinct"):
        return CODE
    if fact.kind in ("absent", "present") and text.endswith(_ENTRIES):
        return CODE
    if fact.kind in _LOOKS and ("['_parameters']" in text or "['_buffers']" in text):
        return PARAMETERS
    if fact.kind in ("keys", "length") and ("_modules'" in text or "_buffers'" in text or "_parameters'" in text):
        return CODE
    return CODE if fact.kind == "type" and ("__" in text or not _is_given(fact.places[0])) else ""


def _named(place: Place, names: Names) -> str:
    """A place's text, with the names of variables."""
    text = str(place)
    for known, name in names.values.items():
        text = text.replace(known, name)
    return text


def _is_given(place: Place) -> bool:
    """Whether it is an argument, or within one that is no module."""
    while place.parent is not None:
        place = place.parent
    return place.how in ("argument", "keyword")


def spoken_place(place: Place, names: Names) -> str:
    """A place as a user would write it."""
    return spoken(_named(place, names))


def given_sentence(count: int, keywords: tuple[str, ...]) -> str:
    """Which arguments a call gives."""
    named = f" and {', '.join(keywords)} by name" if keywords else ""
    return f"{counted(count, 'argument')} by position{named}"


def said(fact: Fact, names: Names) -> str:
    """The fact as a sentence, without its line; with the ``names`` of its callable."""
    place, other = (spoken_place(fact.places[number], names) if fact.places else "" for number in (0, -1))
    if fact.kind == "state":
        grad, (cpu, cuda, _), (_, _, _, threads, *_) = fact.value
        return state_sentence(grad, cpu[1] or cuda[1], threads)
    if fact.kind == "arguments":
        return f"the call gives {given_sentence(*fact.value)}"
    if fact.kind in _LOOKS:
        look, positions = fact.value if fact.kind == "varies" else (fact.value, ())
        dtype, device, size, stride, offset, gradient, *_ = look
        rank, numbers = len(size), [*size, *stride]
        for at in positions:
            numbers[at] = "any"
        size, stride = (", ".join(map(str, part)) for part in (numbers[:rank], numbers[rank:]))
        grown = "with" if gradient else "without"
        return (
            f"{place} is a tensor of {str(dtype).removeprefix('torch.')} on {device}, sizes [{size}], "
            f"strides [{stride}], offset {offset}, {grown} gradient"
        )
    if fact.kind == "type":
        return f"the type of {place} is {fact.value.__qualname__}"
    if fact.kind == "is":
        return f"{place} is the same object"
    return fact.sentence(place, other)
