"""Reshapes: whatever eager returns as a view is a window onto the same memory, and its index has few divisions."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor

from lamina.ir.index import Div, Expr, Mod, as_expr
from lamina.ir.loops import BufferView, Load, LoopProgram, Nest
from lamina.lower.context import Lowering
from lamina.lower.reshaping import reshaped
from lamina.lower.to_loops import lower
from lamina.lower.values import TensorValue, linear_view

from .torch_private import traced

LENGTHS = (1, 1, 2, 2, 3, 4, 6)


def _lengths(rng: random.Random, elements: int) -> list[int]:
    """A random shape of so many elements."""
    found: list[int] = []
    for _ in range(rng.randrange(4)):
        found.append(rng.choice([k for k in range(1, elements + 1) if elements % k == 0]))
        elements //= found[-1]
    found.append(elements)
    rng.shuffle(found)
    return found


def _laid_out(rng: random.Random) -> Tensor:
    """A tensor in any order of its dims, with gaps between rows or elements, or with repeated rows."""
    shape = [rng.choice(LENGTHS) for _ in range(rng.randint(1, 4))]
    whole = [n + rng.choice((0, 0, 0, 2)) for n in shape]
    steps = [rng.choice((1, 1, 1, 2)) for _ in shape]
    x = torch.zeros([n * k for n, k in zip(whole, steps, strict=True)])
    x = x[tuple(slice(0, n * k, k) for n, k in zip(shape, steps, strict=True))]
    if rng.random() < 0.3:
        x = x.expand(rng.choice((1, 3)), *shape)
    return x.permute(rng.sample(range(x.dim()), x.dim())) if rng.random() < 0.5 else x


def _given(low: Lowering, x: Tensor) -> TensorValue:
    return low.buffer("x", "float32", x.shape, x.stride(), kind="input")


def _addresses(value: TensorValue, strides: list[int]) -> list[int]:
    found: list[int] = []
    for position in product(*(range(int(n)) for n in value.shape)):
        index = value.at([as_expr(p) for p in position])
        found.append(sum(int(e) * s for e, s in zip(index, strides, strict=True)))
    return found


@pytest.mark.parametrize("part", range(4))
def test_a_reshape_has_strides_where_torchs_view_has(part: int) -> None:
    rng = random.Random(part)
    views = 0
    for _ in range(60):
        x = _laid_out(rng)
        shapes = [_lengths(rng, x.numel()) for _ in range(rng.choice((1, 2, 3)))]
        low = Lowering("test")
        value, eager = _given(low, x), x
        for shape in shapes:
            try:
                eager = eager.view(shape)
            except RuntimeError:
                break
            value = reshaped(low, value, [as_expr(n) for n in shape])
        window = linear_view(value)
        assert window is not None
        assert int(window.offset) == 0
        steps = [int(s) for s in window.strides]
        assert [s for s, n in zip(steps, eager.shape, strict=True) if n != 1] == [
            s for s, n in zip(eager.stride(), eager.shape, strict=True) if n != 1
        ]
        lattice = torch.arange(x.untyped_storage().nbytes() // 4).as_strided(eager.shape, eager.stride())
        assert _addresses(value, list(x.stride())) == lattice.flatten().tolist()
        views += eager is not x
    assert views > 15


def _lowered(fn: Callable[[Tensor], Tensor], x: Tensor, symbolic: bool) -> LoopProgram:
    return lower(traced(fn, [x], symbolic), "test")


CHAINS: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Tensor]]] = {
    "joined, split unevenly, joined": ((4, 4, 8), lambda x: x.reshape(-1, 64).reshape(-1)),
    "through one dim": ((6, 6, 1, 8), lambda x: x.view(-1).view(2, -1, 144).reshape(-1, 36).t()),
    "split again and again": ((4, 6), lambda x: x.view(6, 4).view(3, 8).view(8, 3).view(4, 6).view(2, 12)),
    "a part of rows that do not divide": (
        (3, 20, 4),
        lambda x: x.view(8, 30).view(-1, 48)[1:, ::2].unflatten(1, (4, 6)),
    ),
    "rows with gaps": ((4, 9), lambda x: x[:, 1:7].unflatten(1, (2, 3)).flatten(1).view(4, 3, 2)[1:].transpose(0, 2)),
    "repeated rows": ((4, 6), lambda x: x.expand(3, 4, 6).reshape(3, 8, 3).view(3, 3, 8).permute(2, 0, 1)),
    "windows": ((12, 4), lambda x: x.unfold(0, 3, 3).view(4, 2, 2, 3).flatten(1, 2).squeeze().movedim(0, 1)),
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_of_views_is_a_window(name: str) -> None:
    shape, chain = CHAINS[name]
    x = torch.arange(float(torch.Size(shape).numel())).view(shape)
    program = _lowered(chain, x, False)
    (out,) = program.outputs
    assert isinstance(out, BufferView)
    assert out.buffer == program.inputs[0]
    steps, offset = tuple(int(s) for s in out.strides), int(out.offset)
    assert torch.equal(x.as_strided(chain(x).shape, steps, offset), chain(x))


@pytest.mark.parametrize(
    "chain",
    [
        lambda x: x.flatten(0, 1).flatten().view(x.shape[2], -1).t(),
        lambda x: x.flatten().view(x.shape[1], x.shape[2], x.shape[0]).flatten(1).view(x.shape[2], -1),
        lambda x: x[:, 1:].flatten(1).unflatten(1, (-1, x.shape[2])).transpose(0, 1),
        lambda x: x.expand(3, *x.shape).flatten(1, 2).view(3, x.shape[2], -1),
    ],
    ids=["joined", "regrouped", "with gaps", "repeated"],
)
def test_a_chain_of_views_of_any_size_is_a_window(chain: Callable[[Tensor], Tensor]) -> None:
    program = _lowered(chain, torch.zeros(4, 6, 8), True)
    (out,) = program.outputs
    assert isinstance(out, BufferView)
    assert out.buffer == program.inputs[0]


def _offsets(program: LoopProgram) -> list[Expr]:
    buffers = program.buffer_map()
    loads = [e for s in program.steps if isinstance(s, Nest) for e in s.body if isinstance(e, Load)]
    return [sum((i * s for i, s in zip(e.index, buffers[e.buffer].strides, strict=True)), as_expr(0)) for e in loads]


@pytest.mark.parametrize("name", CHAINS)
def test_a_kernel_that_reads_a_chain_of_views_divides_no_index(name: str) -> None:
    shape, chain = CHAINS[name]
    program = _lowered(lambda x: chain(x) + 1, torch.zeros(shape), False)
    assert not [a for e in _offsets(program) for a in e.atoms() if isinstance(a, Div | Mod)]


def test_a_window_by_raw_strides_onto_memory_with_gaps() -> None:
    x = torch.arange(48.0).view(6, 8)[:, ::2]
    program = _lowered(lambda x: x.as_strided((3, 4), (8, 2), 8).view(3, 2, 2) + 1, x, False)
    assert all(isinstance(step, Nest) for step in program.steps)
    in_gaps = _lowered(lambda x: x.as_strided((3, 4), (8, 1)) + 1, x, False)
    assert not all(isinstance(step, Nest) for step in in_gaps.steps)
