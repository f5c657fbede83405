"""Generated text, scratch memory, and the goals that code is written for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

__all__ = ["Goal", "LoopBody", "Memory", "Scope", "Text", "settle_streams"]

_BYTES = {"f64": 8, "int64": 8, "uint64": 8, "bool": 1, "flag": 1}


class Text:
    """Lines of code with indentation."""

    def __init__(self, depth: int = 0) -> None:
        self.lines: list[str] = []
        self.depth = depth

    def add(self, line: str) -> None:
        self.lines.append("  " * self.depth + line)

    def open(self, line: str) -> None:
        self.add(line)
        self.depth += 1

    def close(self, line: str = "}") -> None:
        self.depth -= 1
        self.add(line)


@dataclass(frozen=True, slots=True)
class Goal:
    """Something a loop body must do: the Store, Check or Reduce at ``position``, or keep the value ``name``."""

    position: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class LoopBody:
    """The code inside some open loops: what must be done there, and which values are in scope where it begins.

    ``opened`` has the axes of the open loops; a loop over the tiles of an axis counts as ``AXIS_tile``.
    """

    opened: frozenset[str]
    known: frozenset[str]
    goals: Sequence[Goal]

    def within(self, axis: str) -> LoopBody:
        """The loop body inside one more loop."""
        return replace(self, opened=self.opened | {axis})


@dataclass(slots=True)
class Memory:
    """Scratch memory of one function: pieces after each other, as C++ text of their sizes in bytes."""

    base: str
    fixed: int = 0
    sized: list[str] = field(default_factory=list)

    def take(self, kind: str, count: str) -> str:
        """A pointer expression to ``count`` elements of type ``kind``."""
        where = " + ".join([str(self.fixed), *self.sized])
        size = _BYTES.get(kind, 4)
        if count.isdigit():
            self.fixed += (int(count) * size + 127) // 128 * 128
        else:
            self.sized.append(f"rounded(({count}) * {size})")
        return f"({kind}*)({self.base} + {where})"

    def total(self) -> str:
        return " + ".join([str(self.fixed), *self.sized])


@dataclass(slots=True)
class Scope:
    """Where code is being written: the text, its scratch memory, and how to leave when a check fails."""

    text: Text
    memory: Memory
    leave: str
    stack: int = 0


def settle_streams(text: Text, written: Text) -> None:
    """Let what ``written`` stores past the caches be there for other threads."""
    if any(" stream_" in line for line in written.lines):
        text.add("settle_streams();")
