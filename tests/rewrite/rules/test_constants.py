"""What a captured graph computes from numbers alone is known while compiling."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from lamina.rewrite.rules.constants import Constants, distinct
from tests.rewrite.rules.capturing import run_changed


def _graph(comparison: Any) -> Node:
    """``tril(ones(3, 3))`` compared with 0, as a call of ``comparison``: a function, or the name of a method."""
    graph = Graph()
    ones = graph.call_function(torch.ones, (3, 3))
    lower = graph.call_function(torch.tril, (ones,))
    kind = "call_method" if isinstance(comparison, str) else "call_function"
    compared = graph.create_node(kind, comparison, (lower, 0))
    graph.output(compared)
    for node in (ones, lower, compared):
        node.meta["example_value"] = torch.empty(3, 3)
    return compared


@pytest.mark.parametrize("comparison", [operator.eq, torch.eq, "eq", "__eq__"])
def test_a_comparison_is_known_however_it_is_called(comparison: Any) -> None:
    value = Constants().value(_graph(comparison))
    assert value is not None
    assert torch.equal(value, torch.ones(3, 3).triu(1).bool())


def test_random_numbers_are_not() -> None:
    graph = Graph()
    drawn = graph.call_function(torch.rand, (3,))
    compared = graph.call_function(operator.eq, (drawn, 0))
    for node in (drawn, compared):
        node.meta["example_value"] = torch.empty(3)
    assert Constants().value(compared) is None


@pytest.mark.parametrize("name", ["zeros_like", "ones_like", "new_zeros", "new_ones"])
def test_what_takes_only_its_shape_from_an_input_is_known(name: str) -> None:
    graph = Graph()
    x = graph.placeholder("x")
    x.meta["example_value"] = torch.empty(3, 3, dtype=torch.float16)
    like = name.endswith("_like")
    made = graph.call_function(getattr(torch, name), (x,)) if like else graph.call_method(name, (x, (2, 4)))
    made.meta["example_value"] = torch.empty((3, 3) if like else (2, 4), dtype=torch.float16)
    value = Constants().value(made)
    assert value is not None
    expected = torch.full(made.meta["example_value"].shape, float("ones" in name), dtype=torch.float16)
    assert torch.equal(value, expected)
    assert value.dtype == torch.float16
    assert Constants().value(x) is None


def _first(m: Tensor) -> Tensor:
    return m.unbind(1)[0]


def _powers(m: Tensor) -> None:
    m **= 2


def _quotients(m: Tensor) -> None:
    m //= 2


WRITES: dict[str, Callable[[Tensor], object]] = {
    "diagonal": lambda m: m.diagonal().fill_(3),
    "narrow": lambda m: m.narrow(1, 0, 2).zero_(),
    "unbind": lambda m: _first(m).add_(1),
    "chunk": lambda m: m.chunk(2, 1)[1].copy_(m.chunk(2, 1)[0] * 3),
    "flatten": lambda m: m.flatten()[2:3].add_(1),
    "swapaxes": lambda m: m.swapaxes(0, 1).triu_(),
    "view_as": lambda m: m.view_as(m.t()).triu_(),
    "data": lambda m: m.data.mul_(2),
    "detach": lambda m: m.detach().mul_(2),
    "a cast to its own dtype": lambda m: m.float().mul_(2),
    "inplace by place": lambda m: F.leaky_relu(m, -2.0, True),
    "inplace by name": lambda m: F.leaky_relu(m, -2.0, inplace=True),
    "out": lambda m: torch.add(m, 1, out=m),
    "pow": _powers,
    "floor": _quotients,
}


@pytest.mark.parametrize("how", WRITES)
def test_what_is_written_to_is_not_however_it_is_reached(how: str) -> None:
    def function(x: Tensor) -> Tensor:
        m = torch.full((4, 4), -3.0)
        WRITES[how](m)
        return x + m

    known: list[Tensor | None] = []

    def note(gm: GraphModule) -> GraphModule:
        constants = Constants()
        known.extend(constants.value(n) for n in gm.graph.nodes if n.target is torch.full)
        return gm

    run_changed(function, (torch.zeros(4, 4),), note)
    assert known == [None]


def test_what_others_are_computed_from_is_known() -> None:
    def function(x: Tensor) -> Tensor:
        m = torch.full((4, 4), -3.0)
        fresh = m * 2
        fresh.add_(1)
        return x + m.t() + fresh

    found: dict[str, Tensor | None] = {}

    def note(gm: GraphModule) -> GraphModule:
        constants = Constants()
        found.update((n.name, constants.value(n)) for n in gm.graph.nodes if n.name in ("m", "t", "fresh"))
        return gm

    run_changed(function, (torch.zeros(4, 4),), note)
    assert found["fresh"] is None
    for name in ("m", "t"):
        value = found[name]
        assert value is not None
        assert torch.equal(value, torch.full((4, 4), -3.0))


def test_repetitions_that_take_no_memory_are_left_out() -> None:
    rows = torch.arange(6.0).reshape(2, 3)
    wide = rows.expand(4, 5, 2, 3)
    assert distinct(wide).shape == (1, 1, 2, 3)
    assert torch.equal(distinct(wide).expand(4, 5, 2, 3), wide)
    assert distinct(rows.repeat(2, 1)).shape == (4, 3)
