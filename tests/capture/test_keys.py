"""Keys of dictionaries and sets that are objects of the user's: equal, and hashed, as their classes say."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

import lamina


class Key:
    def __init__(self, name: object) -> None:
        self.name = name

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return self.name == getattr(other, "name", other)


class Pair(NamedTuple):
    first: int
    second: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pair) and self.first == other.first

    def __hash__(self) -> int:
        return hash(self.first)


class Folded(str):
    def __eq__(self, other: object) -> bool:
        return self.lower() == str(other).lower()

    def __hash__(self) -> int:
        return hash(self.lower())


@dataclasses.dataclass(frozen=True)
class Whole:
    first: int


@dataclasses.dataclass(frozen=True)
class Partly:
    first: int
    second: int = dataclasses.field(compare=False, default=0)


@dataclasses.dataclass(frozen=True, eq=False)
class Itself:
    first: int


KEPT = {Key(1): 5.0}
Function = Callable[[torch.Tensor, Any], torch.Tensor]

USES: dict[str, tuple[Function, Any]] = {
    "get": (lambda x, k: x * KEPT.get(k, 1), Key(1)),
    "another": (lambda x, k: x * KEPT.get(k, 1), Key(2)),
    "made inside": (lambda x, k: x * KEPT.get(Key(k), 1), 1),
    "item": (lambda x, k: x * KEPT[k], Key(1)),
    "in": (lambda x, k: x + 1 if k in KEPT else x, Key(1)),
    "set": (lambda x, k: x * len({Key(k), Key(k), Key(2)}), 1),
    "dictionary": (lambda x, k: x * len({Key(k): 1, Key(k): 2}), 1),
    "number": (lambda x, k: x * {1: 3}.get(k, 1), Key(1)),
    "tuple": (lambda x, k: x * {(Key(1), 2): 3}.get((k, 2), 1), Key(1)),
    "setdefault": (lambda x, k: x * {Key(1): 4}.setdefault(k, 9), Key(1)),
    "pop": (lambda x, k: x * {Key(1): 4}.pop(k, 9), Key(1)),
    "union": (lambda x, k: x * len({Key(1)} | {k}), Key(1)),
    "named tuple": (lambda x, k: x * {Pair(1, 2): 3}.get(k, 1), Pair(1, 4)),
    "named tuples made inside": (lambda x, k: x * len({Pair(k, 2), Pair(k, 4)}), 1),
    "string": (lambda x, k: x * {Folded("A"): 3}.get(k, 1), Folded("a")),
    "frozen": (lambda x, k: x * {Whole(1): 3}.get(k, 1), Whole(1)),
    "frozen, some fields": (lambda x, k: x * {Partly(1, 2): 3}.get(k, 1), Partly(1, 5)),
    "frozen, some fields, made inside": (lambda x, k: x * len({Partly(k, 2), Partly(k, 3)}), 1),
    "frozen, each its own": (lambda x, k: x * {Itself(1): 3}.get(k, 1), Itself(1)),
    "frozen, each its own, made inside": (lambda x, k: x * len({Itself(k), Itself(k)}), 1),
}


@pytest.mark.parametrize("use", USES)
def test_keys_are_equal_as_their_classes_say(use: str) -> None:
    function, key = USES[use]
    x = torch.arange(3.0)
    wanted = function(x, key)
    assert torch.equal(lamina.compile(function)(x, key), wanted)
