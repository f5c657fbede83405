"""Random nests: every kind of equation beside every shape of reduction."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch

from lamina.ir.loops import Buffer
from lamina.schedule.group import illegal
from tests.codegen.harness import dense
from tests.codegen.writer import Body

__all__ = ["Mix", "mix"]

EXTENTS = ((1, 3, 5, 8, 17), (3, 8, 33, 64), (2, 16, 40, 300))
"""For the first, the middle and the last axis: rows, a window or channels, columns."""

OPS = ("add", "sub", "mul", "maximum", "minimum")
UNARY = ("neg", "abs", "sigmoid", "floor", "relu")
LENGTH = 10


@dataclass(frozen=True, slots=True)
class Mix:
    """A nest with its buffers and the values of those it reads."""

    body: Body
    buffers: list[Buffer]
    inputs: dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class _Value:
    """A float32 value: the axes it varies over, and whether its digits are the same however it is computed."""

    name: str
    axes: frozenset[int]
    exact: bool


def mix(seed: int) -> Mix:
    """The nest of this number: loads, gathers, masked loads, random numbers, scans and checks, reduced and stored."""
    writer = _Writer(random.Random(seed))
    for _ in range(100):
        made = writer.run()
        if not illegal(made.body.nest(), {b.name: b for b in made.buffers}, fresh=False):
            return made
    raise RuntimeError(f"no legal nest from seed {seed}")


class _Writer:
    def __init__(self, draw: random.Random) -> None:
        self.draw = draw

    def run(self) -> Mix:
        draw = self.draw
        rank = draw.choice((1, 2, 2, 2, 3, 3))
        self.extents = [draw.choice(EXTENTS[k + 3 - rank]) for k in range(rank)]
        if rank > 1 and draw.random() < 0.3:  # a window: few points, beside a long axis
            self.extents[draw.randrange(rank - 1)] = draw.choice((2, 3, 5))
        self.body, self.buffers, self.inputs = Body(*self.extents), [], {}
        self.every = frozenset(range(rank))
        self.values = [self.plain(self.every)]
        self.scanned = draw.randrange(rank) if draw.random() < 0.25 else None
        self.back = draw.random() < 0.5
        kinds = (self.load, self.load, self.masked, self.gather, self.random, self.unary, self.binary, self.binary)
        kinds += (self.scan, self.scan) if self.scanned is not None else (self.reduce, self.reduce, self.check)
        for _ in range(draw.randint(2, LENGTH)):
            draw.choice(kinds)()
        self.finish()
        return Mix(self.body, self.buffers, self.inputs)

    def finish(self) -> None:
        """Reduce one value in up to two ways, and store some of what there is."""
        if self.scanned is None:
            for _ in range(self.draw.randint(0, 2)):
                self.reduce(self.draw.choice([v for v in self.values if v.axes]))
        last = [self.values[-1], *self.draw.sample(self.values, min(len(self.values), 3))]
        for value in dict.fromkeys(last):
            self.store(value.name, value.axes)

    def pick(self) -> _Value:
        return self.draw.choice(self.values[-4:])

    def new(self, name: str, axes: frozenset[int], exact: bool) -> None:
        self.values.append(_Value(name, axes, exact))

    def buffer(self, dtype: str, shape: list[int]) -> str:
        name = f"B{len(self.buffers)}"
        self.buffers.append(dense(name, dtype, shape))
        return name

    def store(self, name: str, axes: frozenset[int]) -> None:
        order = sorted(axes)
        if order and self.draw.random() < 0.2:
            self.draw.shuffle(order)
        made = self.buffer(self.body.kinds[name], [self.extents[a] for a in order])
        self.body.store(made, [self.body.at[a] for a in order], name)

    # ---- sources --------------------------------------------------------------------------------------------------

    def some(self) -> frozenset[int]:
        """All axes, mostly."""
        if self.draw.random() < 0.6:
            return self.every
        return frozenset(a for a in self.every if self.draw.random() < 0.5)

    def plain(self, axes: frozenset[int]) -> _Value:
        """A load over ``axes``, in order or turned, or of overlapping windows."""
        order = sorted(axes)
        if self.draw.random() < 0.2:
            self.draw.shuffle(order)
        shape, index = [self.extents[a] for a in order], [self.body.at[a] for a in order]
        if len(order) > 1 and self.draw.random() < 0.25:
            step = self.draw.choice((1, 2))
            shape[:2] = [(shape[0] - 1) * step + shape[1]]
            index[:2] = [index[0] * step + index[1]]
        name = self.buffer("float32", shape)
        self.inputs[name] = torch.randn(shape)
        return _Value(self.body.load(name, *index), axes, True)

    def load(self) -> None:
        self.values.append(self.plain(self.some()))

    def masked(self) -> None:
        """A load shifted along the last axis or the first, where it is inside."""
        axis = self.draw.choice(sorted(self.every))
        shift, extent = self.draw.choice((1, 3)), self.extents[axis]
        index = list(self.body.at)
        index[axis] = index[axis] - shift
        inside = self.body.op("ge", self.body.index(self.body.at[axis]), shift, dtype="bool")
        name = self.buffer("float32", [n if a != axis else max(extent - shift, 1) for a, n in enumerate(self.extents)])
        self.inputs[name] = torch.randn(self.buffers[-1].shape and [int(n.const) for n in self.buffers[-1].shape])
        self.new(self.body.load(name, *index, mask=inside, fill=self.draw.choice((0.0, 1.5))), self.every, True)

    def gather(self) -> None:
        """Rows of a table, at places that are checked."""
        axes, rows = self.some() or self.every, 7
        order = sorted(axes)
        places = self.buffer("int64", [self.extents[a] for a in order])
        self.inputs[places] = torch.randint(0, rows, [self.extents[a] for a in order])
        i = self.body.load(places, *(self.body.at[a] for a in order), dtype="int64")
        self.body.check(self.body.op("lt", i, rows, dtype="bool"))
        wide = self.draw.random() < 0.5
        last = len(self.extents) - 1
        table = self.buffer("float32", [rows, self.extents[last]] if wide else [rows])
        self.inputs[table] = torch.randn([rows, self.extents[last]] if wide else [rows])
        index = [self.body.loaded(i, rows), *([self.body.at[last]] if wide else [])]
        self.new(self.body.load(table, *index), axes | {last} if wide else axes, True)

    def random(self) -> None:
        """Random numbers, numbered along the axes in order or the other way round."""
        seed = self.buffer("int64", [1])
        self.inputs[seed] = torch.tensor([self.draw.randrange(2**40)])
        axes = self.some()
        order = sorted(axes) if self.draw.random() < 0.7 else sorted(axes, reverse=True)
        number = self.body.at[0] * 0 + self.draw.randrange(5)
        for axis in order:
            number = number * self.extents[axis] + self.body.at[axis]
        drawn = self.body.random(self.body.load(seed, 0, dtype="int64"), number, stream=self.draw.randrange(3))
        self.new(drawn, axes, True)

    # ---- computations ---------------------------------------------------------------------------------------------

    def unary(self) -> None:
        a = self.pick()
        op = self.draw.choice(UNARY if a.exact else UNARY[:3])
        self.new(self.body.op(op, a.name), a.axes, a.exact and op != "sigmoid")

    def binary(self) -> None:
        a, b = self.pick(), self.pick()
        if self.draw.random() < 0.2 and a.exact and b.exact:
            chosen = self.body.op("lt", a.name, b.name, dtype="bool")
            self.new(self.body.op("where", chosen, a.name, b.name), a.axes | b.axes, True)
            return
        self.new(self.body.op(self.draw.choice(OPS), a.name, b.name), a.axes | b.axes, a.exact and b.exact)

    def check(self) -> None:
        a = self.pick()
        self.body.check(self.body.op("lt", a.name, 1e9, dtype="bool"), "too large")

    def scan(self) -> None:
        a = self.pick()
        op = self.draw.choice(("sum", "max", "min"))
        assert self.scanned is not None
        self.new(self.body.scan(op, a.name, self.scanned, self.back), a.axes | {self.scanned}, a.exact and op != "sum")

    def reduce(self, value: _Value | None = None) -> None:
        a = value or self.pick()
        if not a.axes:
            return
        axes = frozenset(self.draw.sample(sorted(a.axes), self.draw.randint(1, len(a.axes))))
        op = self.draw.choice(("sum", "sum", "max", "welford", "argmax" if a.exact else "min"))
        results = self.body.reduces(op, a.name, *sorted(axes))
        if op == "argmax":
            self.store(results[0], a.axes - axes)
            return
        for name in results:
            scaled = self.body.op("mul", name, 1 / 64) if op in ("sum", "welford") else name
            self.new(scaled, a.axes - axes, False)
