"""What eager refuses for a dtype is refused with its exception; what it computes is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lamina

Function = Callable[[Tensor], Tensor]

REFUSED: dict[str, tuple[Function, Tensor]] = {
    "argmax of booleans": (lambda x: x.argmax(), torch.tensor([True, False])),
    "argmin of booleans": (lambda x: x.argmin(0), torch.ones(2, 2, dtype=torch.bool)),
    "adaptive mean of integers": (lambda x: F.adaptive_avg_pool2d(x, 2), torch.ones(1, 1, 4, 4, dtype=torch.int64)),
    "adaptive mean of volumes": (lambda x: F.adaptive_avg_pool3d(x, 2), torch.ones(1, 4, 4, 4, dtype=torch.int64)),
    "running sum in booleans": (lambda x: torch.cumsum(x, 0, dtype=torch.bool), torch.tensor([True, False])),
    "running product in booleans": (lambda x: x.cumprod(0, dtype=torch.bool), torch.tensor([True, False])),
    "mean of windows of int32": (lambda x: F.avg_pool2d(x, 2), torch.ones(1, 1, 4, 4, dtype=torch.int32)),
}
UNSIGNED: dict[str, Function] = {
    "add": lambda x: x + x,
    "add a number": lambda x: x + 1,
    "sub": lambda x: x - x,
    "less": lambda x: x < x,
    "max": lambda x: x.max(),
    "negative": lambda x: -x,
    "shift": lambda x: x << 1,
    "floor division": lambda x: x // x,
    "larger": lambda x: torch.maximum(x, x),
    "argmax": lambda x: x.argmax(),
    "power": lambda x: x**2,
    "relu": lambda x: x.relu(),
    "multiply": lambda x: x * x,
    "equal": lambda x: x == x,
    "sum": lambda x: x.sum(),
    "widened": lambda x: x.to(torch.int64) + 1,
    "sliced": lambda x: x[1:],
    "joined": lambda x: torch.cat([x, x]),
    "chosen": lambda x: torch.where(x.bool(), x, x),
    "in float32": lambda x: x.float().exp(),
}


def _outcome(function: Function, x: Tensor) -> Any:
    try:
        found = function(x.clone())
    except Exception as error:
        return type(error)
    return found.dtype, found.tolist()


def _compare(function: Function, x: Tensor) -> None:
    torch._dynamo.reset()
    expected, found = _outcome(function, x), _outcome(lamina.compile(function), x)
    if isinstance(expected, tuple) and expected[0].is_floating_point:
        assert found == (expected[0], pytest.approx(expected[1]))
    else:
        assert found == expected


@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_is_refused(name: str) -> None:
    function, x = REFUSED[name]
    assert isinstance(_outcome(function, x), type)
    _compare(function, x)


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("name", UNSIGNED)
def test_unsigned_integers_are_as_in_eager(name: str) -> None:
    for dtype in (torch.uint16, torch.uint32, torch.uint64):
        _compare(UNSIGNED[name], torch.tensor([1, 2, 3]).to(dtype))


@pytest.mark.parametrize("tiny", [1e-45, -1e-45, 1e-38, 0.0])
def test_infinity_times_the_logarithm_of_one_and_a_subnormal_number(tiny: float) -> None:
    x = torch.tensor([float("inf"), -float("inf"), 0.0, 2.0]).repeat(5)
    y = torch.full_like(x, tiny)
    expected = torch.special.xlog1py(x, y)
    torch.testing.assert_close(lamina.compile(torch.special.xlog1py)(x, y), expected, equal_nan=True)


@pytest.fixture
def _deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("_deterministic")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32, torch.int64, torch.uint8, torch.bool])
def test_new_memory_is_filled_where_programs_are_deterministic(dtype: torch.dtype) -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        return torch.empty(3, dtype=dtype), torch.empty_like(x, dtype=dtype), x.new_empty((2, 2), dtype=dtype)

    found = lamina.compile(function)(torch.ones(4))
    torch.testing.assert_close(found, function(torch.ones(4)), equal_nan=True, rtol=0, atol=0)
