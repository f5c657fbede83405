"""The facts of a stored driver as columns of a table, asked row by row before objects are made of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from lamina.artefacts.constants import read_constant
from lamina.capture.own.reuse.facts import Fact, Facts, Place
from lamina.capture.own.reuse.holding import is_so

__all__ = ["BY_IDENTITY", "Table", "written_table"]

BY_IDENTITY = ("type", "is")
"""Kinds of facts whose values are objects."""


def written_table(rows: Sequence[tuple[str, Any, Any, str]]) -> dict[str, list[Any]]:
    """The columns of a table, each entry of all but that of places as its number among those that are different."""
    hows, abouts, values, lines = zip(*rows, strict=True) if rows else ((), (), (), ())
    found: dict[str, list[Any]] = {"about": [*abouts]}
    for name, column in (("how", hows), ("value", values), ("line", lines)):
        numbers: dict[str, int] = {}
        found[name] = [numbers.setdefault(json.dumps(entry), len(numbers)) for entry in column]
        found[f"{name}s"] = [json.loads(text) for text in numbers]
    return found


class Table:
    """Columns that ``written_table`` gave, whose numbers of objects are those of ``objects``. May raise ``ValueError``.

    ``holds`` asks of a value whether it is what an object of the table means, which ``is`` does not tell of those that
    are still to be found.
    """

    def __init__(
        self, columns: Mapping[str, list[Any]], objects: list[Any], holds: Callable[[Any, Any], bool | None]
    ) -> None:
        self.columns, self.objects, self.holds = columns, objects, holds
        self._constants = [
            read_constant(one[0]) if type(one) is list and len(one) == 1 else one for one in columns["values"]
        ]
        are_facts = [how.startswith("?") for how in columns["hows"]]
        self.count = sum(map(are_facts.__getitem__, columns["how"]))
        """How many facts there are."""

    def _rows(self) -> Iterator[tuple[int, tuple[int, Any, int]]]:
        how, about, value = (self.columns[name] for name in ("how", "about", "value"))
        return enumerate(zip(how, about, value, strict=True))

    def functions(self) -> list[Any]:
        """What is asked where a place is computed."""
        if "computed" not in self.columns["hows"]:
            return []
        computed = self.columns["hows"].index("computed")
        return [self.objects[self._constants[given][0]] for _, (how, _, given) in self._rows() if how == computed]

    def values(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], dict[int, Any]] | int:
        """What is at each place for a call, and the fixed objects of those by numbers, or the first row that is not so.

        No more is read of an object than the rows before say that it has. A place that is not there raises.
        """
        hows, constants, objects = self.columns["hows"], self._constants, self.objects
        values: list[Any] = []
        fixed: dict[int, Any] = {}
        add = values.append
        for row, (number, about, given) in self._rows():
            how, wanted = hows[number], constants[given]
            if how == "item":
                add(values[about][wanted])
            elif how == "?type":
                if type(values[about]) is not objects[wanted]:
                    return row
            elif how == "?absent":
                if wanted in values[about]:
                    return row
            elif how == "?length":
                if len(values[about]) != wanted:
                    return row
            elif how == "attribute":
                add(getattr(values[about], wanted))
            elif how == "object":
                fixed[len(values)] = objects[wanted]
                add(objects[wanted])
            elif how[0] == "?":
                if not self._is_so(how[1:], about, wanted, values, (args, kwargs)):
                    return row
            else:
                add(self._computed(how, wanted, values, (args, kwargs)))
        if len({*map(id, fixed.values())}) != len(fixed):
            raise LookupError("two of the objects that it names are one here")
        return values, fixed

    def _computed(self, how: str, key: Any, values: list[Any], given: tuple[Any, Any]) -> Any:
        """What is at a place that no other leads to."""
        if how != "computed":
            return given[how == "keyword"][key]
        function, operands = key
        found = (values[one[0]] if type(one) is list else read_constant(one) for one in operands)
        return self.objects[function](*found)

    def _is_so(self, kind: str, about: Any, wanted: Any, values: list[Any], given: tuple[Any, Any]) -> bool:
        """Whether a fact holds."""
        if kind == "arguments":
            args, kwargs = given
            return bool((len(args), tuple(kwargs)) == wanted)
        asked = [values[about]] if type(about) is int else [values[one] for one in about]
        if kind in BY_IDENTITY:
            found = self.holds(asked[0], self.objects[wanted])
            if found is not None:
                return found
        return is_so(kind, asked, self._wanted(kind, wanted))

    def _wanted(self, kind: str, wanted: Any) -> Any:
        """The value of a fact."""
        if kind in BY_IDENTITY:
            return self.objects[wanted]
        return (self.objects[wanted[0]], wanted[1]) if kind == "answer" else wanted

    def facts(self, objects: list[Any]) -> Facts:
        """The facts, with ``objects`` for those of the table, some of which have been found since."""
        made = Facts()
        places, rows, hows, lines = made.places, made.rows, self.columns["hows"], self.columns["lines"]
        for (_, (number, about, given)), line in zip(self._rows(), self.columns["line"], strict=True):
            how, wanted = hows[number], self._constants[given]
            if how[0] == "?":
                at = (places[about],) if type(about) is int else tuple(places[one] for one in about)
                value = objects[wanted] if how[1:] in BY_IDENTITY else self._wanted(how[1:], wanted)
                rows.append(Fact(how[1:], at, value, lines[line]))
                continue
            key = wanted
            if how == "object":
                key = objects[wanted]
            elif how == "computed":
                function, operands = wanted
                taken = (places[one[0]] if type(one) is list else read_constant(one) for one in operands)
                key = (objects[function], *taken)
            place = Place(len(places), how, None if about is None else places[about], key, lines[line])
            places.append(place)
            rows.append(place)
        return made
