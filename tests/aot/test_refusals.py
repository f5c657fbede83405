"""Graphs that are left to eager are told of once, with the place, the reason and the remedy; others are not."""

from __future__ import annotations

import contextlib
import math
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import lamina


@pytest.fixture(autouse=True)
def apart() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def shared(x: Tensor) -> Tensor:
    return x.expand(3).fill_(2) + 1


def shifted(x: Tensor) -> Tensor:
    x[1:] += x[:-1]
    return x


def dead(x: Tensor) -> Tensor:
    x.gather(0, torch.zeros(1, dtype=torch.long))
    return x.sin()


def gaps(x: Tensor) -> Tensor:
    return torch.empty_strided((2, 2), (4, 1)).fill_(1.0) + x


def leaf(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = x.view(-1)
    return y * 2


def mode(x: Tensor) -> Tensor:
    with torch.inference_mode():
        y = x.sin()
    return y + x.cos()


def called(compiled: Callable[..., Any], *arguments: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with contextlib.suppress(RuntimeError):  # eager's own
            compiled(*arguments)
    return [str(w.message) for w in said if issubclass(w.category, lamina.LaminaWarning)]


@pytest.mark.by_dynamo(
    "counts Dynamo's graphs, or asks what it leaves to eager",
    "False-dead-<lambda>-nothing uses its result; remove",
    "False-mode-<lambda>-inference mode .*; put all of the function into",
    "False-shifted-<lambda>-in another order, .*; clone",
    "True-dead-<lambda>-nothing uses its result; remove",
    "True-mode-<lambda>-inference mode .*; put all of the function into",
    "True-shifted-<lambda>-in another order, .*; clone",
)
@pytest.mark.parametrize(
    ("program", "make", "why"),
    [
        (shared, lambda: torch.zeros(1), "share memory, .*; write to a copy"),
        (shifted, lambda: torch.ones(4), "in another order, .*; clone"),
        (dead, lambda: torch.ones(4), "nothing uses its result; remove"),
        (gaps, lambda: torch.ones(2), "makes memory with gaps; .*make the tensor before"),
        (leaf, lambda: torch.ones(4, requires_grad=True) * 1, "makes a leaf .*; make"),
        (mode, lambda: torch.ones(4), "inference mode .*; put all of the function into"),
    ],
)
@pytest.mark.parametrize("strict", [False, True])
def test_a_graph_left_to_eager_is_told_of_once(program: Any, make: Any, why: str, strict: bool) -> None:
    compiled = lamina.compile(program, dynamic=False, options={"strict": strict})
    (said,) = called(compiled, make())
    assert re.search(rf"^lamina leaves test_refusals\.py:\d+, .* to eager: .*{why}", said)
    assert called(compiled, make()) == []
    (decision,) = compiled.record.decisions("eager")
    assert decision.reason in said


@pytest.mark.by_dynamo("counts Dynamo's graphs, or asks what it leaves to eager")
def test_a_graph_captured_anew_is_not_told_of_again() -> None:
    compiled = lamina.compile(dead, dynamic=False)
    assert len(called(compiled, torch.ones(4))) == 1
    assert called(compiled, torch.ones(5)) == []
    assert len(compiled.record.decisions("eager")) == 2


def part_added_to(x: Tensor) -> Tensor:
    y = x * 2
    y[:, : x.shape[1] // 2] += 1
    y[:, 0] *= 3
    return y


def input_added_to(x: Tensor) -> Tensor:
    x[:, : x.shape[1] // 2] -= 1
    return x.sum(1)


def turned(x: Tensor) -> Tensor:
    y = x.clone()
    y[..., ::2], y[..., 1::2] = -y[..., 1::2], y[..., ::2].clone()
    return y


def differentiated(x: Tensor) -> Tensor:
    return torch.func.grad(lambda a: a.sin().sum())(x)


@pytest.mark.by_dynamo(
    "counts Dynamo's graphs, or asks what it leaves to eager", "differentiated-False", "differentiated-None"
)
@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize("dynamic", [False, None])
@pytest.mark.parametrize("program", [part_added_to, input_added_to, turned, differentiated])
def test_programs_that_are_compiled_are_not_told_of(program: Any, dynamic: bool | None) -> None:
    compiled = lamina.compile(program, dynamic=dynamic, options={"strict": True})
    for width in (8, 10):
        x = torch.randn(4, width)
        ours, theirs = x.clone(), x.clone()
        assert called(compiled, x.clone()) == []
        torch.testing.assert_close(compiled(ours), program(theirs))
        torch.testing.assert_close(ours, theirs)
    assert not compiled.record.decisions("eager")


@pytest.mark.by_dynamo("counts Dynamo's graphs, or asks what it leaves to eager", "columns1-True")
@pytest.mark.parametrize(
    ("columns", "left"), [((0, 2, 2, 4), False), ((0, 3, 2, 5), True), ((0, 1, 7, 8), False), ((1, 2, 1, 2), False)]
)
def test_parts_of_a_matrix_are_compared_element_by_element(columns: tuple[int, ...], left: bool) -> None:
    def program(x: Tensor) -> Tensor:
        y = x * 1
        y[:, columns[0] : columns[1]] = y[:, columns[2] : columns[3]]
        return y

    compiled = lamina.compile(program, dynamic=False, options={"strict": True})
    x = torch.randn(4, 8)
    assert len(called(compiled, x)) == left
    if not left:
        assert torch.equal(compiled(x), program(x))


@pytest.mark.by_dynamo("counts Dynamo's graphs, or asks what it leaves to eager")
def test_a_part_of_a_tensor_turned_since_is_another() -> None:
    def program(x: Tensor) -> Tensor:
        y = x * 1
        part = y[0]
        y.t_()
        y[0] = part
        return y

    compiled = lamina.compile(program, dynamic=False)
    x = torch.randn(3, 3)
    torch.testing.assert_close(compiled(x), program(x))
    assert len(compiled.record.decisions("eager")) == 1


def test_a_number_that_turns_out_to_be_no_number_or_infinite_is_compiled() -> None:
    def program(x: torch.Tensor, numbers: list[float]) -> Any:
        scale = 2 + max(numbers, key=lambda n: -n)
        return x * scale, torch.add(x, x, alpha=scale), scale

    compiled = lamina.compile(program, backend="interp", dynamic=True, options={"strict": True})
    for numbers in ([0.5, 1.0], [0.0, -0.0], [math.nan, 1.0], [math.inf, math.inf], [1.0, 2.0]):
        found, wanted = (call(torch.linspace(-1, 1, 4), numbers) for call in (compiled, program))
        torch.testing.assert_close(found, wanted, equal_nan=True)
