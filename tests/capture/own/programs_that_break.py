"""Fifteen programs that end graphs within loops, handlers and generators, which other compilers leave to Python."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

__all__ = ["PROGRAMS"]


def _opaque(x: Tensor) -> Tensor:
    """What no graph can hold stands here."""
    ctypes.c_int(3)
    torch._dynamo.graph_break()
    return x


def loop_item(x: Tensor) -> Tensor:
    for _ in range(8):
        x = x.sin() * 2 + 1
        if x.sum().item() > 3:
            x = x - 1
        x = x.cos() * x
    return x


def loop_print(x: Tensor) -> Tensor:
    for _ in range(8):
        x = x.sin() * 2 + 1
        print(end="")
        x = x.cos() * x
    return x


def loop_call(x: Tensor) -> Tensor:
    for _ in range(8):
        x = x.sin() * 2 + 1
        x = _opaque(x)
        x = x.cos() * x
    return x


def while_item(x: Tensor) -> Tensor:
    while x.sum().item() < 100:
        x = x * 1.5 + x.sin().abs()
    return x


def _inner(x: Tensor) -> Tensor:
    y = x.sin() * 2
    y = _opaque(y)
    return y.cos() * y


def nested(x: Tensor) -> Tensor:
    return _inner(_inner(x) + 1).tanh() * 2


def with_break(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = x.sin() * 2
        y = _opaque(y)
        y = y.cos()
    return y * y


def try_break(x: Tensor) -> Tensor:
    try:
        y = x.sin() * 2
        y = _opaque(y)
        y = y.cos()
    except ValueError:
        y = x
    return y * y


def comprehension(x: Tensor) -> Tensor:
    return torch.stack([_opaque(x.sin() * i) + 1 for i in range(4)]).sum(0)


def generator(x: Tensor) -> Tensor:
    def parts() -> Iterator[Tensor]:
        for i in range(3):
            y = _opaque(x * i)
            yield y.sin()

    return sum(parts())  # type: ignore[return-value]


def masked(x: Tensor) -> Tensor:
    y = (x * 2).relu()
    z = y[y > 3]
    return (z * 2).sum() + y.sum()


def of_a_list(x: Tensor) -> Tensor:
    total = torch.zeros(())
    for value in (x * 2).tolist():
        total = total + x * value
    return total.sin()


def in_a_list(x: Tensor) -> list[Tensor]:
    return [_opaque(x + 1) * 2, x.sin()]


def timed(x: Tensor) -> Tensor:
    begun = time.time()
    y = x.sin() * 2
    return y + 0 * (time.time() - begun)


class _Checked(nn.Module):
    """Layers, after each of which values are looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
            if torch.isnan(x).any():
                raise ValueError
        return x


class _Recurrent(nn.Module):
    """A layer of the library's between others."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.lstm, self.after = nn.Linear(8, 8), nn.LSTM(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.lstm(torch.sigmoid(self.before(x.expand(3, 2, 8))))[0]
        z: Tensor = self.after(torch.relu(y))
        return z.tanh()


_MODULES: tuple[type[nn.Module], ...] = (_Checked, _Recurrent)

PROGRAMS: tuple[Callable[[Tensor], Tensor | list[Tensor]], ...] = (
    loop_item, loop_print, loop_call, while_item, nested, with_break, try_break, comprehension, generator, masked,
    of_a_list, in_a_list, timed, *(made().requires_grad_(False) for made in _MODULES),
)  # fmt: skip
