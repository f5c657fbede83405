"""Texts of a report: program text of one level, what its lines are called, and links from lines to lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["LEVELS", "Links", "Text", "Texts"]

LEVELS = ("python", "captured", "forward", "backward", "loops", "kernel", "ptx", "assembly")
"""From the user's program down to the machine; links join texts of different levels."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text of one level.

    ``key`` is its stable name, ``names`` give lines (from 1) that something stands on a name within the text, other
    lines are called by their number: ``key/name`` is what a link or an address of the page calls it. ``language`` is
    that of the highlighter.
    """

    key: str
    level: str
    title: str
    language: str
    lines: tuple[str, ...]
    names: Mapping[int, str] = field(default_factory=dict)
    region: str = ""

    def data(self) -> dict[str, Any]:
        """As JSON; names are pairs of line and name."""
        return {
            "key": self.key,
            "level": self.level,
            "title": self.title,
            "language": self.language,
            "region": self.region,
            "text": "\n".join(self.lines),
            "names": [[line, name] for line, name in sorted(self.names.items())],
        }


class Links:
    """Pairs of lines of two texts. Each pair can be followed both ways."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[str, str], set[tuple[int, int]]] = {}

    def add(self, upper: str, line: int, lower: str, other: int) -> None:
        """Line ``line`` of the text ``upper`` became line ``other`` of the text ``lower``."""
        self._pairs.setdefault((upper, lower), set()).add((line, other))

    def upward(self, lower: str) -> dict[int, set[tuple[str, int]]]:
        """For each line of the text ``lower``, the lines of others that it came from."""
        found: dict[int, set[tuple[str, int]]] = {}
        for (upper, key), pairs in self._pairs.items():
            for line, other in pairs if key == lower else ():
                found.setdefault(other, set()).add((upper, line))
        return found

    def data(self, index: Mapping[str, int]) -> list[list[Any]]:
        """As JSON: [number of the upper text, of the lower, [line, line, ...]], line numbers as differences."""
        return [
            [index[upper], index[lower], _differences(sorted(pairs))]
            for (upper, lower), pairs in self._pairs.items()
            if upper in index and lower in index
        ]


def _differences(pairs: Iterable[tuple[int, int]]) -> list[int]:
    flat, last = [], (0, 0)
    for pair in pairs:
        flat += [pair[0] - last[0], pair[1] - last[1]]
        last = pair
    return flat


class Texts:
    """The texts of a report by key, and their links."""

    def __init__(self) -> None:
        self.by_key: dict[str, Text] = {}
        self.links = Links()

    def add(self, text: Text) -> Text:
        """Keep ``text``; one of the same key stays what it is."""
        return self.by_key.setdefault(text.key, text)

    def of_level(self, level: str) -> list[Text]:
        """The texts of one level, in the order in which they came."""
        return [text for text in self.by_key.values() if text.level == level]

    def data(self) -> dict[str, Any]:
        """As JSON: ``texts`` from the program down to the machine, ``links`` between them."""
        ordered = [text for level in LEVELS for text in self.of_level(level)]
        index = {text.key: number for number, text in enumerate(ordered)}
        return {"texts": [text.data() for text in ordered], "links": self.links.data(index)}
