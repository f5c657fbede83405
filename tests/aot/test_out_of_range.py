"""Calls for elements that are not there raise as eager's do, whether their results are used or not."""

from __future__ import annotations

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


def _selected(x: Tensor, k: int) -> Any:
    return x.sin().select(0, k)


def _named(x: Tensor, k: int) -> Any:
    return torch.select(x.sin(), -2, index=k)


def _bracket(x: Tensor, k: int) -> Any:
    return x.cumsum(0)[k]


def _after_others(x: Tensor, k: int) -> Any:
    return x.sin()[None, ..., k, :]


def _behind_a_mask(x: Tensor, k: int) -> Any:
    return x.sin()[:, None][:, :, 0][k, 0]


def _written(x: Tensor, k: int) -> Any:
    y = x.sin()
    y[k] = 1.0
    return y


def _scattered(x: Tensor, k: int) -> Any:
    return torch.select_scatter(x.sin(), x[0], 0, k)


def _unused(x: Tensor, k: int) -> Any:
    x.select(0, k)
    return x.sin()


def _window(x: Tensor, k: int) -> Any:
    return x.sin().as_strided((2,), (k + 2,), 2 * x.shape[1] - 2)


def _window_of_a_written_input(x: Tensor, k: int) -> Any:
    x.add_(x)
    return x.as_strided((2,), (k + 2,), 2 * x.shape[1] - 2).exp()


SELECTS = [_selected, _named, _bracket, _after_others, _behind_a_mask, _written, _scattered, _unused]


def _outcome(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except (IndexError, RuntimeError) as error:
        return type(error)


def _agree(function: Callable[..., Any], dynamic: bool | None, places: list[int], rows: int = 3) -> None:
    compiled = lamina.compile(function, dynamic=dynamic)
    for place in places:
        x = torch.randn(rows, 5)
        ours, eager = _outcome(compiled, x, place), _outcome(function, x, place)
        if isinstance(eager, Tensor):
            torch.testing.assert_close(ours, eager)
        else:
            assert ours is eager


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize("dynamic", [None, False, True])
@pytest.mark.parametrize("function", SELECTS)
@pytest.mark.filterwarnings("ignore::lamina.LaminaWarning")
def test_places_past_either_end_raise(function: Callable[..., Any], dynamic: bool | None) -> None:
    _agree(function, dynamic, [2, 1, 3, -3, -4, 4])


@pytest.mark.parametrize("dynamic", [None, False, True])
@pytest.mark.filterwarnings("ignore::lamina.LaminaWarning")
def test_views_past_the_end_of_new_memory_raise(dynamic: bool | None) -> None:
    _agree(_window, dynamic, [1, 4, 5, 6], rows=3)


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("backend", ["lamina", "interp"])
@pytest.mark.parametrize("dynamic", [None, False, True])
@pytest.mark.filterwarnings("ignore::lamina.LaminaWarning")
def test_views_past_the_elements_of_a_written_input_see_its_memory_or_raise(dynamic: bool | None, backend: str) -> None:
    compiled = lamina.compile(_window_of_a_written_input, dynamic=dynamic, backend=backend)
    for place in (1, 4, 5, 6):
        for rows in (3, 4):  # of the memory; the input is the first three
            memories = [torch.arange(rows * 5.0).reshape(rows, 5) / 8 for _ in range(2)]
            ours = _outcome(compiled, memories[0][:3], place)
            eager = _outcome(_window_of_a_written_input, memories[1][:3], place)
            torch.testing.assert_close(memories[0], memories[1])
            if isinstance(eager, Tensor):
                torch.testing.assert_close(ours, eager)
            else:
                assert ours is eager


@pytest.mark.filterwarnings("ignore::lamina.LaminaWarning")
def test_a_compiled_graph_is_not_reused_for_fewer_rows() -> None:
    compiled = lamina.compile(lambda x: (x.sin().select(0, 2), x.erf()), dynamic=True)
    compiled(torch.randn(3, 17))
    for rows in (1, 2):
        with pytest.raises(IndexError):
            compiled(torch.randn(rows, 3))


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize("function", [*SELECTS, _window, _window_of_a_written_input])
def test_calls_in_range_are_compiled(function: Callable[..., Any]) -> None:
    compiled = lamina.compile(function, dynamic=True)
    x = torch.randn(3, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("error", lamina.LaminaWarning)  # which a graph left to eager gives
        torch.testing.assert_close(compiled(x.clone(), 1), function(x, 1))


def _of_a_view(x: Tensor) -> Any:
    return x.as_strided((2,), (2,)).as_strided((2, 2), (2, 1)) + 1


def _of_the_result(x: Tensor) -> Any:
    y = x.as_strided((2,), (2,))
    return y, y.as_strided((2, 2), (2, 1))


def _of_parts(x: Tensor) -> Any:
    return x.chunk(2, 1)[1].as_strided((2, 2), (2, 1), 0) * 2, x[:, :1].as_strided((3,), (1,))


@pytest.mark.parametrize("f", [_of_a_view, _of_the_result, _of_parts])
@pytest.mark.parametrize("strides", [(4, 1), (8, 2)])
def test_strides_of_a_view_reach_what_the_view_leaves_out(f: Callable[..., Any], strides: tuple[int, int]) -> None:
    x = torch.arange(24.0).as_strided((1, 2), strides)
    torch.testing.assert_close(lamina.compile(f)(x), f(x))
