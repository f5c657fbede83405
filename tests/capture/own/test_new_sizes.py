"""Calls with sizes that no call had before: which are done without interpretation, and that they do what eager does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from lamina import compile as lamina_compile
from tests.capture.own.machines import MACHINES
from tests.capture.own.sized_programs import difference
from tests.capture.own.test_learnt import Compiled
from tests.capture.own.test_sizes import WITH_SIZES, Attention

SEEDS = 40
ROWS = (4, 8, 16, 5, 9, 3, 12)


def same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, torch.Tensor):
        return torch.equal(found, wanted) and found.stride() == wanted.stride()
    if isinstance(wanted, (tuple, list)):
        return type(found) is type(wanted) and all(map(same, found, wanted)) and len(found) == len(wanted)
    return type(found) is type(wanted) and bool(found == wanted)


def interpreted(compiled: Compiled, program: Any, given: Sequence[tuple[Any, ...]]) -> list[int]:
    """How many calls were interpreted, one by one; each has to give what ``program`` does."""
    found = []
    for args in given:
        before = compiled.interpreted
        assert same(compiled.call(*args), program(*args)), args
        found.append(compiled.interpreted - before)
    return found


PROGRAMS = {
    **WITH_SIZES,
    "a scale": lambda x: x * (x.shape[0] ** -0.5) + x.shape[1] / 2,
    "a length": lambda x: x.sum(0) / len(x),
    "shapes": lambda x: (x.sin().reshape(x.shape[0] * 2, -1), x.shape, x.numel(), [x.size(0), x.size()]),
    "a result's size": lambda x: torch.cat([x, x]).cos()[: (x.sin()[1:].shape[0] + 1)],
    "factories": lambda x: x + torch.arange(x.shape[0])[:, None] + torch.zeros(x.shape) + torch.ones(*x.shape),
    "a shape that is compared": lambda x: x + 1 if x.shape == (1, 1) else x.view(*x.shape[:-1], 2, 3),
    "a shape made of others": lambda x: x.repeat(2, 1).reshape(x.new_zeros(2).shape + x.shape),
    "the lesser": lambda x: x[: min(x.shape[0], 6)] * max(x.shape[0], 7),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_sizes_are_inputs_of_what_is_done_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = PROGRAMS[name]
    compiled = Compiled(program, monkeypatch)
    counts = interpreted(compiled, program, [(torch.randn(rows, 6),) for rows in ROWS])
    assert sum(counts[3:]) == 0, counts
    assert compiled.graphs <= 3


def test_batches_and_lengths_that_are_new_are_not_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    net = Attention()
    compiled = Compiled(net, monkeypatch)
    pairs = ((4, 8), (2, 8), (2, 16), (3, 32), (8, 4), (3, 5), (6, 7))
    counts = interpreted(compiled, net, [(torch.randn(batch, length, 16),) for batch, length in pairs])
    assert sum(counts[4:]) == 0, counts
    assert compiled.graphs <= 3


def test_a_cache_that_grows_is_interpreted_for_few_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(x, cache):
        scale = cache.shape[1] ** -0.5
        cache = torch.cat([cache, x], 1)
        scores = (x @ cache.transpose(1, 2)).softmax(-1)
        return scores @ cache, cache, torch.arange(cache.shape[1]) * scale

    compiled = Compiled(step, monkeypatch)
    cache = torch.randn(1, 3, 8)
    for _ in range(80):
        x = torch.randn(1, 1, 8)
        assert same(compiled.call(x, cache), step(x, cache))
        cache = step(x, cache)[1]
    assert compiled.interpreted <= 5
    assert compiled.graphs <= 3


def test_gradients_are_those_of_new_sizes() -> None:
    net = nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.LayerNorm(5))
    compiled = lamina_compile(net, options={"capture": "own"})
    for rows in ROWS:
        x = torch.randn(rows, 6)
        found, wanted = (torch.autograd.grad(call(x).square().mean(), [*net.parameters()]) for call in (compiled, net))
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other)


BRANCHES = {
    "a size": lambda x: x * 2 if x.shape[0] > 5 else x - 1,
    "a size of a result": lambda x: x * 2 if x.reshape(-1).shape[0] % 4 else x - 1,
    "a shape": lambda x: x * 2 if x.shape == (8, 6) else x - 1,
    "another shape": lambda x: x * 2 if x.t().shape != (6, 8) else x - 1,
    "a length": lambda x: x * 2 if len(x) > 5 else x - 1,
    "elements": lambda x: x * 2 if x.numel() > 30 else x - 1,
    "strides": lambda x: x * 2 if x.t().stride(0) == 1 and x.shape[0] > 5 else x - 1,
    "parts": lambda x: torch.stack([part * len(part) for part in x.unbind(0)]),
    "chunks": lambda x: [part * 2 for part in x.chunk(4)],
    "a range": lambda x: sum((x[row] for row in range(x.shape[0])), x[0]),
    "rows": lambda x: [row + 1 for row in x],
    "a text": lambda x: (x + 1, f"{x.shape[0]} of {x.shape}"),
    "a key": lambda x: x * {4: 2, 8: 3}.get(x.shape[0], 5),
    "a truth": lambda x: x * 2 if x.shape[0] - 5 else x - 1,
    "the same number": lambda x: x * 2 if x.shape[0] in (5, 8) else x - 1,
    "a hash": lambda x: x * hash(x.shape[0]) + hash((x.shape, 1)) % 7,
    "a square": lambda x: x ** (x.shape[0] % 3),
    "a dimension": lambda x: x.sum(x.shape[0] % 2),
    "broadcasting": lambda x: x + x[: (1 if x.shape[0] > 5 else x.shape[0])],
    "values": lambda x: (x.round().long().tolist(), x + 1),
}


@pytest.mark.parametrize("name", BRANCHES)
def test_what_the_program_decides_by_a_size_is_decided_anew(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = BRANCHES[name]
    compiled = Compiled(program, monkeypatch)
    interpreted(compiled, program, [(torch.randn(rows, 6),) for rows in (*ROWS, 5, 8, 4, 1, 2, 7)])


def test_sizes_of_one_and_nothing_are_told_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x, y):
        return x[1:] + y, x.t().reshape(-1), x.transpose(0, 1).contiguous()

    compiled = Compiled(program, monkeypatch)
    given = [(torch.randn(rows, 3), torch.randn(1, 3)) for rows in (4, 6, 8, 2, 1, 5)]
    given += [(torch.randn(rows, 3), torch.randn(rows - 1, 3)) for rows in (4, 6, 2, 8, 3)]
    interpreted(compiled, program, given)


def test_an_error_of_a_new_size_is_that_of_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    table = nn.Embedding(8, 3)

    def program(x, y):
        return table(torch.arange(x.shape[0])) + x @ y

    compiled = Compiled(program, monkeypatch)
    interpreted(compiled, program, [(torch.randn(rows, 4), torch.randn(4, 3)) for rows in (2, 3, 5, 7)])
    with pytest.raises(IndexError):
        compiled.call(torch.randn(9, 4), torch.randn(4, 3))
    with pytest.raises(RuntimeError):
        compiled.call(torch.randn(5, 4), torch.randn(5, 3))


def test_other_layouts_and_types_of_new_sizes_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x):
        return x.reshape(-1), x.is_contiguous(), x.dtype

    compiled = Compiled(program, monkeypatch)
    given = [torch.randn(rows, 6) for rows in (4, 8, 5)]
    given += [torch.randn(6, rows).t() for rows in (4, 8, 5, 7)]
    given += [torch.randn(rows, 12)[:, ::2] for rows in (4, 8, 5)]
    given += [torch.randn(rows, 6, dtype=torch.float64) for rows in (9, 10)]
    given += [torch.randn(rows + 1, 6)[1:] for rows in (9, 10, 3)]
    interpreted(compiled, program, [(x,) for x in given])


def test_with_dynamic_false_each_size_is_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = Compiled(torch.sin, monkeypatch, dynamic=False)
    counts = interpreted(compiled, torch.sin, [(torch.randn(rows),) for rows in (4, 8, 16, 5)])
    assert counts == [1, 1, 1, 1]


@pytest.mark.parametrize("machine", MACHINES)
def test_random_programs_with_growing_sizes(machine: str) -> None:
    outcomes = [difference(seed, MACHINES[machine], growing=True) for seed in range(SEEDS)]
    assert [outcome.told for outcome in outcomes if outcome.told] == []
    assert sum(outcome.reused for outcome in outcomes) > sum(outcome.calls for outcome in outcomes) // 5
