"""Facts as a program of the guard machine: rows over registers, one register for each place."""

from __future__ import annotations

import gc
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any

import torch

from lamina.base.class_flags import MADE_BY_PYTHON
from lamina.capture.own.guards.library import HOW, Library, state_words
from lamina.capture.own.guards.tensor_layouts import WORD
from lamina.capture.own.guards.torch_private import CALLED, FLAGS
from lamina.capture.own.reuse.ahead import Ahead, Apart
from lamina.capture.own.reuse.facts import Fact, Facts, Place, constant_key
from lamina.capture.own.reuse.kinds import Remembered
from lamina.capture.own.reuse.values import PARTS_OF_SHAPES, entry_of, part_of, referent
from lamina.capture.own.training.torch_private import Unhooked

__all__ = ["Program"]

_READS = ("argument", "keyword", "object", "item", "attribute", "evaluate")
_ASKS = (
    "type", "is", "constant", "length", "absent", "present", "keys", "same", "apart", "look", "bare", "arguments",
    "predicate",
)  # fmt: skip
_KINDS = {name: number for number, name in enumerate((*_READS, *_ASKS))}
"""Kinds of rows by the numbers of the machine's source."""
_MOST_STAMPS = 5
"""Words that tell of one row: class, length, address of the items and item of a list, or a dictionary's version."""
_MOST_HEADS = 4
"""Looks of a tensor that are known to the machine for one fact."""
_DICTS, _SEQUENCES = (dict, OrderedDict), (list, tuple)
_COMPARED = (int, str, float)
"""Constants that the machine compares by value; others by what they are."""
_NUMBERS = frozenset((int, float, bool))
_SINGLE = (bool, type(None), type(...), torch.dtype, torch.layout, torch.memory_format)


class Program:
    """The program for ``facts``; ``check(args, kwargs)`` gives the values of the places ``results`` or None.

    ``asked`` gives a function that says of the values at a fact's places whether it is broken, for facts that the
    machine does not know. Facts about the looks of the places ``exact`` are asked so, too.
    """

    def __init__(
        self,
        library: Library,
        facts: Facts,
        results: Iterable[Place],
        asked: Callable[[Fact], Callable[..., bool]],
        exact: frozenset[int] = frozenset(),
    ) -> None:
        self.library, self.asked, self.exact = library, asked, exact
        self._values: dict[int, Any] = {}
        self.objects: list[Any] = []
        self._numbers: dict[int, int] = {}
        self.rows: list[list[int]] = []
        self.looks: dict[int, int] = {}
        self._given: list[int] = []
        self.heads: list[list[tuple[int, ...]]] = []
        self._constants: set[int] = set()
        places = [row for row in facts.rows if isinstance(row, Place)]
        self._registers = len(places)
        self._types = {
            fact.places[0].number: fact.value for fact in facts.facts if fact.kind == "type" and len(fact.places) == 1
        }
        self._static: set[int] = set()
        self._children: dict[int, list[Place]] = {}
        for place in places:
            if self._is_static(place):
                self._static.add(place.number)
                if place.parent is not None:
                    self._children.setdefault(place.parent.number, []).append(place)
        self._write_static(facts, places)
        statics = len(self.rows)
        self._write_dynamic(facts)
        self._build(statics, [place.number for place in results])
        self._values.clear()  # a program keeps nobody's objects alive
        self.check = library.check([self.buffer, self.kept, self.objects])

    @property
    def hits(self) -> int:
        """Calls for which the machine could tell that all facts hold."""
        found: int = struct.unpack_from("=q", self.buffer, self._hits)[0]
        return found

    def knows(self, fact: Fact, tensor: torch.Tensor) -> bool:
        """Make the machine know the looks of a tensor for a fact about looks; False if it cannot."""
        head = self.library.head(tensor)
        if head is None:
            return False
        known = self.heads[self.looks[id(fact)]]
        if head not in known:
            known[:] = [*known[1 - _MOST_HEADS :], head]
            self._write_heads(self.looks[id(fact)])
        return True

    def knows_all(self, looks: Iterable[tuple[Fact, torch.Tensor]]) -> bool:
        """Whether the machine knows the looks of the tensors for these facts, as far as it compares looks."""
        known = ((self.looks.get(id(fact)), self.library.head(found)) for fact, found in looks)
        return all(number is None or head in self.heads[number] for number, head in known)

    # Which places never change their way from a fixed object.

    def _is_static(self, place: Place) -> bool:
        if place.how == "object":
            self._values[place.number] = _entries(place.key) if type(place.key) is MappingProxyType else place.key
            return True
        if place.parent is None or place.parent.number not in self._static or place.how not in ("item", "attribute"):
            return False
        owner = self._values[place.parent.number]
        position = type(place.key) is int and place.key >= 0
        if place.how == "item" and not (type(owner) in _DICTS or (type(owner) in _SEQUENCES and position)):
            return False
        try:
            value = owner[place.key] if place.how == "item" else getattr(owner, place.key)
        except (AttributeError, LookupError):
            return False
        self._values[place.number] = value
        return place.how == "item" or self.library.layouts.attribute(owner, place.key, value) != 0

    def _number(self, value: Any) -> int:
        """The number of an object that rows name."""
        found = self._numbers.get(id(value))
        if found is None:
            found = self._numbers[id(value)] = len(self.objects)
            self.objects.append(value)
        return found

    def _row(self, kind: str, to: int = 0, a: int = 0, b: int = 0, x: int = 0, y: int = 0, z: int = 0) -> None:
        self.rows.append([_KINDS[kind], to, a, b, x, y, z, 0])

    # Rows of static places: each after those of its parent, a container's next to each other.

    def _write_static(self, facts: Facts, places: list[Place]) -> None:
        told: dict[int, list[Fact]] = {}
        pairs = []
        for fact in facts.facts:
            if self._is_asked_in_python(fact) or not all(p.number in self._static for p in fact.places):
                continue
            if len(fact.places) == 1:
                told.setdefault(fact.places[0].number, []).append(fact)
            elif fact.places:
                pairs.append(fact)
        pending = [place for place in reversed(places) if place.how == "object"]
        for space, name, value in FLAGS:
            register = self._registers
            self._registers += 2
            self._row("object", register, x=self._number(space))
            self._row("item", register + 1, register, x=self._number(name), y=-1)
            self.rows[-1][7] = 1
            self._row("constant", a=register + 1, x=self._number(value))
            self._constants.add(register + 1)
        while pending:
            place = pending.pop()
            if place.how == "object" or place.how == "attribute":
                self._write_place(place)
            grouped = [f for f in told.get(place.number, ()) if f.kind in ("length", "absent", "present", "keys")]
            for fact in told.get(place.number, ()):
                if fact not in grouped:
                    self._write_fact(fact)
            start, children = len(self.rows), self._children.get(place.number, [])
            for fact in grouped:
                self._write_fact(fact)
            for child in children:
                if child.how == "item":
                    self._write_place(child)
            if len(self.rows) > start:
                self.rows[start][7] = len(self.rows) - start
            pending.extend(reversed(children))
        for fact in pairs:
            self._write_fact(fact)

    def _write_place(self, place: Place) -> None:
        number = place.number
        if place.how == "object":
            self._row("object", number, x=self._number(self._values[number]))
        elif place.how in ("argument", "keyword"):
            self._row(place.how, number, x=place.key if place.how == "argument" else self._number(place.key))
        elif place.parent is not None and place.how == "attribute":
            at = kind = 0
            if number in self._static:
                owner = self._values[place.parent.number]
                at = self.library.layouts.attribute(owner, place.key, self._values[number])
                if not isinstance(owner, type):
                    self._number(type(owner))
                    kind = id(type(owner))
            self._row("attribute", number, place.parent.number, x=self._number(place.key), y=at, z=kind)
        elif place.parent is not None:
            position = place.key if type(place.key) is int else -1
            self._row("item", number, place.parent.number, x=self._number(place.key), y=position)

    def _is_asked_in_python(self, fact: Fact) -> bool:
        """Whether the machine does not know how to ask."""
        kind, value = fact.kind, fact.value
        if kind in ("state", "arguments", "type", "is", "same", "apart"):
            return False
        number = fact.places[0].number
        found = type(self._values[number]) if number in self._static else self._types.get(number)
        if kind == "constant":
            return number not in self._static and type(value) not in (*_COMPARED, *_SINGLE)
        if kind == "length":
            return found not in (*_DICTS, *_SEQUENCES)
        if kind in ("absent", "present"):
            return found not in _DICTS
        if kind == "keys":
            return found is not dict and not (found is OrderedDict and len(value) == 0)
        if kind == "look":
            return self.library.layouts.tensor is None or number in self.exact
        if kind == "bare":
            return not self.library.layouts.bare[1] or number in self.exact
        return True

    def _is_in_dictionary(self, place: Place) -> bool:
        return place.parent is not None and type(self._values.get(place.parent.number)) in _DICTS

    def _write_fact(self, fact: Fact) -> None:
        kind, value = fact.kind, fact.value
        a = fact.places[0].number
        if kind == "keys" and not value:
            kind, value = "length", 0
        if kind == "type":
            place = fact.places[0]
            steady = place.how == "object" or (place.how == "item" and self._is_in_dictionary(place))
            changeable = value.__flags__ & MADE_BY_PYTHON or issubclass(value, ModuleType) or not steady
            self._number(value)
            self._row(kind, a=a, x=id(value), y=int(bool(changeable)))
        elif kind == "is":
            self._number(value)
            self._row(kind, a=a, x=id(value))
        elif kind == "length":
            self._row(kind, a=a, x=value)
        elif kind == "bare":
            self._row(kind, a=a)
        elif kind in ("same", "apart"):
            self._row(kind, a=a, b=fact.places[1].number)
        elif kind == "look":
            self.looks[id(fact)] = len(self.heads)
            self.heads.append([])
            self._row(kind, a=a, x=len(self.heads) - 1)
        elif kind == "constant" and a in self._static:  # what cannot change is the same as long as it is this object
            same = self._values[a]
            self._constants.add(a)
            self._row(kind, a=a, x=self._number(same if constant_key(same) == constant_key(value) else value))
        else:
            self._row(kind, a=a, x=self._number(value))

    # Rows of what an argument leads to, and of what Python has to be asked.

    def _write_dynamic(self, facts: Facts) -> None:
        for row in facts.rows:
            if isinstance(row, Place):
                if row.number not in self._static:
                    self._write_dynamic_place(row)
                continue
            if row.kind == "arguments":
                self._row("arguments", x=row.value[0], y=self._number(row.value[1]))
            elif row.kind != "state":
                if self._is_asked_in_python(row):
                    self._write_call("predicate", 0, self.asked(row), row.places)
                elif not all(place.number in self._static for place in row.places):
                    self._write_fact(row)

    def _write_dynamic_place(self, place: Place) -> None:
        parent = place.parent
        if place.how == "computed":
            self._write_call("evaluate", place.number, _computer(place), place.operands)
            return
        if parent is None:
            self._write_place(place)
            return
        kind = self._types.get(parent.number)
        position = type(place.key) is int and place.key >= 0
        if (place.how == "item" and (kind in _DICTS or (kind in _SEQUENCES and position))) or place.how == "attribute":
            self._refer(parent)
            self._write_place(place)
        else:
            self._write_call("evaluate", place.number, _reader(place), (parent,))

    def _write_call(self, kind: str, to: int, function: Callable[..., Any], places: tuple[Place, ...]) -> None:
        for place in places:
            self._refer(place)
        self._row(kind, to, len(self._given), len(places), x=self._number(function))
        self._given.extend(place.number for place in places)

    def _refer(self, place: Place) -> None:
        """Have the machine refer to what a static place holds, which is used before stamps are compared."""
        if place.number in self._static:
            self._constants.add(place.number)

    # The buffer.

    def _build(self, statics: int, results: list[int]) -> None:
        library, rows = self.library, self.rows
        called = [(id(function), HOW["called"]) for function in CALLED]
        queries = [*library.queries, *((0, address, how) for address, how in called)]
        head = 1 + _MOST_HEADS * library.head_words
        for row in rows:
            row[4] *= WORD * head if row[0] == _KINDS["look"] else 1
        capacity = _MOST_STAMPS * statics + 1
        sizes = {
            "rows": sum(map(len, rows)), "registers": self._registers, "stamps": 2 * capacity, "ranges": 2 * capacity,
            "results": len(results), "queries": 3 * len(queries), "state": len(queries), "always": statics + 1,
            "heads": head * len(self.heads), "constants": len(self._constants), "given": len(self._given),
        }  # fmt: skip
        counts = (
            0, statics, len(rows), self._registers, 0, capacity, 0, len(self._constants), len(results), len(queries), 0
        )  # fmt: skip
        places = tuple(sizes)[:-1]
        counted = (0, 0, 0)  # what the machine has done
        self._at, end = {}, (len(counts) + len(places) + len(counted)) * WORD
        self._hits = end - WORD
        for name, count in sizes.items():
            self._at[name] = end
            end += count * WORD
        self.buffer = bytearray(end)
        self.kept: list[Any] = [None] * self._registers
        for row in rows:
            if row[0] == _KINDS["look"]:
                row[4] += self._at["heads"]
            if row[0] in (_KINDS["evaluate"], _KINDS["predicate"]):
                row[2] = self._at["given"] + row[2] * WORD
        self._put(0, (*counts, *(self._at[name] for name in places), *counted))
        self._put(self._at["rows"], [word for row in rows for word in row])
        self._put(self._at["registers"], [id(None)] * self._registers)
        self._put(self._at["results"], results)
        self._put(self._at["queries"], [word for query in queries for word in query])
        self._put(self._at["given"], self._given)
        self._put(self._at["constants"], sorted(self._constants))
        answers = [function() for function in CALLED]
        self.objects.extend((*CALLED, *answers))
        self._put(self._at["state"], (*state_words(library), *map(id, answers)))

    def _put(self, at: int, words: Iterable[int]) -> None:
        given = list(words)
        struct.pack_into(f"={len(given)}q", self.buffer, at, *given)

    def _write_heads(self, number: int) -> None:
        known = self.heads[number]
        at = self._at["heads"] + number * (1 + _MOST_HEADS * self.library.head_words) * WORD
        self._put(at, (len(known), *(word for head in known for word in head)))


def _entries(view: MappingProxyType[str, Any]) -> dict[str, Any]:
    """The dictionary of a class of which ``vars`` gives a view."""
    (found,) = (entries for entries in gc.get_referents(view) if type(entries) is dict)
    return found


_OF_ANY = (
    object.__getattribute__, dict.__getitem__, dict.__contains__, issubclass, *PARTS_OF_SHAPES, entry_of, part_of,
    referent,
)  # fmt: skip
"""Functions of objects whose class a fact has told before, and that run nothing which another fact does not tell."""

_OF_TENSORS = (Ahead, Apart, Unhooked)
"""Classes of questions about tensors, whose class a fact has told before."""


def _computer(place: Place) -> Callable[..., Any]:
    """What gives the value of a place of those of its operands."""
    function, *operands = place.key
    function = function.recalled if type(function) is Remembered else function
    of_any = getattr(function, "__func__", None) is Remembered.recalled or any(function is one for one in _OF_ANY)
    of_any = of_any or type(function) in _OF_TENSORS
    if of_any and all(type(one) is Place for one in operands):
        return function

    def compute(*found: Any) -> Any:
        if not (of_any or _NUMBERS.issuperset(map(type, found))):
            raise TypeError  # an operator of the user's would be asked before its class is
        given = iter(found)
        return function(*(next(given) if type(one) is Place else one for one in operands))

    return compute


def _reader(place: Place) -> FunctionType:
    key, how = place.key, place.how

    def read(owner: Any) -> Any:
        return getattr(owner, key) if how == "attribute" else owner[key]

    return read  # type: ignore[return-value]
