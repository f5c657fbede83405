"""A driver as a document of JSON, and a driver of a document: facts, the program in steps, and the objects named in it.

A code object is found where a fact says that it is, and is the one that was meant if it computes the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any

from lamina.artefacts.code import code_digest
from lamina.artefacts.constants import Unstorable, read_constant, written_constant
from lamina.artefacts.names import CODE, named, written_name
from lamina.capture.own.reuse.asking import Line, Names
from lamina.capture.own.reuse.driver import Driver
from lamina.capture.own.reuse.facts import Fact, Facts, Place
from lamina.capture.own.reuse.holding import holds, values_of
from lamina.capture.own.reuse.kinds import Remembered
from lamina.capture.own.reuse.paths import Node

__all__ = ["Stored", "written_driver"]

_GRAPH = "graph"
"""How the name of a compiled graph begins; its number follows."""
_BY_IDENTITY = ("type", "is")
"""Kinds of facts whose values are objects."""


def written_driver(
    driver: Driver, target: Any, graphs: list[Callable[..., Any]], views: Mapping[int, type]
) -> dict[str, Any]:
    """A document of ``driver``, whose compiled graphs are appended to ``graphs``. Raises ``Unstorable``."""
    return _Writer(target, graphs, dict(views)).driver(driver)


class _Writer:
    def __init__(self, target: Any, graphs: list[Callable[..., Any]], views: dict[int, type]) -> None:
        self.target, self.graphs, self.views = target, graphs, views
        self.objects: list[list[Any]] = []
        self._numbers: dict[int, int] = {}
        self._facts: dict[int, int] = {}

    def driver(self, driver: Driver) -> dict[str, Any]:
        self.runs = {*map(id, driver.graphs)}
        rows = _columns([self._row(number, row) for number, row in enumerate(driver.facts.rows)])
        names = [self._named(value) for value in driver.names.kept()]
        return {"rows": rows, "names": names, "tree": self._node(driver.root), "objects": self.objects}

    def _object(self, value: Any) -> int:
        """The number of an object among those that are named."""
        found = self._numbers.get(id(value))
        if found is None:
            if id(value) in self.runs:
                self.graphs.append(value)
                name: list[Any] = [_GRAPH, len(self.graphs) - 1]
            else:
                name = written_name(value, self.target, self.views)
            found = self._numbers[id(value)] = len(self.objects)
            self.objects.append(name)
        return found

    def _named(self, kept: tuple[bool, Any]) -> list[Any]:
        by_key, value = kept
        return ["key", self._key(value)] if by_key else ["object", self._object(value)]

    def _key(self, value: Any) -> Any:
        """What a program calls a constant, or the key of one, in which classes stand for kinds."""
        if isinstance(value, type):
            return {"class": self._object(value)}
        if type(value).__name__ == "IsA":
            return {"object": self._object(value)}
        if type(value) is tuple:
            return {"tuple": [self._key(part) for part in value]}
        if type(value) is frozenset:
            return {"frozenset": [self._key(part) for part in value]}
        return {"constant": written_constant(value)}

    def _row(self, number: int, row: Place | Fact) -> tuple[str, Any, Any, str]:
        """What is asked, of what, what it is, and the line or name; a constant is the only item of a list."""
        if isinstance(row, Place):
            parent = None if row.parent is None else row.parent.number
            return row.how, parent, self._place_key(row), row.name
        self._facts[id(row)] = number
        places = [place.number for place in row.places]
        if row.kind in _BY_IDENTITY:
            value: Any = self._object(row.value)
        elif row.kind == "answer":
            value = [self._object(row.value[0]), row.value[1]]
        else:
            value = [written_constant(row.value)]
        return f"?{row.kind}", places[0] if len(places) == 1 else places, value, row.line

    def _place_key(self, place: Place) -> Any:
        """The key of a place: an object, a function with its operands, or a constant."""
        if place.how == "object":
            return self._object(place.key)
        if place.how != "computed":
            return [written_constant(place.key)]
        function, *operands = place.key
        given = [[one.number] if type(one) is Place else written_constant(one) for one in operands]
        return [self._object(function), given]

    def _node(self, node: Node) -> dict[str, Any]:
        asks = []
        for line in node.asks:
            if line.fact is not None and id(line.fact) not in self._facts:
                raise Unstorable("a program that has learnt of other calls")
            asks.append([line.text, None if line.fact is None else self._facts[id(line.fact)]])
        nexts = [[condition, self._node(following)] for condition, following in node.nexts]
        return {"asks": asks, "steps": node.steps, "name": node.name, "nexts": nexts, "end": node.end}


def _columns(rows: Sequence[tuple[str, Any, Any, str]]) -> dict[str, list[Any]]:
    """The columns of a table, each entry of all but that of places as its number among those that are different."""
    hows, abouts, values, lines = zip(*rows, strict=True) if rows else ((), (), (), ())
    found: dict[str, list[Any]] = {"about": [*abouts]}
    for name, column in (("how", hows), ("value", values), ("line", lines)):
        numbers: dict[str, int] = {}
        found[name] = [numbers.setdefault(json.dumps(entry), len(numbers)) for entry in column]
        found[f"{name}s"] = [json.loads(text) for text in numbers]
    return found


@dataclass(frozen=True, slots=True)
class _Meant:
    """A code object that is still to be found: the one with this ``digest``; ``number`` tells it from others."""

    number: int
    digest: str


class Stored:
    """The driver of a ``document`` for ``target``. Raises ``LookupError`` or ``ValueError`` where it cannot be one.

    ``failing`` says which fact does not hold for a call, ``driver`` makes the driver once all do.
    """

    def __init__(self, document: Mapping[str, Any], target: Any) -> None:
        self.document = document
        self._objects = [self._found(number, name, target) for number, name in enumerate(document["objects"])]
        self._bound: dict[int, CodeType] = {}
        self.facts = Facts()
        places = self._read(document["rows"])
        self._rows = [*self.facts.rows]
        if places != len(self.facts.places):
            raise ValueError("two of the places that it names are one here")

    def _found(self, number: int, name: list[Any], target: Any) -> Any:
        if name[0] == _GRAPH:
            return None
        return _Meant(number, name[1]) if name[0] == CODE else named(name, target)

    def _read(self, table: Mapping[str, list[Any]]) -> int:
        """Add the rows of a table to the facts; gives how many of them are places."""
        kinds = [(how.startswith("?"), how.removeprefix("?")) for how in table["hows"]]
        values = [read_constant(one[0]) if type(one) is list and len(one) == 1 else one for one in table["values"]]
        lines, objects, count = table["lines"], self._objects, 0
        places, rows, place = self.facts.places, self.facts.rows, self.facts.place
        columns = (table["how"], table["about"], table["value"], table["line"])
        for number, about, given, line in zip(*columns, strict=True):
            is_fact, how = kinds[number]
            value = values[given]
            if not is_fact:
                count += 1
                key = objects[value] if how == "object" else self._asked(*value) if how == "computed" else value
                place(how, None if about is None else places[about], key, lines[line])
                continue
            if how in _BY_IDENTITY:
                value = objects[value]
            elif how == "answer":
                value = (objects[value[0]], value[1])
            at = (places[about],) if type(about) is int else tuple(places[one] for one in about)
            rows.append(Fact(how, at, value, lines[line]))
        return count

    def _asked(self, number: int, operands: list[Any]) -> tuple[Any, ...]:
        """A function and its operands."""
        places = self.facts.places
        given = (places[one[0]] if type(one) is list else read_constant(one) for one in operands)
        return self._objects[number], *given

    def values(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int, Any] | Fact:
        """What is at each place for a call in the ordinary state, or the first fact that does not hold.

        A place that is not there raises whatever reading it does. Where a function with a cache has computed what it
        does not remember, all is read once more: that may have changed what was read before.
        """
        self._bound.clear()
        caches = [r.key[0] for r in self._rows if isinstance(r, Place) and r.how == "computed"]
        before = [asked.computed for asked in caches if type(asked) is Remembered]
        found = values_of(self._rows, args, kwargs, self._holds)
        if [asked.computed for asked in caches if type(asked) is Remembered] == before:
            return found
        return values_of(self._rows, args, kwargs, self._holds)

    def _holds(self, fact: Fact, values: list[Any]) -> bool:
        if not isinstance(fact.value, _Meant):
            return holds(fact, values)
        found, meant = values[0], fact.value
        if type(found) is not CodeType or code_digest(found) != meant.digest:
            return False
        return self._bound.setdefault(meant.number, found) is found

    def driver(self, graphs: list[Callable[..., Any]]) -> Driver:
        """The driver that runs ``graphs``, after ``values`` has found that all facts hold."""
        for number, name in enumerate(self.document["objects"]):
            if name[0] == _GRAPH:
                self._objects[number] = graphs[name[1]]
        rows: list[Place | Fact] = []
        for row in self._rows:
            if isinstance(row, Fact) and isinstance(row.value, _Meant):
                row = replace(row, value=self._bound[row.value.number])
            rows.append(row)
        self.facts.rows[:] = rows
        names = Names()
        for place, (how, value) in enumerate(self.document["names"]):
            name = names.key(self._read_key(value)) if how == "key" else names.object(self._bound_object(value))
            if name != f"o{place}":
                raise ValueError("two of the objects that it names are one here")
        return Driver.of_program(names, self.facts, self._node(self.document["tree"], rows), graphs)

    def _bound_object(self, number: int) -> Any:
        found = self._objects[number]
        return self._bound[number] if isinstance(found, _Meant) else found

    def _read_key(self, text: Mapping[str, Any]) -> Any:
        ((how, value),) = text.items()
        if how in ("class", "object"):
            return self._bound_object(value)
        if how == "constant":
            return read_constant(value)
        return (tuple if how == "tuple" else frozenset)(self._read_key(part) for part in value)

    def _node(self, text: Mapping[str, Any], rows: list[Place | Fact]) -> Node:
        asks = []
        for line, number in text["asks"]:
            row = None if number is None else rows[number]
            assert row is None or isinstance(row, Fact)
            asks.append(Line(line, row))
        nexts = [(condition, self._node(following, rows)) for condition, following in text["nexts"]]
        return Node(asks, list(text["steps"]), text["name"], nexts, list(text["end"]))
