"""The seconds of stages sum to the time that compiling takes, by a clock that goes on with each node that is made."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import Graph

import lamina


class Clock:
    """A clock that stands still but while graphs are made: each node takes a second."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        create = Graph.create_node

        def create_node(graph: Graph, *args: Any, **kwargs: Any) -> Any:
            self.now += 1.0
            return create(graph, *args, **kwargs)

        patch.setattr(Graph, "create_node", create_node)
        patch.setattr(time, "perf_counter", lambda: self.now)


def plain(x: Tensor, w: Tensor) -> Tensor:
    return torch.softmax((x @ w).relu(), -1).sum()


def broken(x: Tensor, w: Tensor) -> Tensor:
    y = torch.softmax(x @ w, -1)
    print(end="")
    return (y.sin() * 2).sum()


def cut(x: Tensor, w: Tensor) -> Tensor:
    y = (x @ w).sin()
    return (y[y > 0] * 2).sum() + y.cos().sum()


# AOTAutograd, which differentiates with eager's numbers, copies a backward before it asks to compile it: not counted.
CASES: dict[str, tuple[Callable[..., Tensor], dict[str, Any]]] = {
    "plain": (plain, {}),
    "broken": (broken, {}),
    "cut": (cut, {}),
    "dynamic": (plain, {"dynamic": True}),
    "eager numbers": (plain, {"options": {"numerics": "eager"}}),
    "interpreted": (plain, {"backend": "interp"}),
}


@pytest.mark.by_dynamo(
    "the seconds of the own interpreter are booked to no stage",
    "broken-True",
    "cut-False",
    "cut-True",
    "eager numbers-False",
    "interpreted-True",
    "plain-True",
)
@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize(
    ("name", "training"),
    [(name, training) for name in CASES for training in (False, True) if (name, training) != ("eager numbers", True)],
)
def test_stages_sum_to_the_clock(name: str, training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    function, settings = CASES[name]
    torch.compiler.reset()
    compiled = lamina.compile(function, **settings)
    x, w = torch.randn(4, 8), torch.randn(8, 8, requires_grad=training)
    clock = Clock(monkeypatch)
    result = compiled(x, w)
    if training:
        result.backward()
    assert clock.now > 10
    assert compiled.stats().total_seconds == pytest.approx(clock.now)
