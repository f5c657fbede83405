"""A driver as a document of JSON, and a driver of a document: facts, the program in steps, and the objects named in it.

A code object is found where a fact says that it is, and is the one that was meant if it computes the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any

from lamina.artefacts.code import code_digest
from lamina.artefacts.constants import Unstorable, read_constant, written_constant
from lamina.artefacts.names import CODE, named, written_name
from lamina.artefacts.questions import asked_again, written_question
from lamina.artefacts.table import BY_IDENTITY, Table, written_table
from lamina.capture.own.reuse.asking import Line, Names
from lamina.capture.own.reuse.driver import Driver
from lamina.capture.own.reuse.facts import Fact, Place
from lamina.capture.own.reuse.kinds import Remembered
from lamina.capture.own.reuse.paths import Node

__all__ = ["Stored", "written_driver"]

_GRAPH = "graph"
"""How the name of a compiled graph begins; its number follows."""


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
        rows = written_table([self._row(number, row) for number, row in enumerate(driver.facts.rows)])
        names = [self._named(value) for value in driver.names.kept()]
        return {"rows": rows, "names": names, "tree": self._tree(driver), "objects": self.objects}

    def _object(self, value: Any) -> int:
        """The number of an object among those that are named."""
        found = self._numbers.get(id(value))
        if found is None:
            if id(value) in self.runs:
                self.graphs.append(value)
                name: list[Any] = [_GRAPH, len(self.graphs) - 1]
            else:
                name = written_question(value) or written_name(value, self.target, self.views)
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
        if row.kind in BY_IDENTITY:
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

    def _tree(self, driver: Driver) -> dict[str, Any]:
        """The program; what asks all facts, in their order, is made of them again."""
        if not driver.decides and len(driver.root.asks) == len(driver.facts.rows):
            return {**self._node(replace(driver.root, asks=[])), "asks": None}
        return self._node(driver.root)

    def _node(self, node: Node) -> dict[str, Any]:
        asks = []
        for line in node.asks:
            if line.fact is not None and id(line.fact) not in self._facts:
                raise Unstorable("a program that has learnt of other calls")
            asks.append([line.text, None if line.fact is None else self._facts[id(line.fact)]])
        nexts = [[condition, self._node(following)] for condition, following in node.nexts]
        return {"asks": asks, "steps": node.steps, "name": node.name, "nexts": nexts, "end": node.end}


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
        self._fixed: dict[int, Any] = {}
        self._table = Table(document["rows"], self._objects, self._is_meant)
        self.count = self._table.count

    def _found(self, number: int, name: list[Any], target: Any) -> Any:
        if name[0] == _GRAPH:
            return None
        if name[0] == CODE:
            return _Meant(number, name[1])
        asks = asked_again(name)
        return named(name, target) if asks is None else asks

    def values(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int, Any] | Fact:
        """What is at each place for a call in the ordinary state, or the first fact that does not hold.

        A place that is not there raises whatever reading it does. Where a function with a cache has computed what it
        does not remember, all is read once more: that may have changed what was read before.
        """
        self._bound.clear()
        caches = [asked for asked in self._table.functions() if type(asked) is Remembered]
        before = [asked.computed for asked in caches]
        found = self._table.values(args, kwargs)
        if [asked.computed for asked in caches] != before:
            found = self._table.values(args, kwargs)
        if isinstance(found, int):
            fact = self._table.facts(self._objects).rows[found]
            assert isinstance(fact, Fact)
            return fact
        values, self._fixed = found
        return dict(enumerate(values))

    def _is_meant(self, found: Any, meant: Any) -> bool | None:
        """Whether ``found`` is the code object that ``meant`` tells of; None if that is another object."""
        if not isinstance(meant, _Meant):
            return None
        if type(found) is not CodeType or code_digest(found) != meant.digest:
            return False
        return self._bound.setdefault(meant.number, found) is found

    def driver(self, graphs: list[Callable[..., Any]]) -> Driver:
        """The driver that runs ``graphs``, after ``values`` has found that all facts hold."""
        for number, name in enumerate(self.document["objects"]):
            if name[0] == _GRAPH:
                self._objects[number] = graphs[name[1]]
        objects = [self._bound.get(number, found) for number, found in enumerate(self._objects)]
        names = Names()
        for place, (how, value) in enumerate(self.document["names"]):
            name = names.key(_read_key(value, objects)) if how == "key" else names.object(objects[value])
            if name != f"o{place}":
                raise ValueError("two of the objects that it names are one here")
        table, tree = self._table, self.document["tree"]
        if tree["asks"] is None:
            root = _node({**tree, "asks": []}, [])
            return Driver.of_program(names, lambda: table.facts(objects), root, graphs, self._fixed)
        facts = table.facts(objects)
        return Driver.of_program(names, facts, _node(tree, facts.rows), graphs, self._fixed)


def _read_key(text: Mapping[str, Any], objects: list[Any]) -> Any:
    ((how, value),) = text.items()
    if how in ("class", "object"):
        return objects[value]
    if how == "constant":
        return read_constant(value)
    return (tuple if how == "tuple" else frozenset)(_read_key(part, objects) for part in value)


def _node(text: Mapping[str, Any], rows: list[Place | Fact]) -> Node:
    asks = []
    for line, number in text["asks"]:
        row = None if number is None else rows[number]
        assert row is None or isinstance(row, Fact)
        asks.append(Line(line, row))
    nexts = [(condition, _node(following, rows)) for condition, following in text["nexts"]]
    return Node(asks, list(text["steps"]), text["name"], nexts, list(text["end"]))
