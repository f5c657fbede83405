"""Loop programs of a report: where steps and equations stand in a program's text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from lamina.ir.loops import Equation, LibraryCall, LoopProgram, Nest, defined
from lamina.ir.loops_print import print_program
from lamina.report.texts import Text, Texts

__all__ = ["LoopText", "add_program", "kind_of"]

_HEADER = re.compile(r"\w+ = Nest\('([^']+)', ")
_LIBRARY = re.compile(r"\w+ = LibraryCall\(")


def kind_of(eqn: Equation) -> tuple[str, ...]:
    """What an equation keeps when its nest is joined with others or laid out anew: its operation and origin."""
    named = (str(getattr(eqn, name, "")) for name in ("op", "dtype", "buffer", "mode"))
    return (type(eqn).__name__, *named, *eqn.origin)


@dataclass(slots=True)
class LoopText:
    """A printed program: ``headers`` give the first line of each step, ``nests`` the nest itself by name."""

    key: str
    headers: dict[str, int] = field(default_factory=dict)
    nests: dict[str, Nest] = field(default_factory=dict)

    def line(self, nest: str, number: int) -> int:
        """The line of equation ``number`` of a nest: they follow its header, one a line."""
        return self.headers[nest] + 1 + number

    def matched(self, nest: Nest) -> list[int]:
        """For each equation of ``nest``, a form of one in the program, the line that it stands on in the text."""
        mine = self.nests.get(nest.name)
        if mine is None:
            return self._by_origin(nest)
        places: dict[tuple[str, ...], list[int]] = {}
        for number, eqn in enumerate(mine.body):
            places.setdefault(kind_of(eqn), []).append(number)
        taken: dict[tuple[str, ...], int] = {}
        found: list[int] = []
        for eqn in nest.body:
            kind = kind_of(eqn)
            turn = taken[kind] = taken.get(kind, -1) + 1
            same = places.get(kind)
            place = same[min(turn, len(same) - 1)] if same else _of_origin(mine, eqn.origin)
            found.append(self.headers[nest.name] if place is None else self.line(nest.name, place))
        return found

    def _by_origin(self, nest: Nest) -> list[int]:
        """A nest that scheduling made has the equations of others: each is at the first of the same node."""
        first: dict[str, int] = {}
        for other in self.nests.values():
            for number, eqn in enumerate(other.body):
                for origin in eqn.origin:
                    first.setdefault(origin, self.line(other.name, number))
        return [next((first[o] for o in eqn.origin if o in first), 0) for eqn in nest.body]


def _of_origin(nest: Nest, origin: Sequence[str]) -> int | None:
    wanted = set(origin)
    return next((i for i, eqn in enumerate(nest.body) if wanted & set(eqn.origin)), None)


def add_program(texts: Texts, program: LoopProgram, region: str, graph: str, nodes: dict[str, int]) -> LoopText:
    """The text of a loop program, linked to the nodes of the graph with the key ``graph`` that it came from."""
    lines = print_program(program).splitlines()
    made = LoopText(f"loops:{region}")
    names: dict[int, str] = {}
    steps = {step.name: step for step in program.steps}
    libraries = iter([step for step in program.steps if isinstance(step, LibraryCall)])
    nests = iter([step for step in program.steps if isinstance(step, Nest)])
    for number, text in enumerate(lines, 1):
        found: Nest | LibraryCall | None = None
        if _HEADER.match(text):
            found = next(nests, None)
        elif _LIBRARY.match(text):
            found = next(libraries, None)
        if found is not None:
            made.headers[found.name] = number
            names[number] = found.name
    for name, step in steps.items():
        if name not in made.headers:
            continue
        if isinstance(step, LibraryCall):
            for line in range(made.headers[name], made.headers[name] + 5):
                _link(texts, graph, nodes, step.origin, made.key, line)
            continue
        made.nests[name] = step
        for number, eqn in enumerate(step.body):
            line = made.line(name, number)
            names[line] = f"{name}/{next(iter(defined(eqn)), str(number))}"
            _link(texts, graph, nodes, eqn.origin, made.key, line)
            _link(texts, graph, nodes, eqn.origin, made.key, made.headers[name])
    texts.add(Text(made.key, "loops", region, "python", tuple(lines), names, region))
    return made


def _link(texts: Texts, graph: str, nodes: dict[str, int], origin: Sequence[str], key: str, line: int) -> None:
    for name in origin:
        if name in nodes:
            texts.links.add(graph, nodes[name], key, line)
