"""Programs with what ends graphs in the middle: 20 small ones, each a function of one tensor of shape (8,)."""

from __future__ import annotations

import contextlib
import copy
import logging
import random
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

__all__ = ["PROGRAMS", "rounds"]

LOG = logging.getLogger(__name__)
STATE: dict[str, Any] = {"calls": 0}


@dataclass
class Trace:
    seen: list[float] = field(default_factory=list)

    def note(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(float(x.mean()))
        return x * 2 + 1


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = (x * self.gate).sigmoid() * x
        if y.sum() > 1e6:
            y = y / y.norm()
        return y.tanh() + x.cos() * y.sin() + (x - y).abs()


GATED = Gated()


def _smooth(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() + x.cos()).tanh() * 0.5 + x * 0.25


def prints(x):
    y = _smooth(x)
    print("at", y.shape)
    return _smooth(y) + 1


def logs(x):
    y = _smooth(x)
    LOG.debug("mean %s", y.mean().item())
    return _smooth(y) + 1


def warns(x):
    y = _smooth(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("seen", stacklevel=1)
    return _smooth(y) * 2


def decides(x):
    y = _smooth(x)
    return _smooth(y) if y.sum() > 0 else _smooth(y - 1)


def decides_twice(x):
    y = _smooth(x)
    if y.max() > 10:
        y = y / 2
    z = _smooth(y)
    return _smooth(z + y) if (z > y).any() else _smooth(z - y)


def returns_early(x):
    for scale in (1, 2, 3, 4):
        x = _smooth(x * scale) + 0.1
        if x.mean() > 1e3:
            return x
    return x + 1


def catches(x):
    y = _smooth(x)
    try:
        y[torch.tensor([9])].sum()
    except IndexError:
        y = _smooth(y) + 1
    return _smooth(y) * 3


def measures(x):
    begin = time.perf_counter()
    y = _smooth(_smooth(x))
    STATE["seconds"] = time.perf_counter() - begin
    return y + x


def draws_python(x):
    scale = random.Random(3).random()
    return _smooth(_smooth(x * scale)) + scale


def counts(x):
    STATE["calls"] += 1
    return _smooth(_smooth(x)) + 1


def notes(x):
    trace = Trace()
    y = trace.note(_smooth(x))
    z = trace.note(_smooth(y))
    return z + trace.seen[0] + len(trace.seen)


def yields(x):
    def parts(t):
        for scale in range(3):
            t = _smooth(t + scale)
            yield t

    return sum(part.sum() for part in parts(x)) + x


def recurses(x, depth=3):
    y = _smooth(x)
    return recurses(y, depth - 1) + y if depth and y.sum() > -1e6 else y


def of_numpy(x):
    y = _smooth(_smooth(x))
    found = y.detach().numpy().sum()
    return _smooth(_smooth(y)) + float(found)


def copies(x):
    y = _smooth(_smooth(x))
    z = copy.deepcopy(y)
    return _smooth(z) + _smooth(y + z)


def lists(x):
    y = _smooth(_smooth(x))
    first, *others = y.tolist()
    return _smooth(y * first) + len(others)


def by_module(x):
    return GATED(_smooth(x)) + GATED(x)


def orders(x):
    parts = sorted((_smooth(x + n) for n in range(3)), key=lambda part: float(part.sum()))
    return _smooth(parts[0]) - _smooth(parts[-1])


def enters(x):
    with contextlib.ExitStack() as stack:
        stack.callback(STATE.update, closed=True)
        y = _smooth(_smooth(x))
    return _smooth(y) + 1


def while_true(x):
    n = 0
    while True:
        x = _smooth(x) + 0.5
        n += 1
        if n > 5 or x.sum() > 1e4:
            break
    return _smooth(x) * n


PROGRAMS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    prints, logs, warns, decides, decides_twice, returns_early, catches, measures, draws_python, counts, notes, yields,
    recurses, of_numpy, copies, lists, by_module, orders, enters, while_true,
)  # fmt: skip


def rounds(count: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """A loop of so many rounds, each of which looks at a value."""

    def loop(x: torch.Tensor) -> torch.Tensor:
        for _ in range(count):
            x = x * 0.5 + 1
            if x.sum() > 1e6:
                break
            x = x.sin()
        return x

    return loop
