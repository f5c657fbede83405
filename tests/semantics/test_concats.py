"""Concatenations, stacks, slices, paddings and transpositions of one another, to depth four, forward and backward."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lamina

Build = Callable[[Iterator[Tensor]], Tensor]
_POINTWISE = (torch.sin, torch.exp, torch.relu)


class _Program:
    """A random expression of ``shape``; ``leaves`` are the shapes of its operands, in order."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self.leaves: list[tuple[int, ...]] = []
        least = self._draw.choice((1, 2))
        shape = [self._draw.randint(least, 4) for _ in range(self._draw.randint(1, 3))]
        self._build = self._expression(self._draw.randint(2, 4), shape)
        self._tail = self._draw.randrange(3)

    def __call__(self, *operands: Tensor) -> tuple[Tensor, ...]:
        made = self._build(iter(operands))
        return (((made * 2).cos(),), (made.sum(-1),), (made + 1, made.exp().sum()))[self._tail]

    def _expression(self, depth: int, shape: Sequence[int]) -> Build:
        if depth == 0:
            self.leaves.append(tuple(shape))
            return _leaf
        kind = self._draw.choice((self._cat, self._cat, self._cat, self._narrow, self._pad, self._stack, self._turn))
        return kind(depth - 1, list(shape)) or self._pointwise(depth - 1, shape)

    def _pointwise(self, depth: int, shape: Sequence[int]) -> Build:
        function, inner = self._draw.choice(_POINTWISE), self._expression(depth, shape)
        return lambda it: function(inner(it))

    def _cat(self, depth: int, shape: list[int]) -> Build | None:
        dim = self._draw.randrange(len(shape))
        if shape[dim] < 2:
            return None
        cut = self._draw.randint(1, shape[dim] - 1)
        parts = [self._expression(depth, [*shape[:dim], n, *shape[dim + 1 :]]) for n in (cut, shape[dim] - cut)]
        return lambda it: torch.cat([part(it) for part in parts], dim)

    def _stack(self, depth: int, shape: list[int]) -> Build | None:
        dims = [d for d, n in enumerate(shape) if n == 2 and len(shape) > 1]
        if not dims:
            return None
        dim = self._draw.choice(dims)
        parts = [self._expression(depth, shape[:dim] + shape[dim + 1 :]) for _ in range(2)]
        return lambda it: torch.stack([part(it) for part in parts], dim)

    def _narrow(self, depth: int, shape: list[int]) -> Build:
        dim, more = self._draw.randrange(len(shape)), self._draw.randint(1, 3)
        start, size = self._draw.randint(0, more), shape[dim]
        inner = self._expression(depth, [*shape[:dim], size + more, *shape[dim + 1 :]])
        return lambda it: inner(it).split([start, size, more - start], dim)[1]

    def _pad(self, depth: int, shape: list[int]) -> Build | None:
        dim = self._draw.randrange(len(shape))
        if shape[dim] < 2:
            return None
        amounts = [0] * 2 * len(shape)
        amounts[2 * (len(shape) - 1 - dim) + self._draw.randrange(2)] = 1
        inner = self._expression(depth, [*shape[:dim], shape[dim] - 1, *shape[dim + 1 :]])
        return lambda it: F.pad(inner(it), amounts)

    def _turn(self, depth: int, shape: list[int]) -> Build | None:
        if len(shape) < 2:
            return None
        a, b = self._draw.sample(range(len(shape)), 2)
        turned = list(shape)
        turned[a], turned[b] = turned[b], turned[a]
        inner = self._expression(depth, turned)
        return lambda it: inner(it).transpose(a, b)


def _leaf(operands: Iterator[Tensor]) -> Tensor:
    operand = next(operands)
    return operand * 1.5 if operand.numel() % 2 else operand.sin()


def _compare(seed: int, training: bool) -> None:
    program = _Program(seed)
    generator = torch.Generator().manual_seed(seed)
    operands = [torch.randn(shape, generator=generator).requires_grad_(training) for shape in program.leaves]

    def function(*operands: Tensor) -> tuple[Tensor, ...]:
        return program(*operands)

    torch._dynamo.reset()
    found = lamina.compile(function, options={"strict": True}, dynamic=False)(*operands)
    expected = function(*operands)
    torch.testing.assert_close(found, expected)
    if training:
        gradients = [
            torch.autograd.grad(sum((y.sum() for y in made), torch.zeros(())), operands, materialize_grads=True)
            for made in (found, expected)
        ]
        torch.testing.assert_close(*gradients)


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("seed", range(8))
def test_concatenations_of_one_another(seed: int) -> None:
    _compare(seed, True)


def test_concatenations_along_two_dimensions() -> None:
    def function(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return torch.cat([torch.cat([x.sin(), y.cos()], 0), z.exp()], 1).relu()

    x, y, z = torch.randn(2, 3), torch.randn(4, 3), torch.randn(6, 5)
    found = lamina.compile(function, options={"strict": True})(x, y, z)
    torch.testing.assert_close(found, function(x, y, z))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8, 200))
@pytest.mark.parametrize("training", [False, True])
def test_more_concatenations_of_one_another(seed: int, training: bool) -> None:
    _compare(seed, training)
