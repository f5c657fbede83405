"""Programs made up from a number: a first input, three to seven steps of any kind, arithmetic between them."""

from __future__ import annotations

import linecache
import math
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.sweeping.case import Case, Problem, Variant
from benchmarks.sweeping.heavy_steps import HEAVY
from benchmarks.sweeping.steps import STEPS, Step, pointwise
from benchmarks.sweeping.writer import Input, Unfit, Writer

__all__ = ["cases", "generated"]

ALL: dict[str, Step] = {**STEPS, **HEAVY}
IMAGES = ("pooling", "interpolation", "windows", "product")
SHORT = tuple(range(2, 10))
ODD = (11, 13, 17, 31, 37, 63, 65, 77, 127, 129, 197, 255, 257, 500, 1000)
EVEN = (12, 16, 24, 32, 56, 64, 96, 128, 192, 256, 512, 768, 1024)
TRIES = 12


def cases(count: int, seed: int = 0, scale: float = 1.0) -> list[Case]:
    """The programs number ``seed`` to ``seed + count - 1``, each by its number's own draws."""
    return [generated(number, scale) for number in range(seed, seed + count)]


def generated(number: int, scale: float = 1.0) -> Case:
    """The program of that number, of ``scale`` times the elements that keep a core busy for some milliseconds."""
    rng = random.Random(f"sweep {number}")
    while True:
        w = Writer(rng, round(scale * 2 ** rng.uniform(16.5, 20.5)))
        try:
            w.now = w.input(_shape(rng, w.elements), layout=_layout(rng))
            _body(w)
        except Unfit:
            continue
        kinds = tuple(dict.fromkeys(w.kinds))
        text, name = _text(w), f"generated/{number}"
        return Case(name, kinds, partial(_problem, text, tuple(_used(w)), name), text)


def _layout(rng: random.Random) -> str:
    return rng.choice(["contiguous"] * 4 + ["strided", "transposed", "channels_last"])


def _shape(rng: random.Random, elements: int) -> tuple[int, ...]:
    """Axes whose product is about ``elements``: short, odd and even ones, in any order."""
    rank = rng.choice([1, 2, 2, 3, 3, 4, 4, 4, 5])
    if rank == 2 and rng.random() < 0.15:
        return rng.choice([512, 700, 1000]), rng.choice([2, 3, 4])  # boxes and points, for what compares all pairs
    sizes: list[int] = []
    while len(sizes) < rank - 1:
        size = rng.choice(rng.choice([SHORT, ODD, EVEN, EVEN]))
        if math.prod(sizes) * size * 2 > elements:
            size = rng.choice(SHORT)
        sizes.append(size)
    last = elements // math.prod(sizes)
    if last < 1:
        raise Unfit
    sizes.append(last)
    if rank == 4 and rng.random() < 0.6:  # an image
        side = max(2, math.isqrt(elements // math.prod(sizes[:2]))) if math.prod(sizes[:2]) * 4 < elements else 2
        return sizes[0], sizes[1], side, side + rng.choice([0, 0, 1])
    rng.shuffle(sizes)
    return tuple(sizes)


def _body(w: Writer) -> None:
    if w.rng.random() < 0.8:
        pointwise(w)
    wanted, tries = w.rng.randint(1, 4), 0
    while wanted and tries < TRIES:
        if not w.rank:  # no step takes a single number
            raise Unfit
        kind = _kind(w)
        mark = w.mark()
        try:
            ALL[kind](w)
            if w.rng.random() < 0.7:
                pointwise(w)
        except Unfit:
            w.back(mark)
            tries += 1
            continue
        w.kinds.append(kind)
        wanted -= 1
    if not w.kinds or not w.values[w.now].dtype.is_floating_point:
        raise Unfit


def _kind(w: Writer) -> str:
    """Any kind; images and small tables of points are rare, and so get more of what only they can have."""
    if w.rank == 4 and w.rng.random() < 0.25:
        return w.rng.choice(IMAGES)
    if w.rank == 2 and w.shape[1] <= 4 and w.rng.random() < 0.6:
        return "pairs"
    return w.rng.choice(list(ALL))


def _used(w: Writer) -> list[Input]:
    """The inputs that some line reads; a step that was taken back leaves none, an unlucky draw may."""
    words = set(_words("\n".join(w.lines)))
    return [i for i in w.inputs if i.name in words]


def _words(text: str) -> list[str]:
    return "".join(c if c.isalnum() or c == "_" else " " for c in text).split()


def _text(w: Writer) -> str:
    used = _used(w)
    notes = [f"    # {i.name}: {i.kind} {list(i.shape)} {i.layout}" for i in used]
    lines = [f"    {line}" for line in w.lines]
    return "\n".join([f"def program({', '.join(i.name for i in used)}):", *notes, *lines, f"    return {w.now}", ""])


def _problem(text: str, inputs: tuple[Input, ...], name: str, variant: Variant) -> Problem:
    generator = torch.Generator().manual_seed(0)
    args = tuple(given.tensor(variant.torch_dtype, variant.device, generator) for given in inputs)
    leaves: list[Tensor] = []
    if variant.training:
        leaves = [t.requires_grad_() for t, given in zip(args, inputs, strict=True) if given.kind == "float"]
    return Problem(_function(text, name), args, tuple(leaves))


def _function(text: str, name: str) -> Callable[..., Any]:
    """A function of its own for each who asks, with its source where a traceback looks for it."""
    file = f"<sweep {name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    space: dict[str, Any] = {"torch": torch, "F": F}
    exec(compile(text, file, "exec"), space)
    return space["program"]  # type: ignore[no-any-return]
