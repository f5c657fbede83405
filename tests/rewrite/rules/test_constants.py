"""What a captured graph computes from numbers alone is known while compiling."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch.fx import Graph, Node

from lamina.rewrite.rules.constants import Constants


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
