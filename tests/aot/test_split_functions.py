"""Custom autograd functions of several results, of which some get no gradient; writes that inference mode refuses."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import lamina

BACKWARDS: dict[str, Callable[..., Tensor]] = {
    "of both": lambda a, b: a + b.exp(),
    "of one": lambda a, b: b.cos(),
    "chosen by zeros": lambda a, b: torch.where(b == 0, 9.0, a),
    "constant": lambda a, b: torch.full_like(b, 5.0),
}
AFTER: dict[str, Callable[..., tuple[Tensor, ...]]] = {
    "apart": lambda x, a, b: (a, b.sin()),
    "one of both": lambda x, a, b: (a + b, b),
    "together": lambda x, a, b: (a * b, x.cos()),
}


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def function_of(backward: Callable[..., Tensor], materialized: bool) -> Any:
    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
            if not materialized:
                ctx.set_materialize_grads(False)
            return x * 2, x * 3

        @staticmethod
        def backward(ctx: Any, a: Any, b: Any) -> Tensor:
            return backward(torch.full((3,), 2.0) if a is None else a, torch.full((3,), 4.0) if b is None else b)

    return Own


def gradients(function: Any) -> list[Any]:
    found = []
    for place in range(2):
        x = torch.arange(3.0, requires_grad=True)
        function(x)[place].sum().backward()
        found.append(None if x.grad is None else x.grad.clone())
    return found


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize("materialized", [True, False])
@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("name", BACKWARDS)
def test_gradients_that_are_not_there(name: str, after: str, materialized: bool) -> None:
    own = function_of(BACKWARDS[name], materialized)

    def program(x: Tensor) -> tuple[Tensor, ...]:
        return AFTER[after](x, *own.apply(x.sin()))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lamina.LaminaWarning)
        compiled = gradients(lamina.compile(program))
    for one, other in zip(compiled, gradients(program), strict=True):
        torch.testing.assert_close(one, other)


def test_results_that_go_the_same_way_are_compiled() -> None:
    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
            return x * 2, x * 3

        @staticmethod
        def backward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
            return a + b.exp()

    compiled = lamina.compile(lambda x: (sum(Own.apply(x)), x * 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error", lamina.LaminaWarning)
        compiled(torch.arange(3.0, requires_grad=True))


def test_a_tensor_of_inference_mode_is_not_written_to_outside_of_it() -> None:
    def program(function: Any) -> list[Any]:
        with torch.inference_mode():
            kept = torch.zeros(3)
        seen: list[Any] = []
        for inference in (False, True, False):
            with torch.inference_mode(inference):
                try:
                    function(kept)
                except RuntimeError as error:
                    seen.append(str(error)[:40])
                seen.append(kept.tolist())
        return seen

    def write(x: Tensor) -> Tensor:
        return x.add_(1)

    assert program(lamina.compile(write)) == program(write)
