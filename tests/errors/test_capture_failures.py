"""Calls that cannot be captured: eager's own exception where eager raises one, its result where it gives one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import lamina
from lamina import LaminaWarning


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


WRONG: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "view": (lambda x: x.view(3, 5) * 2, lambda: (torch.ones(4),)),
    "matmul": (lambda x, y: (x @ y).relu(), lambda: (torch.ones(2, 3), torch.ones(2, 3))),
    "empty cat": (lambda x: torch.cat([]) + x, lambda: (torch.ones(2),)),
    "window": (lambda n: torch.signal.windows.hann(n), lambda: (-1,)),
    "index": (lambda x, k: x[k], lambda: (torch.ones(4), 9)),
    "index of several": (lambda x: x[:, 3], lambda: (torch.ones(4, 2),)),
    "dtype": (lambda x, y: torch.dot(x, y), lambda: (torch.ones(3), torch.ones(3, dtype=torch.float64))),
    "dimension": (lambda x: x.sum(5), lambda: (torch.ones(3),)),
    "shapes": (lambda x, y: x + y, lambda: (torch.ones(3), torch.ones(4))),
}


def _raised(function: Callable[..., Any], inputs: tuple[Any, ...]) -> Exception:
    try:
        function(*inputs)
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("strict", [False, True])
def test_wrong_inputs_raise_what_eager_raises(name: str, strict: bool) -> None:
    function, inputs = WRONG[name]
    eager = _raised(function, inputs())
    compiled = lamina.compile(function, options={"strict": strict})
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("error", LaminaWarning)
            ours = _raised(compiled, inputs())
        assert type(ours) is type(eager)
        assert str(ours) == str(eager)


def test_an_error_in_the_middle_leaves_what_eager_leaves() -> None:
    def function(x: Tensor, k: int) -> Tensor:
        x.add_(1)
        y = x[k]
        x.mul_(2)
        return y

    x = torch.zeros(4)
    with pytest.raises(IndexError):
        lamina.compile(function)(x, 9)
    assert x.tolist() == [1.0] * 4


def test_an_error_in_a_function_that_is_called_is_caught_by_its_caller() -> None:
    def inner(x: Tensor) -> Tensor:
        return x.view(7) + 1

    def function(x: Tensor) -> Tensor:
        try:
            return inner(x * 2)
        except RuntimeError:
            return x - 1

    assert lamina.compile(function)(torch.ones(4)).tolist() == [0.0] * 4


def test_wrong_inputs_do_not_keep_right_ones_from_being_compiled() -> None:
    compiled = lamina.compile(lambda x: x.view(3, 5).sin() * 2)
    for _ in range(10):
        with pytest.raises(RuntimeError):
            compiled(torch.ones(4))
    x = torch.randn(15)
    torch.testing.assert_close(compiled(x), x.view(3, 5).sin() * 2)
    assert any(hasattr(stage.value, "kernel_count") for stage in compiled.record.stages)


@torch.library.custom_op("lamina_test::only_eager", mutates_args=())
def _only_eager(x: Tensor) -> Tensor:
    return x + 1


@_only_eager.register_fake
def _(x: Tensor) -> Tensor:
    raise ValueError("this operation is known to eager only")


@pytest.mark.by_dynamo("is about what Dynamo captures, and how often")
def test_what_only_eager_can_run_is_run_and_said() -> None:
    def function(x: Tensor) -> Tensor:
        return _only_eager(x * 2) * 3

    compiled = lamina.compile(function)
    with pytest.warns(LaminaWarning, match="uncompiled in this call"):
        assert compiled(torch.ones(2)).tolist() == [9.0, 9.0]
    decisions = compiled.record.decisions("capture")
    assert [d.taken for d in decisions] == [False]
    assert "Python runs it in this call" in decisions[0].reason
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(9):
            assert compiled(torch.ones(2)).tolist() == [9.0, 9.0]
    assert ["from now on" in str(w.message) for w in said if w.category is LaminaWarning] == [True]


@pytest.mark.by_dynamo("is about what Dynamo captures, and how often")
def test_one_graph_that_was_asked_for_is_not_replaced_by_python() -> None:
    compiled = lamina.compile(lambda x: _only_eager(x) * 3, fullgraph=True)
    with pytest.raises(Exception, match="known to eager only"):
        compiled(torch.ones(2))


def _of_modes(x: Tensor, mode: str) -> Tensor:
    if mode == "wrong":
        raise ValueError(mode)
    return x.sin() + 1


def test_a_function_that_raised_is_compiled_in_a_later_call() -> None:
    compiled = lamina.compile(_of_modes)
    for _ in range(2):
        with pytest.raises(ValueError, match="wrong"):
            compiled(torch.ones(3), "wrong")
    assert compiled.stats().graphs == 0
    torch.testing.assert_close(compiled(torch.ones(3), "right"), torch.ones(3).sin() + 1)
    assert compiled.stats().graphs == 1


@pytest.mark.by_dynamo("is about what Dynamo captures, and how often")
def test_a_function_that_raises_always_is_captured_a_few_times_only() -> None:
    compiled = lamina.compile(_of_modes)
    for _ in range(12):
        with pytest.raises(ValueError, match="wrong"):
            compiled(torch.ones(3), "wrong")
    compiled(torch.ones(3), "right")
    assert compiled.stats().graphs == 0
