"""Names of graphs and regions: made of what is compiled, and read again whatever that is called."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lamina
from lamina.base.region_names import callable_name, forward_of, graph_name, graph_of, is_backward


@pytest.mark.parametrize(
    ("compiled", "made"),
    [
        ("train_step", "train_step1"),
        ("<lambda>", "lambda1"),
        ("Encoder.forward", "Encoder1"),
        ("outer.<locals>.inner", "inner1"),
        ("größe", "gr_e1"),
        ("", "graph1"),
        ("3d", "graph3d1"),
        ("step2_backward", "step2backward1"),
        ("x" * 99, "x" * 40 + "1"),
    ],
)
def test_graphs_are_called_by_what_is_compiled(compiled: str, made: str) -> None:
    assert graph_name(compiled, 1) == made


@given(st.text(), st.integers(0, 99), st.sampled_from(["", "_forward", "_backward", "_inference"]), st.booleans())
def test_names_of_regions_are_read_as_they_were_made(compiled: str, number: int, kind: str, part: bool) -> None:
    graph = graph_name(compiled, number)
    region = graph + kind + ("_segment1" if kind and part else "")
    assert region.isidentifier()
    assert graph_of(region) == graph
    assert is_backward(region) == (kind == "_backward")
    assert forward_of(region) == region.replace(f"{graph}_backward", f"{graph}_forward")


def test_callables_have_names() -> None:
    module = torch.nn.Linear(2, 2)
    assert callable_name(module) == "Linear"
    assert callable_name(module.forward) == "Linear.forward"
    assert callable_name(partial(max, 1)) == "partial"


def test_a_function_called_like_a_kind_is_no_backward() -> None:
    def my_backward_step(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, -1)

    torch.compiler.reset()
    compiled = lamina.compile(my_backward_step)
    compiled(torch.randn(4, 4))
    regions = {stage.region for stage in compiled.record.stages if stage.region}
    assert regions == {"my_backward_step0", "my_backward_step0_inference"}
    assert not any(map(is_backward, regions))


def test_no_two_graphs_of_two_functions_have_one_name() -> None:
    names = [graph_name(compiled, number) for compiled in ("f", "f1", "f10") for number in range(120)]
    assert len(set(names)) == len(names)
    assert {graph_of(f"{name}_forward") for name in names} == set(names)
