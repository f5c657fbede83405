"""Where words of Python's objects and of tensors lie: found by experiments, never assumed.

A word is used only if an experiment has seen that it is another one after each change that it is to tell. What is not
found is 0, and the rows that need it are evaluated at each call, or asked in Python.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import platform
import sys
import sysconfig
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import cache
from operator import attrgetter
from types import CellType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import torch

from lamina.base.class_flags import MADE_BY_PYTHON
from lamina.capture.own.guards.tensor_layouts import WORD, TensorLayout, tensor_layout

__all__ = ["Layouts", "layouts", "word_at"]

_MANAGED = -24
"""Where CPython 3.11 to 3.13 keep the dictionary of an object with ``Py_TPFLAGS_MANAGED_DICT``, from its address."""
_MANAGED_FLAG = 1 << 4
"""``Py_TPFLAGS_MANAGED_DICT``."""
_REPEATED = 40
"""Times that a write is repeated: after a few CPython replaces instructions by special ones."""


def word_at(address: int) -> int:
    """The 8 bytes at an address of an object that is alive."""
    return ctypes.c_int64.from_address(address).value


class Layouts:
    """Places in bytes from the start of objects; 0 for what is not known.

    ``version``: a dictionary's number that is new after each change; ``size`` and ``items``: a list's length and the
    address of its items; ``length`` and ``first``: a tuple's length and its first item; ``attributes``: by class and
    name; ``managed``: where objects keep their dictionary; ``bare``: two words of a tensor's object that are null while
    it has no attributes, of which the second leads to a dictionary.
    """

    def __init__(self) -> None:
        self.version = _version()
        self.size, self.items = _of_lists()
        self.length, self.first = _of_tuples()
        self.attributes = _of_attributes()
        self.managed = _of_dictionaries()
        self.tensor: TensorLayout | None = tensor_layout()
        self.bare = _of_bare_tensors() if self.managed else (0, 0)

    def attribute(self, owner: Any, name: str, value: Any) -> int:
        """Where ``owner`` keeps ``value``, its attribute ``name``; 0 if that is not known."""
        kind = type(owner)
        place = self.attributes.get((type if isinstance(owner, type) else kind, name), 0)
        if name == "__dict__" and not place and not isinstance(owner, type):
            place = kind.__dictoffset__
            if kind.__flags__ & _MANAGED_FLAG:
                place = self.managed
            elif place <= 0 or not (kind.__flags__ & MADE_BY_PYTHON or isinstance(owner, ModuleType)):
                return 0
        if not place:
            return 0
        found = word_at(id(owner) + place)
        return place if found == id(value) or (value is None and not found) else 0


@cache
def layouts() -> Layouts | None:
    """The layouts of this interpreter and this torch; None where the machine cannot work."""
    usual = platform.python_implementation() == "CPython" and sys.maxsize == 2**63 - 1 and sys.platform == "linux"
    if not usual or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return None
    samples: list[Any] = [{}, [], (), "a", 1, 1.5, None, OrderedDict(), int, _version]
    samples += [SimpleNamespace(), ModuleType("m")]
    if any(word_at(id(sample) + WORD) != id(type(sample)) for sample in samples):
        return None
    found = Layouts()
    return found if found.version and found.size and found.length else None


class _Holder:
    """An object with attributes."""

    def __init__(self) -> None:
        self.first, self.second = 1, 2


def _version() -> int:
    for place in range(2 * WORD, dict.__basicsize__, WORD):
        if all(_is_told(place, writes) for writes in (_of_plain, _of_ordered, _of_instance, _of_class, _of_globals)):
            return place if _is_never_used_twice(place) else 0
    return 0


def _is_never_used_twice(place: int) -> bool:
    """Whether dictionaries that are made one after the other, in the same memory, have numbers of their own."""
    makers: tuple[Callable[[], Any], ...] = (
        dict, lambda: {"a": 1}, OrderedDict, lambda: vars(_Holder()), lambda: {"a": 1, }, {"b": 2}.copy,
        lambda: dict.fromkeys("ab"), lambda: dict.fromkeys("ab", 1),
    )  # fmt: skip
    seen: set[int] = set()
    for number in range(len(makers) * _REPEATED):
        made = makers[number % len(makers)]()
        found = word_at(id(made) + place)
        if found in seen:
            return False
        seen.add(found)
        del made
    return True


def _is_told(place: int, writes: Callable[[], tuple[dict[Any, Any], Iterator[None]]]) -> bool:
    """Whether the word is a new one after each write and the same one after reads."""
    written, steps = writes()
    seen = {word_at(id(written) + place)}
    for _ in steps:
        now = word_at(id(written) + place)
        if now in seen:
            return False
        seen.add(now)
        list(written.items())
        written.get("first"), len(written), "missing" in written
        if word_at(id(written) + place) != now:
            return False
    return True


def _plain_writes(d: dict[Any, Any]) -> Iterator[None]:
    for number in range(1, _REPEATED):
        d["first"] = number
        yield
        d["other"] = None
        yield
        d.update(first=object())
        yield
        d |= {"more": number}
        yield
        del d["other"]
        yield
        d.pop("more")
        yield
        d.setdefault("extra", [])
        yield
        d.popitem()
        yield
        d["first"] = d.pop("first")
        yield
    d.clear()
    yield


def _of_plain() -> tuple[dict[Any, Any], Iterator[None]]:
    d: dict[Any, Any] = {"first": 0, "second": 1}
    return d, _plain_writes(d)


def _of_ordered() -> tuple[dict[Any, Any], Iterator[None]]:
    d: OrderedDict[Any, Any] = OrderedDict(first=0, second=1)
    return d, _plain_writes(d)


def _of_instance() -> tuple[dict[Any, Any], Iterator[None]]:
    holder: Any = _Holder()

    def steps() -> Iterator[None]:
        for number in range(_REPEATED):
            holder.first = number
            yield
            holder.second = object()
            yield
            object.__setattr__(holder, "third", number)
            yield
            del holder.third
            yield

    return vars(holder), steps()


def _of_class() -> tuple[dict[Any, Any], Iterator[None]]:
    kind: Any = type("kind", (), {"first": 0})

    def steps() -> Iterator[None]:
        for number in range(1, _REPEATED):
            kind.first = number
            yield
            kind.second = number
            yield
            del kind.second
            yield

    (entries,) = (found for found in gc.get_referents(vars(kind)) if type(found) is dict)
    return entries, steps()


def _of_globals() -> tuple[dict[Any, Any], Iterator[None]]:
    space: dict[str, Any] = {}
    exec("def write(number):\n    global first\n    first = number\n", space)

    def steps() -> Iterator[None]:
        for number in range(_REPEATED):
            space["write"](number)
            yield

    return space, steps()


def _of_lists() -> tuple[int, int]:
    """Where a list has its length, and the address of its items."""
    given = [object() for _ in range(3)]
    tried, words = list(given), range(2 * WORD, list.__basicsize__, WORD)
    before = {place: word_at(id(tried) + place) for place in words}
    tried.append(None)
    sizes = [place for place in words if (before[place], word_at(id(tried) + place)) == (3, 4)]
    tried.pop()
    sizes = [place for place in sizes if word_at(id(tried) + place) == 3]
    items = [
        place
        for place in words
        if word_at(id(tried) + place) > sys.getsizeof(tried)  # an address, no number of items
        and [word_at(word_at(id(tried) + place) + at * WORD) for at in range(3)] == [id(part) for part in given]
    ]
    return (sizes[0], items[0]) if len(sizes) == len(items) == 1 else (0, 0)


def _of_tuples() -> tuple[int, int]:
    """Where a tuple has its length, and its first item."""
    parts = [object() for _ in range(3)]
    words = range(2 * WORD, tuple.__basicsize__ + WORD, WORD)
    tuples = [tuple(parts[:count]) for count in (2, 3)]
    lengths = [place for place in words if all(word_at(id(made) + place) == len(made) for made in tuples)]
    first = [
        place
        for place in words
        if all([word_at(id(made) + place + at * WORD) for at in (0, 1)] == [*map(id, made[:2])] for made in tuples)
    ]
    return (lengths[0], first[0]) if len(lengths) == len(first) == 1 else (0, 0)


def _of_attributes() -> dict[tuple[type, str], int]:
    """Where functions, cells, methods and classes keep what their attributes say."""

    def sample(number: int) -> Any:
        space = {"__builtins__": {}, "number": number}
        exec(f"def outer(c):\n    def f(a={number + 1000}.5, *, b={number + 2000}.5): return c\n    return f", space)
        made: Any = space["outer"]
        return made([number])

    found: dict[tuple[type, str], int] = {}
    names = ("__code__", "__defaults__", "__kwdefaults__", "__closure__", "__globals__", "__builtins__")
    for name in names:
        found[FunctionType, name] = _place((sample(1), sample(2)), attrgetter(name))
    cells = (CellType([1]), CellType([2]))
    found[CellType, "cell_contents"] = _place(cells, attrgetter("cell_contents"))
    methods = (MethodType(sample(1), [1]), MethodType(sample(2), [2]))
    found[MethodType, "__func__"] = _place(methods, attrgetter("__func__"))
    found[MethodType, "__self__"] = _place(methods, attrgetter("__self__"))
    kinds = (type("a", (), {}), type("b", (_Holder,), {}))
    found[type, "__mro__"] = _place(kinds, attrgetter("__mro__"))
    for name in ("__code__", "__defaults__", "__kwdefaults__"):
        if not _is_changed(sample(3), sample(4), name, found[FunctionType, name]):
            found[FunctionType, name] = 0
    if not _is_changed(CellType([3]), CellType([4]), "cell_contents", found[CellType, "cell_contents"]):
        found[CellType, "cell_contents"] = 0
    base = type("c", (), {})
    derived = type("d", (base,), {})
    place, before = found[type, "__mro__"], derived.__mro__
    derived.__bases__ = (type("e", (), {}),)
    if place and (derived.__mro__ is before or word_at(id(derived) + place) != id(derived.__mro__)):
        found[type, "__mro__"] = 0
    return found


def _place(samples: tuple[Any, Any], read: Callable[[Any], Any]) -> int:
    """The one place at which each sample has the address of what ``read`` gives for it; 0 if there is none or more."""
    kind: Any = type(samples[0])
    size: int = kind.__basicsize__
    places = [
        place
        for place in range(2 * WORD, size, WORD)
        if all(word_at(id(sample) + place) == id(read(sample)) for sample in samples)
    ]
    return places[0] if len(places) == 1 else 0


def _is_changed(owner: Any, other: Any, name: str, place: int) -> bool:
    """Whether the word at ``place`` follows a write to the attribute."""
    if not place:
        return False
    for value in (getattr(other, name), getattr(owner, name)):
        setattr(owner, name, value)
        if word_at(id(owner) + place) != id(value):
            return False
    return True


def _of_dictionaries() -> int:
    """Where objects keep their dictionary in front of them; 0 if they do not."""
    for first, second in itertools.pairwise([_Holder() for _ in range(4)]):
        held = vars(first)
        if not _Holder.__flags__ & _MANAGED_FLAG or word_at(id(first) + _MANAGED) != id(held):
            return 0
        first.__dict__ = replaced = dict(vars(second))
        if word_at(id(first) + _MANAGED) != id(replaced):
            return 0
    return _MANAGED


def _of_bare_tensors() -> tuple[int, int]:
    """Words in front of a tensor's object that are null if it has no attributes; (0, 0) if attributes do not show."""
    places = _MANAGED - WORD, _MANAGED
    for kind in (torch.Tensor, torch.nn.Parameter):
        for number in range(_REPEATED):
            tried: Any = torch.empty(2) if kind is torch.Tensor else torch.nn.Parameter(torch.empty(2))
            if not type(tried).__flags__ & _MANAGED_FLAG or any(word_at(id(tried) + place) for place in places):
                return 0, 0
            setattr(tried, f"label{number % 3}", number)
            words = [word_at(id(tried) + place) for place in places]
            own = vars(tried)
            if not any(words) or [word_at(id(tried) + place) for place in places] != [0, id(own)]:
                return 0, 0
            tried.__dict__ = other = dict(own)
            if [word_at(id(tried) + place) for place in places] != [0, id(other)]:
                return 0, 0
    return places
