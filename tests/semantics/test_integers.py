"""Integers that change between calls, of either sign: as places, steps, shifts and numbers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lamina
from benchmarks.compilers import CompileFunction
from tests.semantics.program import cotangent

Program = Callable[[Tensor, Any], Any]


def _written(write: Callable[[Tensor, int], Any]) -> Program:
    def program(x: Tensor, k: int) -> Tensor:
        copy = x * 1
        write(copy, k)
        return copy

    return program


def _set(x: Tensor, where: Any, value: Any) -> None:
    x[where] = value


PLACES: dict[str, tuple[Program, tuple[Any, ...]]] = {
    "select": (lambda x, k: x[k] + 0, (-1, -2, 3)),
    "select_far": (lambda x, k: x[k // 2 + 5] * 2, (1, -1, -3, -5)),
    "select_remainder": (lambda x, k: x[k % 10] + 0, (1, -1, -2)),
    "select_negated": (lambda x, k: x[-k] * 2, (-1, -3, -5)),
    "select_of_sums": (lambda x, k: x.cumsum(0)[k], (3, -2, -3)),
    "slice_from": (lambda x, k: x[k:] + 0, (-1, -2, -3, 4, 11)),
    "slice_to": (lambda x, k: x[:k] + 0, (-1, -2, -11, 3)),
    "slice_of_slice": (lambda x, k: x[5:][k:] + 0, (1, 2, -3)),
    "slice_to_remainder": (lambda x, k: x[: k % 7] * 2, (-1, -3, -5)),
    "slice_object": (lambda x, s: x[s] * 2, (slice(1, 5), slice(2, 6), slice(-3, None))),
    "step": (lambda x, k: x[::k] + 0, (2, 3, 4)),
    "step_between": (lambda x, k: x[1:8:k] * 2, (2, 3, 4)),
    "narrow": (lambda x, k: x.narrow(0, k, 1) + 0, (-1, -2, 3)),
    "set_place": (_written(lambda x, k: _set(x, k, 100.0)), (-2, -3, 4)),
    "set_slice": (_written(lambda x, k: _set(x, slice(k, None), 0.0)), (-2, -3, 4)),
    "set_steps": (_written(lambda x, k: _set(x, slice(None, None, k), 0.0)), (2, 3, 4)),
    "add_to_slice": (_written(lambda x, k: x[k:].add_(k)), (-2, -3, 4)),
    "select_scatter": (lambda x, k: torch.select_scatter(x, x[0] + 7, 0, k) * 1, (-1, -2, 3)),
    "slice_scatter": (lambda x, k: torch.slice_scatter(x, x[:2], 0, k, k + 2) * 1, (-5, -4, 6)),
    "roll": (lambda x, k: x.roll(k, 0) * 2, (-2, -3, 4, 25)),
    "pad": (lambda x, k: F.pad(x, (k, 2)) + 1, (-1, -2, 3)),
    "positions": (lambda x, k: x[(torch.arange(10) + k) % 10] * 2, (-1, -3, 5)),
    "list": (lambda x, k: x[[k, -1]] * 2, (-1, -2, 3)),
}
"""Programs of a vector of ten elements, with the integers they are called with."""

NUMBERS: dict[str, tuple[Program, tuple[int, ...]]] = {
    "quotient": (lambda x, k: x + k // 2, (-1, -3, 5)),
    "remainder": (lambda x, k: x + k % 3, (-1, -2, 5)),
    "together": (lambda x, k: x * k + k // 2 - k % 3, (1, -2, -5)),
    "by_negative": (lambda x, k: x + k // -3 + k % -3, (2, -2, -5)),
    "by_size": (lambda x, k: x + k // x.shape[0] + k % x.shape[0], (2, -2, -25)),
    "comparison": (lambda x, k: x > k + 5, (-1, -2, -7)),
    "masked": (lambda x, k: torch.where(torch.arange(10) < 10 + k, x, -x), (-1, -2, -7)),
    "range": (lambda x, k: torch.arange(k, 3) + x[0], (-1, -2, -4)),
    "large": (lambda x, k: x.long() + k // 3, (-(2**40), 2**40 + 1, 2**62)),
}


def _check(compiled: Any, program: Program, k: Any, grad: bool = False) -> None:
    x, y = (torch.arange(10.0).requires_grad_(grad) for _ in range(2))
    mine, theirs = compiled(x, k), program(y, k)
    assert mine.stride() == theirs.stride()
    torch.testing.assert_close(mine, theirs)
    if grad and theirs.requires_grad:
        mine.backward(cotangent(mine, 0))
        theirs.backward(cotangent(theirs, 0))
        torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.sampled(one_in=10)
@pytest.mark.parametrize("name", list(PLACES))
def test_places(compile: CompileFunction, name: str) -> None:
    program, integers = PLACES[name]
    compiled = compile(program)
    for k in integers:
        _check(compiled, program, k)


@pytest.mark.sampled(one_in=10)
@pytest.mark.parametrize("name", list(PLACES))
def test_gradients_of_places(compile: CompileFunction, name: str) -> None:
    program, integers = PLACES[name]
    compiled = compile(program, dynamic=True)
    for k in integers:
        _check(compiled, program, k, grad=True)


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize(("name", "numerics"), [*((name, "fast") for name in NUMBERS), ("together", "eager")])
def test_numbers(compile: CompileFunction, name: str, numerics: str) -> None:
    program, integers = NUMBERS[name]
    compiled = compile(program, options={"numerics": numerics})
    for k in integers:
        _check(compiled, program, k)


VIEWS: dict[str, tuple[Program, tuple[int, ...]]] = {
    "select": (lambda x, k: x[k], (-1, -2, 3)),
    "step": (lambda x, k: x[::k], (2, 3, 4)),
    "step_between": (lambda x, k: x[1:8:k], (2, 3, 4)),
    "rows": (lambda x, k: x.view(5, 2)[::k, 1:], (2, 3)),
    "stride": (lambda x, k: x.as_strided((3,), (k,)), (2, 3, 1)),
    "stride_and_offset": (lambda x, k: x.as_strided((2,), (k,), k), (2, 3, 1)),
    "tail": (lambda x, k: x[10 - k :], (1, 2, 3)),
}


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize(("dynamic", "grad"), [(True, False), (None, True)], ids=["plain", "grad"])
@pytest.mark.parametrize("name", list(VIEWS))
def test_views_of_the_input(name: str, dynamic: bool | None, grad: bool) -> None:
    """They are views, with eager's strides and offset, and gradients go where they came from."""
    program, integers = VIEWS[name]
    torch.compiler.reset()
    compiled = lamina.compile(program, dynamic=dynamic)
    for k in integers:
        x, y = (torch.arange(10.0).requires_grad_(grad) for _ in range(2))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", lamina.LaminaWarning)  # windows by run-time strides run as ATen
            mine, theirs = compiled(x, k), program(y, k)
        assert mine.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        assert (mine.stride(), mine.storage_offset()) == (theirs.stride(), theirs.storage_offset())
        torch.testing.assert_close(mine, theirs)
        if grad:
            mine.backward(cotangent(mine, 0))
            theirs.backward(cotangent(theirs, 0))
            torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.parametrize(
    "window", [lambda x, k: x.as_strided((2, 3), (0, k)), lambda x, k: x.as_strided((2, 2), (1, k), k)]
)
def test_windows_onto_gaps_by_a_number_that_a_guard_fixes(window: Program) -> None:
    """One is compiled as a constant, but the view is made again from what the graph gives, as of any other number."""
    torch.compiler.reset()
    compiled = lamina.compile(window, options={"strict": True})
    for k in (2, 1):
        x, y = (torch.arange(64.0).view(4, 16)[:, ::2] for _ in range(2))
        mine, theirs = compiled(x, k), window(y, k)
        assert mine.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        assert (mine.stride(), mine.storage_offset()) == (theirs.stride(), theirs.storage_offset())
        assert torch.equal(mine, theirs)


def _stacked(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    part = x[: abs(k)] * 2
    turned = part.t() + 1
    return part, torch.stack([torch.cat([turned, turned]), torch.cat([turned, turned])])


def _of_absolute_values(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    return x[: abs(k) // 2 + 2] + 1, x.narrow(0, 0, min(abs(k), x.shape[0] - 1)).softmax(-1)


def _repeated(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    return x.new_zeros(abs(k) + 1, 3) + x[0, :3], x.repeat(max(abs(k), 2), 1) * 2


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("program", [_stacked, _of_absolute_values, _repeated])
def test_absolute_values_as_sizes(program: Any, grad: bool) -> None:
    torch.compiler.reset()
    compiled: Any = lamina.compile(program, dynamic=True, options={"strict": True})
    for k, rows in ((-3, 4), (2, 7), (5, 6), (-2, 5)):
        x, y = (torch.arange(4.0 * rows).reshape(rows, 4).requires_grad_(grad) for _ in range(2))
        mine, theirs = compiled(x * 1, k), program(y * 1, k)
        torch.testing.assert_close(mine, theirs)
        if grad:
            torch.autograd.backward(mine, [cotangent(t, i) for i, t in enumerate(mine)])
            torch.autograd.backward(theirs, [cotangent(t, i) for i, t in enumerate(theirs)])
            torch.testing.assert_close(x.grad, y.grad)


def test_a_view_beside_its_base(compile: CompileFunction) -> None:
    def program(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        y = x * 2
        return y, y[::k]

    compiled = compile(program, dynamic=True)
    for k in (2, 3):
        base, view = compiled(torch.arange(10.0, requires_grad=True), k)
        assert view.stride() == (k,)
        assert view.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()


NARROW: dict[str, Program] = {
    "full": lambda x, k: torch.full((2,), k, dtype=torch.int32) + 1,
    "clamp": lambda x, k: x.clamp(k),
    "where": lambda x, k: torch.where(x > 2, x, k),
    "masked_fill": lambda x, k: x.masked_fill(x > 2, k),
    "set_place": _written(lambda x, k: _set(x, 2, k)),
}


@pytest.mark.parametrize("name", list(NARROW))
def test_integers_too_large_for_the_type(compile: CompileFunction, name: str) -> None:
    x, program = torch.arange(10, dtype=torch.int32), NARROW[name]
    compiled = compile(program)
    for k in (1, -2):
        assert torch.equal(compiled(x, k), program(x, k))
    with pytest.raises(RuntimeError, match="without overflow"):
        compiled(x, 2**40)


@pytest.mark.parametrize("k", [10, -11])
def test_places_out_of_range(compile: CompileFunction, k: int) -> None:
    compiled = compile(lambda x, k: x[k] + 0)
    x = torch.arange(10.0)
    compiled(x, 1), compiled(x, -2)
    with pytest.raises(IndexError):
        compiled(x, k)


def test_a_divisor_that_becomes_zero(compile: CompileFunction) -> None:
    compiled = compile(lambda x, k: x + k // k, dynamic=True)
    assert compiled(torch.zeros(2), 3).tolist() == [1.0, 1.0]
    with pytest.raises(ZeroDivisionError):
        compiled(torch.zeros(2), 0)


@pytest.mark.parametrize(
    "program",
    [lambda x, k: x + (k // -5) // -3, lambda x, k: x[int(k / 2) % 10] + 0, lambda x, k: x + (k % 2) % 2 / 4],
    ids=["nested", "truncated", "remainders"],
)
def test_integers_that_symbols_stand_for_wrongly(program: Program) -> None:
    torch.compiler.reset()
    compiled = lamina.compile(program, dynamic=True)
    for k in (7, 4, -2, -3):
        _check(compiled, program, k)


def test_integers_as_exponents(compile: CompileFunction) -> None:
    """Torch's formula for the gradient compares the exponent with numbers."""
    compiled = compile(lambda x, k: (x + 1) ** k)
    for k in (1, 2, 3, 0, -1):
        _check(compiled, lambda x, k: (x + 1) ** k, k, grad=True)


def test_an_integer_tensor_is_assigned_to_a_place(compile: CompileFunction) -> None:
    def program(x: Tensor, k: int, p: Tensor) -> Tensor:
        y = x * 1
        y[k] = p
        return y

    compiled = compile(program)
    p = torch.nn.Parameter(torch.tensor(7), requires_grad=False)
    for k in (2, -3, 4):
        assert torch.equal(compiled(torch.arange(10), k, p), program(torch.arange(10), k, p))


SOURCES: dict[str, Callable[[Tensor], Tensor]] = {
    "slice": lambda x: torch.slice_scatter(x, torch.ones(3, 6), 0, 1, 3),
    "slice_of_one_column": lambda x: torch.slice_scatter(x, torch.ones(2, 1), 0, 1, 3),
    "select": lambda x: torch.select_scatter(x, torch.ones(5), 0, 1),
    "select_of_one": lambda x: torch.select_scatter(x, torch.ones(1), 0, 1),
    "diagonal": lambda x: torch.diagonal_scatter(x, torch.ones(3)),
}


@pytest.mark.parametrize("name", list(SOURCES))
def test_sources_of_another_shape_than_their_place(compile: CompileFunction, name: str) -> None:
    with pytest.raises(RuntimeError, match="expected src to have a size equal to the slice of self"):
        compile(SOURCES[name])(torch.randn(4, 6))


COLUMNS: dict[str, Callable[[Tensor], Tensor]] = {
    "column": lambda x: x.exp().sum() + x[:, 0].sum(),
    "column_of_softmax": lambda x: x.log_softmax(-1)[:, 0],
    "column_of_gather": lambda x: x.gather(1, torch.zeros_like(x).long())[:, 0],
}


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", list(COLUMNS))
def test_columns_where_both_sizes_change(compile: CompileFunction, name: str, dynamic: bool | None) -> None:
    compiled = compile(COLUMNS[name], dynamic=dynamic)
    for rows, columns in ((4, 3), (5, 4), (7, 6)):
        x = torch.randn(rows, columns)
        torch.testing.assert_close(compiled(x), COLUMNS[name](x))
