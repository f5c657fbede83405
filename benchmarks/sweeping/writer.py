"""The state of a program that is being generated: its inputs, its lines, and the values there are, on meta tensors."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["Input", "Unfit", "Writer"]

LARGEST = 4.0
"""How many times the elements of the first input a value may have."""


class Unfit(Exception):
    """A step that cannot follow here, or would make too large a value; another is tried."""


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor that the program takes.

    ``kind`` is "float", "mask" (booleans), "bytes", or "places" (integers below ``high``); ``layout`` is "contiguous",
    "channels_last", "strided" (every other element of the last axis) or "transposed" (the last two axes swapped).
    """

    name: str
    shape: tuple[int, ...]
    kind: str = "float"
    layout: str = "contiguous"
    high: int = 2

    def tensor(self, dtype: torch.dtype, device: str, generator: torch.Generator | None) -> Tensor:
        """Its contents; without a generator, a meta tensor."""
        shape = self.shape
        if self.layout == "strided":
            shape = (*shape[:-1], 2 * shape[-1])
        elif self.layout == "transposed":
            shape = (*shape[:-2], shape[-1], shape[-2])
        if generator is None:
            whole = torch.empty(shape, dtype=self._dtype(dtype), device="meta")
        elif self.kind == "float":
            whole = torch.randn(shape, generator=generator).to(dtype).to(device)
        else:
            high = {"mask": 2, "bytes": 256}.get(self.kind, self.high)
            whole = torch.randint(high, shape, generator=generator).to(self._dtype(dtype)).to(device)
        if self.layout == "strided":
            return whole[..., ::2]
        if self.layout == "transposed":
            return whole.transpose(-2, -1)
        if self.layout == "channels_last":
            return whole.contiguous(memory_format=torch.channels_last)
        return whole

    def _dtype(self, dtype: torch.dtype) -> torch.dtype:
        return {"mask": torch.bool, "bytes": torch.uint8, "places": torch.int64}.get(self.kind, dtype)


@dataclass(slots=True)
class Writer:
    """A program so far. ``now`` is the value that the next step takes."""

    rng: random.Random
    elements: int
    inputs: list[Input] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    values: dict[str, Tensor] = field(default_factory=dict)
    kinds: list[str] = field(default_factory=list)
    now: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values[self.now].shape)

    @property
    def rank(self) -> int:
        return len(self.shape)

    def input(self, shape: Sequence[int], kind: str = "float", layout: str = "contiguous", high: int = 2) -> str:
        """The name of a new input."""
        if math.prod(shape) > LARGEST * self.elements:
            raise Unfit
        if (layout == "channels_last" and len(shape) != 4) or (layout == "transposed" and len(shape) < 2):
            layout = "contiguous"
        made = Input(f"{'x' if kind == 'float' else kind[0]}{len(self.inputs)}", tuple(shape), kind, layout, high)
        self.inputs.append(made)
        self.values[made.name] = made.tensor(torch.float32, "meta", None)
        return made.name

    def add(self, expression: str) -> str:
        """A new value, which becomes the present one; Unfit where torch refuses it or it gets too large or empty."""
        try:
            value = eval(expression, {"torch": torch, "F": F}, self.values)
        except (RuntimeError, AssertionError, IndexError, ValueError, TypeError, NotImplementedError) as problem:
            raise Unfit(str(problem)) from None
        if not isinstance(value, Tensor) or not 0 < value.numel() <= LARGEST * self.elements:
            raise Unfit
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {expression}")
        self.values[name] = value
        self.now = name
        return name

    def axis(self, least: int = 1, most: int = 1 << 30) -> int:
        """An axis of the present value, of a size within the bounds."""
        fit = [k for k, size in enumerate(self.shape) if least <= size <= most]
        if not fit:
            raise Unfit
        return self.rng.choice(fit)

    def mark(self) -> tuple[int, int, str, int]:
        """What ``back`` needs to forget a step that failed half way."""
        return len(self.inputs), len(self.lines), self.now, len(self.kinds)

    def back(self, mark: tuple[int, int, str, int]) -> None:
        """Forget everything since the mark."""
        inputs, lines, self.now, kinds = mark
        for name in [i.name for i in self.inputs[inputs:]] + [line.split(" ", 1)[0] for line in self.lines[lines:]]:
            self.values.pop(name, None)
        del self.inputs[inputs:], self.lines[lines:], self.kinds[kinds:]
