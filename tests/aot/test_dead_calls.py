"""What eager does with calls that nothing uses: those that are left out raise for no values, others keep the graph."""

from __future__ import annotations

import itertools
import operator
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Graph

import lamina
from lamina.aot import dead_calls
from lamina.ops import calls as functions

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
TRUTHS = (torch.bool, *WHOLE)
USUAL = (*TRUTHS, *FLOATS, torch.complex64, torch.complex128)


def values(dtype: torch.dtype) -> Tensor:
    """Four by four values of a type, its extremes among them."""
    if dtype == torch.bool:
        return torch.tensor([True, False, False, True]).repeat(4, 1)
    if dtype in WHOLE:
        most = torch.iinfo(dtype)
        return torch.tensor([most.min, 0, 1, most.max], dtype=dtype).repeat(4, 1)
    rows = [[float("nan"), float("inf"), -float("inf"), 0.0], [-0.0, -1.0, 1e-7, 6e4], [1, 2, 3, 4], [-1, -2, 0, 1]]
    return torch.tensor(rows).to(dtype)


def all_of(name: str, *arguments: Any, **keywords: Any) -> Callable[[Tensor], Any]:
    function = getattr(torch, name, None) or getattr(F, name, None) or getattr(operator, name)
    return lambda x: function(x, *arguments, **keywords)


def pairs(name: str) -> Callable[[Tensor], Any]:
    function = getattr(torch, name, None) or getattr(operator, name)
    return lambda x: (function(x, x.t()), function(x, x[0, 3]))


def joined(name: str) -> Callable[[Tensor], Any]:
    return lambda x: getattr(torch, name)([x, x])


def reduced(name: str) -> Callable[[Tensor], Any]:
    return lambda x: (getattr(torch, name)(x), getattr(torch, name)(x, 0))


MOVES: dict[str, Callable[[Tensor], Any]] = {
    **{name: all_of(name) for name in ("atleast_1d", "atleast_2d", "atleast_3d", "clone", "fliplr", "flipud")},
    **{name: all_of(name) for name in ("ones_like", "zeros_like", "rot90", "tril", "triu")},
    **{name: joined(name) for name in ("cat", "column_stack", "concat", "dstack", "hstack", "stack", "vstack")},
    **{name: operator.methodcaller(name) for name in ("bfloat16", "bool", "double", "float", "half", "int", "long")},
    "arange": lambda x: torch.arange(7, dtype=x.dtype) if x.dtype in (*WHOLE, *FLOATS) else torch.arange(7),
    "eye": lambda x: torch.eye(3, 4, dtype=x.dtype),
    "flip": all_of("flip", (0, 1)),
    "full": lambda x: torch.full((3,), 1, dtype=x.dtype),
    "full_like": all_of("full_like", 1),
    "linspace": lambda x: torch.linspace(0, 1, 5),
    "masked_fill": lambda x: x.masked_fill(x == x, 1),
    "new_full": lambda x: x.new_full((2,), 1),
    "new_ones": lambda x: x.new_ones(2),
    "new_tensor": lambda x: x.new_tensor([1, 0]),
    "new_zeros": lambda x: x.new_zeros(2),
    "ones": lambda x: torch.ones(3, dtype=x.dtype),
    "repeat": lambda x: x.repeat(2, 2),
    "roll": all_of("roll", 1, 0),
    "scalar_tensor": lambda x: torch.scalar_tensor(1, dtype=x.dtype),
    "tensor": lambda x: torch.tensor([1, 0], dtype=x.dtype),
    "tile": all_of("tile", (2, 2)),
    "to": lambda x: [x.to(d) for d in USUAL],
    "tril_indices": lambda x: torch.tril_indices(3, 3),
    "triu_indices": lambda x: torch.triu_indices(3, 3),
    "type_as": lambda x: x.type_as(torch.ones(1)),
    "where": lambda x: (torch.where(x == x, x, x.t()), torch.where(x == x)),
    "zeros": lambda x: torch.zeros(3, dtype=x.dtype),
}
NUMBERS: dict[str, Callable[[Tensor], Any]] = {
    **{name: all_of(name) for name in ("abs", "argsort", "diff", "neg", "relu", "sign", "square")},
    **{name: reduced(name) for name in ("argmax", "argmin", "max", "min")},
    **{name: pairs(name) for name in ("isin", "maximum", "minimum", "rsub", "sub")},
    "clamp": all_of("clamp", 0, 3),
    "clamp_max": all_of("clamp_max", 3),
    "clamp_min": all_of("clamp_min", 0),
    "cumprod": all_of("cumprod", 1),
    "topk": all_of("topk", 2),
}
BOOLEANS: dict[str, Callable[[Tensor], Any]] = {
    **{name: all_of(name) for name in ("all", "any", "count_nonzero", "isfinite", "isinf", "isnan", "nonzero")},
    **{name: all_of(name) for name in ("logical_not", "prod", "sort", "sum")},
    **{name: pairs(name) for name in ("add", "eq", "ge", "gt", "le", "lt", "mul", "ne")},
    **{name: pairs(name) for name in ("logical_and", "logical_or", "logical_xor")},
    "amax": all_of("amax", 1),
    "amin": all_of("amin", 1),
    "cumsum": all_of("cumsum", 1),
}
BITS: dict[str, Callable[[Tensor], Any]] = {
    **{name: pairs(name) for name in ("and_", "bitwise_and", "bitwise_or", "bitwise_xor", "or_", "xor")},
    "bitwise_not": all_of("bitwise_not"),
    "invert": operator.invert,
}


def test_each_call_that_is_left_out_is_tried() -> None:
    tried = {functions.USUAL: MOVES, functions.NUMBERS: NUMBERS, functions.TRUTHS: {*BOOLEANS, *BITS}}
    for holds, those in tried.items():
        assert set(those) == functions.names(lambda function, holds=holds: function.holds == holds)


@pytest.mark.parametrize(
    ("calls", "dtypes"), [(MOVES, USUAL), (NUMBERS, (*WHOLE, *FLOATS)), (BOOLEANS, (*TRUTHS, *FLOATS)), (BITS, TRUTHS)]
)
def test_no_values_make_such_a_call_raise(calls: dict[str, Callable[[Tensor], Any]], dtypes: Any) -> None:
    for (name, call), dtype in itertools.product(calls.items(), dtypes):
        try:
            call(values(dtype))
        except Exception as error:
            raise AssertionError(f"{name} of {dtype}: {error}") from error


def unused(x: Tensor, m: Tensor) -> Tensor:
    """As models compute masks and positions that the attention at hand does without."""
    places = torch.arange(x.shape[1])[None].expand(x.shape[0], -1)
    masked = (m.cumsum(1) - 1).masked_fill(m == 0, 1)
    mask = (places[:, :, None] <= places[:, None]) & m.bool()[:, None]
    torch.where(mask, 0.0, torch.finfo(x.dtype).min)
    masked.flip(0).sum()
    x.view(torch.complex64).real.mean()
    return x.sin() + 1


def looked_up(x: Tensor, m: Tensor) -> Tensor:
    x.gather(0, m)
    return x.sin() + 1


def divided(x: Tensor, m: Tensor) -> Tensor:
    m // m
    return x.sin() + 1


@pytest.mark.parametrize("dynamic", [False, True])
def test_graphs_with_unused_calls_that_cannot_raise_are_compiled(dynamic: bool, recwarn: Any) -> None:
    torch.compiler.reset()
    compiled = lamina.compile(unused, dynamic=dynamic, options={"strict": True})
    x, m = torch.randn(2, 6), torch.ones(2, 6, dtype=torch.long)
    torch.testing.assert_close(compiled(x, m), unused(x, m))
    assert not compiled.record.decisions("eager")
    assert not [w for w in recwarn if issubclass(w.category, lamina.LaminaWarning)]


@pytest.mark.by_dynamo("counts Dynamo's graphs, or asks what it leaves to eager", "divided-0", "looked_up-7")
@pytest.mark.parametrize(("program", "wrong"), [(looked_up, 7), (divided, 0)])
def test_unused_calls_that_may_raise_keep_the_graph_and_are_told(program: Any, wrong: int) -> None:
    torch.compiler.reset()
    compiled = lamina.compile(program, options={"strict": True})
    with pytest.warns(lamina.LaminaWarning, match=r"test_dead_calls.py:\d+ .* may raise though nothing uses"):
        compiled(torch.ones(3), torch.ones(3, dtype=torch.long))
    with pytest.raises((IndexError, RuntimeError)) as caught:
        compiled(torch.ones(3), torch.full((3,), wrong))
    with pytest.raises(caught.type):
        program(torch.ones(3), torch.full((3,), wrong))


def test_a_draw_counts_with_eagers_numbers() -> None:
    def program(x: Tensor) -> Tensor:
        torch.rand_like(x)
        return x.sin() + 1

    for numerics, told in (("fast", 0), ("eager", 1)):
        torch.compiler.reset()
        compiled = lamina.compile(program, options={"numerics": numerics})
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            compiled(torch.ones(3))
        assert len(compiled.record.decisions("eager")) == told
        assert ["draws random numbers that nothing uses" in str(w.message) for w in said] == [True] * told


@pytest.mark.parametrize("name", ["__eq__", "__ne__", "__lt__", "__hash__"])
def test_a_method_that_the_namespace_of_operators_has_itself_is_none_of_them(name: str) -> None:
    graph = Graph()
    x = graph.placeholder("x")
    assert not dead_calls.draws(graph.call_method(name, (x, x)))
    assert dead_calls.draws(graph.call_method("bernoulli", (x,)))
