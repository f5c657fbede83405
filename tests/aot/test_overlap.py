"""Which tensors have elements that share memory is decided as eager decides it."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import lamina
from lamina.aot.overlap import how_often_written, inputs_written, overlapping_write
from lamina.base.overlap import overlaps

LAYOUTS = [
    ((3,), (1,)),
    ((3,), (0,)),
    ((1,), (0,)),
    ((3, 0), (0, 0)),
    ((2, 3), (0, 1)),
    ((2, 3), (3, 1)),
    ((2, 1, 3), (3, 0, 1)),
    ((3, 3), (2, 1)),
    ((3, 3), (1, 1)),
    ((), ()),
]


@pytest.mark.parametrize(("shape", "strides"), LAYOUTS, ids=str)
def test_overlap_is_what_eager_refuses(shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    tensor = torch.zeros(16).as_strided(shape, strides)
    try:
        tensor.add_(1)
        refused = False
    except RuntimeError:
        refused = True
    assert overlaps(tensor) == refused


def test_the_record_tells_why_a_graph_is_left_to_eager() -> None:
    torch.compiler.reset()
    compiled = lamina.compile(lambda x: x.expand(3).fill_(2) + 1, options={"strict": True})
    torch.testing.assert_close(compiled(torch.zeros(1)), torch.full((3,), 3.0))
    (stage,) = [s for s in compiled.record.stages if s.name == "eager"]
    (decision,) = stage.decisions
    assert "share memory" in decision.reason
    assert "fill_" in decision.reason


@pytest.mark.parametrize(
    ("written", "read", "refused"),
    [((0, 4), (4, 4), False), ((4, 4), (0, 4), False), ((0, 5), (4, 4), True), ((4, 4), (0, 5), True)],
)
def test_what_a_call_reads_and_writes_is_compared_to_the_last_element(
    written: tuple[int, int], read: tuple[int, int], refused: bool
) -> None:
    graph = torch.fx.Graph()
    operands = []
    with FakeTensorMode():
        base = torch.zeros(8)
        for start, length in (written, read):
            node = graph.placeholder(f"from_{start}")
            node.meta["example_value"] = base.narrow(0, start, length)
            operands.append(node)
    graph.output(graph.call_method("add_", tuple(operands)))
    assert bool(overlapping_write(torch.fx.GraphModule({}, graph))) == refused


def test_functions_named_after_keywords_write_to_nothing() -> None:
    graph = torch.fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    for node in (x, y):
        node.meta["example_value"] = FakeTensorMode().from_tensor(torch.ones(3, dtype=torch.bool))
    graph.output(graph.call_function(operator.or_, (graph.call_function(operator.and_, (x, y)), y)))
    assert inputs_written(torch.fx.GraphModule({}, graph)) == ()


def _thrice(x: torch.Tensor) -> torch.Tensor:
    x.detach().mul_(2)
    x.add_(1)
    x[0].add_(1)
    return x.sin()


def _once_each(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    x[1:].zero_()
    return (w * 2).sum()


def _a_list(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    torch._foreach_mul_([x, w.detach().clone()], 2.0)
    return w.argmax()


def _read_after_it(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    x.mul_(2)
    return (x * w).sum()


@pytest.mark.parametrize("capture", ["own", "dynamo"])
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("function", [_thrice, _once_each, _a_list, _read_after_it])
def test_versions_rise_as_often_as_a_graph_writes(function: Any, gradients: bool, capture: str) -> None:
    torch.compiler.reset()
    compiled = lamina.compile(function, options={"capture": capture, "strict": True})

    def called(call: Any) -> int:
        x, w = torch.ones(4, 3), torch.ones(4, 3, requires_grad=gradients)
        before = x._version
        result = call(*(x, w)[: 1 if function is _thrice else 2])
        raised = x._version - before
        if result.requires_grad:
            result.sum().backward()
        return raised

    assert [called(compiled) for _ in range(3)] == [called(function)] * 3


def test_calls_that_write_to_an_input_are_counted_through_its_views() -> None:
    found: list[list[int]] = []

    def backend(gm: Any, inputs: Any) -> Any:
        found.append(how_often_written(gm))
        return gm.forward

    torch.compiler.reset()
    torch.compile(_once_each, backend=backend)(torch.ones(4, 3), torch.ones(4, 3))
    assert found == [[2, 0]]
