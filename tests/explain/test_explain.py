"""Explanations: short, grouped, with what to change first; figures of a callable; what a compiled module prints."""

from __future__ import annotations

import gc
import json
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import lamina
from lamina.errors import BadArgument
from lamina.explain.explanation import Explanation, _coloured, _seconds, _work
from lamina.summary import Work

HERE = Path(__file__).name


@pytest.fixture(autouse=True)
def _afresh() -> None:
    torch.compiler.reset()


class Layer(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 32), nn.Linear(32, width)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.down(nn.functional.gelu(self.up(self.norm(x))))
        return result


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(12))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        if x.sum() > 1e9:  # asks for data
            x = x * 2
        return x.softmax(-1)


@pytest.fixture(scope="module")
def explained() -> Explanation:
    torch.compiler.reset()
    return lamina.explain(Model())(torch.randn(4, 16))


def test_twelve_layers_take_at_most_forty_lines(explained: Explanation) -> None:
    lines = explained.text().splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 118
    assert lines[0].startswith("Model: 2 graphs, 1 graph break, ")
    assert any(line.strip().startswith("x 12") for line in lines)


def test_nothing_is_cut_off_without_a_word() -> None:
    seconds = {f"stage {number}": 10.5 - number for number in range(8)} | {"build": 6.72, "build chosen": 1.0}
    (line,) = _seconds(seconds)
    assert len(line) <= 118
    assert line.startswith("  seconds: stage 0 10.50, stage 1 9.50, ")
    assert line.endswith("; build 7.72 beside the other stages")
    work = Work(f"{'mul_' * 20}0123456789", (), 1, 8, 1.0, ("a.py:1 mul",), "")
    assert f"{('mul_' * 20)[:31]}...  a.py:1 mul" in _work(work)


def test_what_to_change_comes_first_with_line_and_remedy(explained: Explanation) -> None:
    first, remedy = explained.text().splitlines()[4:6]
    line = next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "# asks for data" in text)
    assert first.split()[:2] == ["1", f"{HERE}:{line}"]
    assert "LM1002" in first
    assert "torch.where" in remedy


def test_json_has_all_of_it(explained: Explanation) -> None:
    found = json.loads(explained.to_json())
    assert found["stats"]["graphs"] == 2
    assert found["stats"]["launches"] == sum(kernel["count"] for kernel in found["kernels"])
    assert {"break", "joint tracing"} <= {decision["kind"] for decision in found["decisions"]}
    assert all(HERE in place for kernel in found["kernels"] for place in kernel["places"])
    assert sum(work["share"] for kind in ("kernels", "library_calls") for work in found[kind]) == pytest.approx(1)


def test_the_backward_is_explained_without_leaving_gradients() -> None:
    model = Layer()
    found = lamina.explain(model)(torch.randn(4, 16)).to_dict()
    assert any(graph["region"].endswith("backward") for graph in found["graphs"])
    assert all(parameter.grad is None for parameter in model.parameters())
    forward = lamina.explain(Layer(), backward=False)(torch.randn(4, 16)).to_dict()
    assert not any(graph["region"].endswith("backward") for graph in forward["graphs"])


def test_a_function_that_was_compiled_before_is_explained_too() -> None:
    def function(x: Tensor) -> Tensor:
        return x.softmax(-1)

    compiled = lamina.compile(function)
    compiled(torch.randn(4))
    assert lamina.explain(function)(torch.randn(4)).to_dict()["stats"]["graphs"] == 1
    again = lamina.explain(compiled)(torch.randn(4))
    assert again.record is compiled.record


def test_text_is_plain_in_a_pipe_and_coloured_in_a_terminal(explained: Explanation) -> None:
    assert "\x1b" not in str(explained)
    assert "\x1b[32m      do: " in _coloured(explained.text())


def test_figures_sum_to_the_time_of_compiling() -> None:
    x = torch.randn(4, 16)
    lamina.compile(lambda x: x + 1)(x)  # loads what is loaded once
    compiled = lamina.compile(Model())
    gc.collect()
    gc.freeze()  # what other tests left would be looked at again and again meanwhile
    try:
        start = time.perf_counter()
        compiled(x).sum().backward()
        wall = time.perf_counter() - start
    finally:
        gc.unfreeze()
    stats = compiled.stats()
    assert 0 < stats.total_seconds <= wall
    assert stats.graphs == 2
    assert stats.breaks == 1
    assert stats.built + stats.reused >= 1
    compiled(torch.randn(5, 16))
    assert compiled.stats().recompiles >= 1


def test_what_a_compiled_module_prints() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    compiled = lamina.compile(model)
    compiled(torch.randn(2, 4))
    first, rest = repr(compiled).split("\n", 1)
    assert first.startswith("compiled by Lamina: 1 graph, 0 graph breaks, ")
    assert rest == repr(model)
    assert "(0): compiled by Lamina" in repr(nn.Sequential(compiled))
    named = lamina.compile(type("Own", (nn.Linear,), {"stats": 7})(2, 2))
    assert named.stats == 7


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(BadArgument, match="was given a int"):
        lamina.explain(3)
