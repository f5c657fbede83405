"""The program of a driver as a tree: what is asked and done, and where a value that is learnt decides what follows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from lamina.capture.own.reuse.asking import Line
from lamina.capture.own.reuse.facts import Fact

__all__ = ["Node", "joined", "program"]

_RESULT = re.compile(r"\b[tn]\d+(?:_\d+)?\b")
_MADE = re.compile(r"[tn]\d[\w, *]* = ")


@dataclass(slots=True)
class Node:
    """Facts that are asked, then steps, then a decision by the last value, ``name``, or the ``end`` of the call.

    ``nexts`` are what may follow: (the condition under which the value is another one, the node).
    """

    asks: list[Line] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    name: str = ""
    nexts: list[tuple[str, Node]] = field(default_factory=list)
    end: list[str] = field(default_factory=list)

    def same(self, other: Node) -> bool:
        """Whether both ask and do the same and then ask for the same value."""
        mine, others = ([line.text for line in node.asks] for node in (self, other))
        return bool(self.name) and (self.name, mine, self.steps) == (other.name, others, other.steps)


def joined(into: Node, path: Node) -> Node | None:
    """Have ``into`` lead to the end of ``path`` as well, a tree without decisions; the node that leads to more now."""
    while into.same(path):
        ((condition, following),) = path.nexts
        known = next((node for known, node in into.nexts if known == condition), None)
        if known is None:
            into.nexts.append((condition, following))
            return into
        into, path = known, following
    return None


def program(root: Node) -> tuple[list[str], list[Fact]]:
    """The lines of a program, and the facts in the order of their numbers in it."""
    facts: list[Fact] = []
    return [*_lines(root, facts, "")], facts


def _lines(root: Node, facts: list[Fact], indent: str) -> Iterator[str]:
    chain = [root]
    while chain[-1].name:
        chain.append(chain[-1].nexts[0][1])
    dead, between = _dead(chain)
    for place, node in enumerate(chain):
        if place in dead:
            yield f"{indent}del {', '.join(dead[place])}"
        for line in node.asks:
            if line.fact is None:
                yield f"{indent}{line.text}"
            else:
                yield f"{indent}if {line.text}: return m{len(facts)}"
                facts.append(line.fact)
        for number, step in enumerate((*node.steps, *node.end)):
            yield f"{indent}{step}"
            if (place, number) in between:
                yield f"{indent}del {', '.join(between[place, number])}"
        if node.name:
            yield from _decisions(node, facts, indent)


def _decisions(node: Node, facts: list[Fact], indent: str) -> Iterator[str]:
    """Where the value is not that of the first of what may follow: what does, or that nothing does."""
    (usual, _), *others = node.nexts
    if not others:
        yield f"{indent}if {usual}: return another"
        return
    yield f"{indent}if {usual}:"
    for condition, other in others:
        yield f"{indent}    if not ({condition}):"
        yield from _lines(other, facts, f"{indent}        ")
    yield f"{indent}    return another"


def _dead(chain: list[Node]) -> tuple[dict[int, list[str]], dict[tuple[int, int], list[str]]]:
    """Which results are used no more from a node of a chain on, by its position, and which after a line of one."""
    last: dict[str, int] = {}
    made: set[str] = set()
    between: dict[tuple[int, int], list[str]] = {}
    for place, node in enumerate(chain):
        for step in (*node.steps, *node.end):
            left = _MADE.match(step)
            if left:
                made.update(_RESULT.findall(left.group()))
        for name in _used(node):
            last[name] = place
    found: dict[int, list[str]] = {}
    gone: set[str] = set()
    for place, node in enumerate(chain):
        lines = (*node.steps, *node.end)
        lines_of = {name: number for number, line in enumerate(lines) for name in _RESULT.findall(line)}
        asked = {*_RESULT.findall(" ".join((node.name, *(condition for condition, _ in node.nexts))))}
        asked.update(*(_used(following) for _, following in node.nexts[1:]))
        for name in sorted(made.intersection(lines_of) - asked):
            if last[name] == place and lines_of[name] + 1 < len(lines):
                between.setdefault((place, lines_of[name]), []).append(name)
                gone.add(name)
    for name in sorted(made - gone):
        if last[name] + 1 < len(chain):
            found.setdefault(last[name] + 1, []).append(name)
    return found, between


def _used(node: Node) -> set[str]:
    """The results that a node names, and what follows where the value is not the usual one."""
    found: set[str] = set()
    waiting = [node]
    while waiting:
        one = waiting.pop()
        for line in (*one.steps, *one.end):
            found.update(_RESULT.findall(line))
        waiting.extend(following for _, following in (one.nexts[1:] if one is node else one.nexts))
    return found
