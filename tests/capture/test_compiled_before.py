"""What was compiled before may be compiled again: a function, a method, and what only imitates a compiled function."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import lamina

CAPTURES = ("dynamo", "own")
How = Callable[[Any], Any]
HOWS: dict[str, How] = {
    "lamina": lamina.compile,
    "own": functools.partial(lamina.compile, options={"capture": "own"}),
    "torch": functools.partial(torch.compile, backend="eager"),
}


def fresh(function: Any) -> Any:
    """The function with code that nothing was compiled of: Dynamo keeps what it compiles by code."""
    function.__code__ = function.__code__.replace()
    return function


def function_of(how: How) -> Any:
    @how
    @fresh
    def function(x: Tensor) -> Tensor:
        return x.sin() * 2 + 1

    return function


def method_of(how: How) -> Any:
    class Scaled:
        by = 2

        @how
        @fresh
        def method(self, x: Tensor) -> Tensor:
            return x.sin() * self.by + 1

    return Scaled().method


def imitation_of(how: How) -> Any:
    inner = function_of(how)

    @functools.wraps(inner)
    def imitation(x: Tensor, plus: int = 0) -> Any:
        return inner(x) + plus

    return imitation


def object_of(how: How) -> Any:
    class Imitation:
        def __init__(self, inner: Any) -> None:
            functools.update_wrapper(self, inner)
            self.inner = inner

        def __call__(self, x: Tensor) -> Any:
            return self.inner(x)

    return Imitation(function_of(how))


def called_by_class(how: How) -> Any:
    class Called:
        @how
        def __call__(self, x: Tensor) -> Tensor:
            return x.sin() * 2 + 1

    return Called()


@pytest.mark.filterwarnings("ignore:lamina compiled nothing")  # of what calls a compiled function and does no more
@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("made", [function_of, method_of, imitation_of, object_of, called_by_class])
def test_it_gives_what_eager_gives(made: Callable[[How], Any], how: str, capture: str) -> None:
    x = torch.randn(8, 8)
    compiled = lamina.compile(made(HOWS[how]), options={"capture": capture})
    for _ in range(2):
        torch.testing.assert_close(compiled(x), x.sin() * 2 + 1)


@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("made", [function_of, method_of])
def test_functions_and_methods_are_compiled_from_what_they_were_made_of(
    made: Callable[[How], Any], how: str, capture: str
) -> None:
    compiled = lamina.compile(made(HOWS[how]), options={"capture": capture})
    with warnings.catch_warnings():
        warnings.simplefilter("error", lamina.errors.LaminaWarning)
        compiled(torch.randn(8, 8))
    assert not compiled.record.decisions("break")


def test_another_backend_of_torch_takes_a_compiled_method_too() -> None:
    x = torch.randn(8, 8)
    assert torch.equal(lamina.compile(method_of(lamina.compile), backend="eager")(x), x.sin() * 2 + 1)


def test_what_is_never_to_be_compiled_stays_so() -> None:
    kept = torch.compiler.disable(lambda x: x.sin() * 2 + 1)  # type: ignore[no-untyped-call]
    with pytest.warns(lamina.errors.LaminaWarning, match="compiled nothing"):
        lamina.compile(kept, options={"capture": "own"})(torch.randn(8, 8))


@pytest.mark.parametrize("how", HOWS)
def test_what_was_compiled_is_what_it_was(how: str) -> None:
    compiled = imitation_of(HOWS[how])
    before = dict(vars(compiled))
    lamina.compile(compiled)(torch.randn(8, 8), plus=1)
    assert vars(compiled) == before
