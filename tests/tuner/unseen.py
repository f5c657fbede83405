"""Models that give more than tensors, and candidates that are wrong in that alone."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import io
import itertools
import pathlib
import re
import tempfile
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

Model = Callable[..., Any]


class Hidden:
    """An attribute in a slot of a private name."""

    __slots__ = ("__inside",)

    def __init__(self, inside: Tensor) -> None:
        self.__inside = inside


class Box:
    def __init__(self, inside: Any) -> None:
        self.inside = inside


class Callables:
    """An object that is called and holds a tensor."""

    def __init__(self, inside: Tensor) -> None:
        self.inside = inside

    def __call__(self) -> Tensor:
        return self.inside


class Sides(enum.Enum):
    LEFT = 1
    RIGHT = 2


@dataclasses.dataclass
class Record:
    items: Any


class Stamped(datetime.date):
    """A class in Python of one in C."""


def closing_over(y: Tensor) -> Callable[[], Tensor]:
    return lambda: y


def with_default(y: Tensor) -> Callable[[], Tensor]:
    def give(given: Tensor = y) -> Tensor:
        return given

    return give


def layer(y: Tensor) -> nn.Module:
    made = nn.Linear(1, 1)
    nn.init.zeros_(made.weight)
    with torch.no_grad():
        made.bias.copy_(y.sum())
    return made


def number(y: Tensor) -> int:
    """A whole number of the output."""
    return int((y.sum() * 100).item())


OUTPUTS: dict[str, Callable[[Tensor], Any]] = {
    "iterator in a tuple": lambda y: (y, iter([y])),
    "generator in a mapping": lambda y: {"rows": (row for row in y)},
    "map in an object": lambda y: Box(map(torch.neg, [y])),
    "zip in a dataclass": lambda y: Record(zip([y], [y], strict=True)),
    "chain in a list": lambda y: [itertools.chain([y], [y])],
    "generator in an iterator": lambda y: iter([(row for row in y)]),
    "closure": closing_over,
    "closure in a list": lambda y: [closing_over(y)],
    "partial": lambda y: functools.partial(torch.add, y),
    "method": lambda y: Box(y).__init__,  # type: ignore[misc]
    "built-in method": lambda y: [y].pop,
    "default": with_default,
    "callable object": Callables,
    "slot": Hidden,
    "module": layer,
    "array": lambda y: y.detach().numpy().copy(),
    "number of numpy": lambda y: y.detach().numpy().sum(),
    "bytes": lambda y: bytes([number(y) % 251]),
    "byte array": lambda y: bytearray([number(y) % 251]),
    "text": lambda y: io.StringIO(str(number(y))),
    "buffer": lambda y: io.BytesIO(str(number(y)).encode()),
    "date": lambda y: datetime.date.fromordinal(1000 + abs(number(y))),
    "date of its own class": lambda y: Stamped.fromordinal(1000 + abs(number(y))),
    "decimal": lambda y: decimal.Decimal(number(y)),
    "fraction": lambda y: fractions.Fraction(number(y), 7),
    "path": lambda y: pathlib.PurePath(str(number(y))),
    "pattern": lambda y: re.compile(str(number(y))),
    "range": lambda y: range(abs(number(y))),
    "slice": lambda y: slice(number(y)),
    "set": lambda y: {number(y)},
    "deque": lambda y: collections.deque([y]),
    "values of a mapping": lambda y: {"y": y}.values(),
    "namespace": lambda y: types.SimpleNamespace(y=y),
    "proxy": lambda y: types.MappingProxyType({"y": y}),
    "member of an enumeration": lambda y: Sides(1 + (number(y) & 1)),
    "exception": lambda y: Box(ValueError(number(y))),
}
"""What a model gives, made of a tensor: a candidate that makes it of another tensor is wrong."""


def _forever(y: Tensor) -> Iterator[Tensor]:
    while True:
        yield y


REFUSED: dict[str, Callable[[Tensor], Any]] = {
    "file": lambda y: (y, tempfile.TemporaryFile()),  # noqa: SIM115 - it is what the model gives
    "lock": lambda y: Box(threading.Lock()),
    "iterator without end": lambda y: [_forever(y)],
    "frame": lambda y: {"frame": _forever(y).gi_frame},  # type: ignore[attr-defined]
}
"""What cannot be compared."""


class Gives(nn.Module):
    """Gives one of these, by name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Tensor) -> Any:
        return (OUTPUTS | REFUSED)[self.name](x.sin())


def other_tensor(model: Model) -> Model:
    """The same of another tensor: each whole number is another one as well, by one."""
    made = OUTPUTS[str(model.name)]  # type: ignore[attr-defined]
    return lambda x: made(x.sin() + 0.010001 / x.numel())


class Leaves(nn.Module):
    """Leaves something behind: attributes, entries of containers, items of a list that it is given."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where
        self.last: Any = None
        self.inner = nn.Module()
        self.inner.calls = 0  # type: ignore[assignment]
        self.seen: list[Any] = []
        self.table: dict[str, Any] = {}
        self.plain = torch.zeros(4, 16)

    def forward(self, x: Tensor, given: list[Any]) -> Tensor:
        y = x.sin()
        if self.where == "attribute":
            self.last = y
        elif self.where == "attribute of a child":
            self.inner.calls += 1  # type: ignore[operator, assignment]
        elif self.where == "list":
            self.seen.append(y)
        elif self.where == "mapping":
            self.table["y"] = y
        elif self.where == "plain tensor":
            self.plain.add_(1)
        else:
            given.append(y)
        return y


LEFT = ("attribute", "attribute of a child", "list", "mapping", "plain tensor", "argument")


def leaves_nothing(model: Model) -> Model:
    return lambda x, given: x.sin()


def leaves_the_same(model: Model) -> Model:
    return lambda x, given: model(x, given)


def leaves_another(model: Any) -> Model:
    """As the model, and something else where it leaves something."""

    def run(x: Tensor, given: list[Any]) -> Tensor:
        y: Tensor = model(x, given)
        wrong = y + 1
        if model.where == "attribute":
            model.last = wrong
        elif model.where == "attribute of a child":
            model.inner.calls += 1
        elif model.where == "list":
            model.seen[-1] = wrong
        elif model.where == "mapping":
            model.table["y"] = wrong
        elif model.where == "plain tensor":
            model.plain.add_(1)
        else:
            given[-1] = wrong
        return y

    return run
