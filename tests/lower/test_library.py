"""Library calls: windows as arguments, memory of their own for results, refusals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import lamina
from lamina.ir.index import as_expr
from lamina.ir.loops import Buffer, LibraryCall, Nest
from lamina.ir.loops_interp import run_program
from lamina.lower.rules import CannotLower
from lamina.lower.to_loops import lower
from lamina.lower.values import linear_view, whole
from lamina.ops import OPERATIONS

from .harness import outcome
from .torch_private import traced

X = torch.randn(4, 6)


def _calls(fn: Callable[..., Any], *args: torch.Tensor) -> list[LibraryCall]:
    found = outcome(fn, list(args))
    assert not found.complaints
    return [s for s in lower(traced(fn, list(args)), "test").steps if isinstance(s, LibraryCall)]


def test_a_view_that_kernels_cannot_express_is_copied() -> None:
    calls = _calls(lambda x: torch.complex(x, x).t().conj().resolve_conj().real + 1, X)
    assert "aten._conj_physical.default" in {c.op for c in calls}
    assert "aten._conj.default" not in {c.op for c in calls}
    assert [c.op for c in _calls(lambda x: x.view(torch.int32) + 1, X)] == ["aten.view_copy.dtype"]


def test_pairs_and_complex_numbers_are_views_of_each_other() -> None:
    z = torch.randn(4, 6, dtype=torch.complex64)
    (call,) = _calls(lambda z: torch.view_as_real(z) * 2, z)
    assert call.op == "aten.view_as_real.default"
    calls = _calls(lambda x: torch.view_as_real(torch.view_as_complex((x * 2).view(4, 3, 2)).exp()) + 1, X)
    ops = [c.op for c in calls]
    assert ops == ["aten.view_as_complex.default", "aten.exp.default", "aten.view_as_real.default"]


def test_pairs_are_copied_where_they_are_returned_or_something_is_written_to() -> None:
    z = torch.randn(4, 6, dtype=torch.complex64)
    (call,) = _calls(lambda z: (pairs := torch.view_as_real(z * 1)[:2], pairs * 2), z)[1:]
    assert call.op == "aten.view_as_real_copy.default"

    def writes(z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_real(z)
        torch.ops.aten.copy_.default(x, x * 2)
        return pairs * 2

    program = lower(traced(writes, [z, X]), "test")
    assert "aten.view_as_real_copy.default" in {s.op for s in program.steps if isinstance(s, LibraryCall)}


def test_memory_that_pairs_are_a_view_of_is_not_given_away() -> None:
    """The complex numbers are in the arena: what is stored after their last use by name does not overwrite them."""

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_real(torch.view_as_complex(x.tanh().view(-1, 512, 2)))
        later = torch.mm(y, y).sin()
        return pairs.sum(1).mm(later[:2]) + pairs[:, 0].mm(later[2:4])

    x, y = torch.randn(64, 1024), torch.randn(64, 64)
    torch.testing.assert_close(lamina.compile(f, options={"strict": True})(x, y), f(x, y), rtol=1e-4, atol=1e-3)


def test_results_that_nobody_reads_are_not_kept() -> None:
    x = torch.randn(4, 60)
    (call,) = _calls(lambda x: x.sort(1)[1], x)
    assert call.outs[0] is None
    assert call.outs[1] is not None
    (call,) = _calls(lambda x: x.topk(3)[0], x)
    assert call.outs[1] is None


def test_a_list_of_one_result_is_marked() -> None:
    (call,) = [c for c in _calls(lambda x: torch.complex(x, x).split(9)[0].abs(), X) if c.op != "aten.complex.default"]
    assert call.op == "aten.abs.default"
    assert not call.list_result


def test_a_check_without_results_is_kept() -> None:
    program = lower(traced(torch.linalg.inv, [torch.eye(3)]), "test")
    check = next(s for s in program.steps if isinstance(s, LibraryCall) and "check" in s.op)
    assert check.outs == ()
    with pytest.raises(RuntimeError, match="singular"):
        run_program(program, [torch.zeros(3, 3)])


def test_attention_and_convolution_take_windows() -> None:
    q = torch.randn(2, 5, 3, 8).transpose(1, 2)
    assert all(OPERATIONS[c.op].reason for c in _calls(lambda q: F.scaled_dot_product_attention(q, q, q), q))
    image, kernel = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last), torch.randn(4, 3, 3, 3)
    program = lower(traced(lambda x, w: F.conv2d(x, w, padding=1), [image, kernel]), "test")
    assert [type(s) for s in program.steps] == [LibraryCall]


@pytest.mark.parametrize("groups", [1, 2])
def test_biases_of_convolutions_on_a_gpu_are_nests(groups: int) -> None:
    def step(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, g: torch.Tensor) -> Any:
        y = F.conv2d(x, w, b, padding=1, groups=groups)
        return (y, *torch.autograd.grad(y, (x, w, b), g))

    torch.manual_seed(0)
    shapes = ((2, 4, 5, 5), (6, 4 // groups, 3, 3), (6,), (2, 6, 5, 5))
    given = [torch.randn(s, requires_grad=k < 3) for k, s in enumerate(shapes)]
    elsewhere = [t.detach().to("meta").requires_grad_(t.requires_grad) for t in given]
    program = lower(traced(step, elsewhere), "test")
    here = replace(program, buffers=tuple(replace(b, device="cpu") for b in program.buffers))
    results = run_program(here, [t.detach() for t in given])
    for got, want in zip(results, step(*given), strict=True):
        torch.testing.assert_close(got, want.detach(), rtol=1e-4, atol=1e-4)
    calls = [s for s in program.steps if isinstance(s, LibraryCall)]
    assert [c.op for c in calls] == ["aten.convolution.default", "aten.convolution_backward.default"]
    assert calls[0].args[2] is None
    assert calls[1].args[-1] == (True, True, False)
    assert sum(isinstance(s, Nest) for s in program.steps) == 2


PRODUCTS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "one_row": (lambda x, w: x @ w.t(), ((1, 24), (10, 24))),
    "one_column": (lambda x, w: x @ w, ((9, 24), (24, 1))),
    "bias": (lambda x, w, c: torch.addmm(c, x, w.t()), ((1, 24), (10, 24), (10,))),
    "added_row": (lambda x, w, c: torch.addmm(c, x, w), ((7, 24), (24, 1), (7, 1))),
    "vector": (lambda w, x: w @ x, ((10, 24), (24,))),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_with_a_vector_on_a_gpu_are_nests(name: str, dtype: torch.dtype) -> None:
    function, shapes = PRODUCTS[name]
    torch.manual_seed(0)
    given = [torch.randn(s).to(dtype) for s in shapes]
    program = lower(traced(lambda *g: (function(*g),), [t.to("meta") for t in given]), "test")
    assert [type(s) for s in program.steps] == [Nest]
    here = replace(program, buffers=tuple(replace(b, device="cpu") for b in program.buffers))
    (got,) = run_program(here, given)
    exact = function(*(t.double() for t in given))
    eager = function(*given)
    assert got.stride() == eager.stride()
    assert (got - exact).abs().max() <= 2 * (eager - exact).abs().max() + 1e-6
    exactly = lower(traced(lambda *g: (function(*g),), [t.to("meta") for t in given]), "test", "eager")
    assert [type(s) for s in exactly.steps] == [LibraryCall]


def test_complex_tensors_go_through_views_without_kernels() -> None:
    calls = _calls(lambda x: torch.complex(x, x).t()[1:, ::2].reshape(-1).abs(), X)
    assert [c.op for c in calls] == ["aten.complex.default", "aten.clone.default", "aten.abs.default"]


def test_a_lazily_conjugated_or_negated_input_is_copied() -> None:
    z = torch.complex(X, X + 1).t().conj()
    for given in (z, z.imag):
        first = _calls(lambda y: y * 2, given)[0]
        assert (first.op, first.origin) == ("aten.clone.default", ("arg0_1",))


def test_sizes_that_only_data_tell_are_refused() -> None:
    with pytest.raises(CannotLower, match="known only at run time"):
        lower(traced(lambda x: x[x > 0] * 2, [X], True), "test")


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("shape", [(1, 8, 5, 6), (1, 8, 5, 1), (2, 8, 1, 6), (1, 8, 1, 6), (2, 8, 5, 6)])
def test_libraries_see_how_an_image_with_sizes_of_one_lies(shape: tuple[int, ...], order: torch.memory_format) -> None:
    image = torch.empty(shape, memory_format=order)
    strides = tuple(as_expr(s) for s in image.stride())
    buffer = Buffer("x", "float32", tuple(as_expr(n) for n in shape), strides, "cpu", "input")
    view = linear_view(whole(buffer))
    assert view is not None
    seen = torch.empty_strided(shape, [s.const for s in view.strides])
    assert seen.is_contiguous(memory_format=order)
    assert seen.stride() == image.stride()


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="this torch has no MKL")
def test_erfc_of_many_doubles_is_a_call() -> None:
    assert [c.op for c in _calls(lambda x: torch.erfc(x) * 2, torch.randn(5000).double())] == ["aten.erfc.default"]
    assert not _calls(lambda x: torch.erfc(x) * 2, torch.randn(500).double())
    assert not _calls(lambda x: torch.erfc(x) * 2, torch.randn(5000))
