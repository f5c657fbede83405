"""Reductions joined in the same launch by the last program: right, equal in every run, on several streams, recorded."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import lamina
from lamina.testing import judge

STRICT = {"strict": True}

pytestmark = pytest.mark.usefixtures("fresh")


def randn(*shape: int) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, device="cuda").add_(1).to(torch.bfloat16)


PROGRAMS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "columns": (lambda x: x.sum(0), (16384, 4096)),
    "columns of an odd width": (lambda x: x.sum(0), (8192, 4100)),
    "columns of images": (lambda x: x.sum(1), (4, 16384, 1024)),
    "variance of columns": (lambda x: x.var(0), (16384, 4096)),
    "everything": (lambda x: x.sum(), (16384, 4096)),
    "variance of everything": (lambda x: x.var(), (16384, 4096)),
}


def joined(compiled: Any) -> bool:
    return any("the last program" in d.reason for d in compiled.record.decisions("group"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_are_right_and_always_the_same(name: str) -> None:
    function, shape = PROGRAMS[name]
    x = randn(*shape)
    compiled = lamina.compile(function, dynamic=False, options=STRICT)
    first = compiled(x)
    assert joined(compiled)
    assert not judge(first, function(x), function(x.double()))
    for _ in range(50):
        assert torch.equal(compiled(x), first)


def test_streams_have_counters_of_their_own() -> None:
    function, shape = PROGRAMS["columns"]
    compiled = lamina.compile(function, dynamic=False, options=STRICT)
    x = randn(*shape)
    want = compiled(x)
    torch.cuda.synchronize()
    wrong: list[int] = []

    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
            results = [compiled(x) for _ in range(20)]
            torch.cuda.current_stream().synchronize()
            wrong.append(sum(not torch.equal(r, want) for r in results))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [0, 0, 0]


def test_a_recorded_graph_may_be_replayed_beside_launches() -> None:
    function, shape = PROGRAMS["everything"]
    compiled = lamina.compile(function, dynamic=False, options=STRICT)
    x = randn(*shape)
    want = compiled(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = compiled(x)
    for _ in range(10):
        recorded.zero_()
        graph.replay()
        beside = compiled(x)
        torch.cuda.synchronize()
        assert torch.equal(recorded, want)
        assert torch.equal(beside, want)
