"""Arguments of every layout, size, type and structure."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.compilers import CompileFunction
from tests.semantics.program import agree, raises_alike

LAYOUTS = {
    "contiguous": lambda: torch.randn(6, 8),
    "transposed": lambda: torch.randn(8, 6).t(),
    "row_slice": lambda: torch.randn(12, 8)[::2],
    "column_slice": lambda: torch.randn(6, 16)[:, ::2],
    "offset": lambda: torch.randn(6 * 8 + 1)[1:].view(6, 8),
    "expanded_rows": lambda: torch.randn(1, 8).expand(6, 8),
    "expanded_scalar": lambda: torch.randn(()).expand(6, 8),
    "overlapping": lambda: torch.randn(13).as_strided((6, 8), (1, 1)),
    "padded_rows": lambda: torch.randn(6, 11)[:, :8],
    "permuted": lambda: torch.randn(4, 6, 2).permute(1, 2, 0).reshape(6, 8),
}


def _mixture(x: Tensor) -> tuple[Tensor, ...]:
    y = torch.sigmoid(x) * x + 1
    return y, x.sum(0), x.amax(1), x.softmax(-1), y.t() + 1, F.layer_norm(x, (8,)), x.flatten()[3:9], x.cumsum(0)


@pytest.mark.sampled(one_in=8)
@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize("grad", [False, True], ids=["plain", "grad"])
def test_layouts(compile: CompileFunction, layout: str, grad: bool) -> None:
    agree(compile, lambda: (_mixture, (LAYOUTS[layout]().requires_grad_(grad),)), floor=16)


def test_one_compiled_function_for_all_layouts(compile: CompileFunction) -> None:
    compiled = compile(lambda x: (x.sin() + x.sum(0), x.t() * 2), dynamic=False)
    torch.manual_seed(0)
    for make in LAYOUTS.values():
        x = make()
        mine, theirs = compiled(x), (x.sin() + x.sum(0), x.t() * 2)
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b)


EMPTY = {
    "pointwise": lambda x: x.exp() + 1,
    "sum": lambda x: x.sum(),
    "sum_rows": lambda x: x.sum(-1),
    "prod": lambda x: x.prod(0),
    "mean": lambda x: x.mean(),
    "any": lambda x: (x > 0).any(),
    "all": lambda x: (x > 0).all(0),
    "softmax": lambda x: x.softmax(-1),
    "cat": lambda x: torch.cat([x, torch.ones(2, *x.shape[1:])]),
    "matmul": lambda x: x @ torch.ones(x.shape[1], 3, dtype=x.dtype),
    "cumsum": lambda x: x.cumsum(0),
    "norm": lambda x: F.layer_norm(x, x.shape[1:]) if x.shape[1] else x + 0,
    "index": lambda x: x[torch.zeros(0, dtype=torch.int64)],
    "reshape": lambda x: x.reshape(-1, 1) * 2,
}


@pytest.mark.sampled(one_in=12)
@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)], ids=str)
@pytest.mark.parametrize("program", list(EMPTY.values()), ids=list(EMPTY))
def test_zero_sized(compile: CompileFunction, program: Any, shape: tuple[int, int]) -> None:
    if program is EMPTY["index"] and shape[0] == 0:
        pytest.skip("covered by the shape with rows")
    agree(compile, lambda: (program, (torch.randn(shape, requires_grad=True),)))


def test_maximum_of_nothing_raises(compile: CompileFunction) -> None:
    # Eager raises IndexError; torch's own fake tensors, which every graph passes through, raise RuntimeError.
    raises_alike(compile, lambda: (lambda x: x.amax(0), (torch.randn(0, 3),)), accepted=RuntimeError)


SCALARS = {
    "pointwise": lambda x: (x * 2 + 1).sin(),
    "reductions": lambda x: (x.sum(), x.mean(), x.amax(), x.argmax(), x.var(correction=0)),
    "broadcast": lambda x: x + torch.arange(3),
    "reshape": lambda x: x.reshape(1, 1) * x[None],
    "softmax": lambda x: x.softmax(0),
    "cumsum": lambda x: x.cumsum(0),
    "where": lambda x: torch.where(x > 0, x, -x),
    "in_place": lambda x: (x * 1).add_(3),
}


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("program", list(SCALARS.values()), ids=list(SCALARS))
@pytest.mark.parametrize("grad", [False, True], ids=["plain", "grad"])
def test_zero_dimensional(compile: CompileFunction, program: Any, grad: bool) -> None:
    agree(compile, lambda: (program, (torch.randn((), requires_grad=grad),)))


def test_zero_dimensional_promotes_weakly(compile: CompileFunction) -> None:
    def program(x: Tensor, s: Tensor, i: Tensor) -> tuple[Tensor, ...]:
        return x * s, x + i, s * i, torch.maximum(x, s)

    scalars = (torch.tensor(1.5, dtype=torch.float64), torch.tensor(3))
    agree(compile, lambda: (program, (torch.randn(4).bfloat16(), *scalars)), exact=False)


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize("size", [1, 7, 8, 9, 31, 33, 255, 1023, 1025, 4099])
def test_sizes_around_vector_and_tile_widths(compile: CompileFunction, size: int) -> None:
    def program(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return x.exp() * y, (x * y).sum(1), x.sum(0), x + y.flip(1), x.softmax(1), x.t() + 1

    agree(compile, lambda: (program, (torch.randn(3, size, requires_grad=True), torch.randn(3, size))), floor=16)


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


def test_structures(compile: CompileFunction) -> None:
    def program(tree: dict[str, Any], pair: Pair, *, scale: float, flag: bool, nothing: None = None) -> Any:
        y = tree["a"][0] * scale + tree["a"][1]
        return {"y": y if flag else -y, "list": [y + 1, (y.sum(), 3)], "pair": Pair(y, pair.first), "none": nothing}

    def build() -> Any:
        tree = {"a": [torch.randn(3), torch.randn(3)]}
        pair = Pair(torch.randn(3), torch.randn(3))
        return (lambda t, p: program(t, p, scale=2.5, flag=True)), (tree, pair)

    agree(compile, build)


def _lazy() -> tuple[Any, tuple[Tensor, ...]]:
    z = torch.randn(5, 6, dtype=torch.complex64).t().conj()

    def program(z: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return z * 2, y.exp(), (y * y).sum(0), torch.view_as_real(z.resolve_conj()), z.conj() * z

    return program, (z, z.imag)


def test_lazily_conjugated_and_negated_arguments(compile: CompileFunction) -> None:
    agree(compile, _lazy)


def test_lazily_conjugated_and_negated_results(compile: CompileFunction) -> None:
    def program(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        z = torch.complex(x, y).exp()
        return (z + 1).conj(), (z * 2).sum(0).conj()[1:], (z * 3).conj().imag, z, z.real, z.conj().imag

    found, wanted = (f(torch.ones(3, 4), torch.ones(3, 4)) for f in (compile(program), program))
    for one, other in zip(found, wanted, strict=True):
        assert (one.is_conj(), one.is_neg()) == (other.is_conj(), other.is_neg())
        torch.testing.assert_close(one, other, check_stride=True)
    found[3].zero_()
    assert not found[4].any()
    assert not found[5].any()


def test_gradients_of_lazily_conjugated_results(compile: CompileFunction) -> None:
    agree(compile, lambda: (lambda x: torch.fft.ifft(x, dim=1), (torch.randn(3, 4, 5, requires_grad=True),)))


def test_python_numbers_may_change(compile: CompileFunction) -> None:
    compiled = compile(lambda x, k, flag: (x * k + k) if flag else x - float(k))
    x = torch.randn(5)
    for k in (2, 3, 0.5, -1, True, 7):
        for flag in (True, False):
            expected = (x * k + k) if flag else x - float(k)
            torch.testing.assert_close(compiled(x, k, flag), expected)


def test_truth_values_of_numbers_stay_truth_values(compile: CompileFunction) -> None:
    compiled = compile(lambda x, a: (x * a, a > 1, a == 1.5, a**2))
    for a in (0.5, 1.5, 2.5):
        _, *found = compiled(torch.ones(2), a)
        assert [(type(v), v) for v in found] == [(bool, a > 1), (bool, a == 1.5), (float, a**2)]


def test_integers_beyond_those_of_kernels(compile: CompileFunction) -> None:
    compiled = compile(lambda x, n: x + n % 7 + (n >> 60))
    for n in (3, 5, 2**62 + 3, 2**70 + 3, -(2**66)):
        torch.testing.assert_close(compiled(torch.ones(2), n), torch.ones(2) + n % 7 + (n >> 60))


@pytest.mark.parametrize("first", [torch.float32, torch.float64])
def test_the_default_dtype_changes(compile: CompileFunction, first: torch.dtype) -> None:
    compiled = compile(lambda x: x / 3, dynamic=False)
    other = torch.float64 if first is torch.float32 else torch.float32
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="lamina leaves")
        try:
            for dtype in (first, other, first):
                torch.set_default_dtype(dtype)
                assert compiled(torch.arange(3)).dtype is dtype
        finally:
            torch.set_default_dtype(torch.float32)


def test_results_without_tensors_and_constants(compile: CompileFunction) -> None:
    def program(x: Tensor) -> Any:
        return x.shape[0], "text", torch.arange(4), torch.full((2, 2), 7.0), None

    agree(compile, lambda: (program, (torch.randn(3),)))


def test_unused_arguments(compile: CompileFunction) -> None:
    agree(
        compile,
        lambda: (lambda x, y, z: x * 2, (torch.randn(3, requires_grad=True), torch.randn(2, requires_grad=True), None)),
    )


def test_shapes_and_types_may_change(compile: CompileFunction) -> None:
    compiled = compile(lambda x: (x * 2).sum(-1))
    for make in (
        lambda: torch.randn(3, 4),
        lambda: torch.randn(5),
        lambda: torch.randn(2, 3, 4).double(),
        lambda: torch.arange(6).view(2, 3),
        lambda: torch.randn(3, 4).bfloat16(),
        lambda: torch.randn(3, 4, requires_grad=True),
        lambda: torch.ones(3, 4, dtype=torch.bool),
    ):
        x = make()
        expected = (x * 2).sum(-1)
        result = compiled(x)
        assert result.requires_grad == expected.requires_grad
        torch.testing.assert_close(result, expected)


ERRORS = {
    "shapes": lambda x: x @ x,
    "broadcast": lambda x: x + torch.ones(7),
    "index_range": lambda x: x[9],
    "index_tensor_range": lambda x: x[torch.tensor([9])],
    "gather_range": lambda x: x.gather(0, torch.full((1, 4), 5)),
    "embedding_range": lambda x: F.embedding(torch.tensor([3]), x),
    "reshape": lambda x: x.view(5, 5),
    "division_by_zero": lambda x: torch.arange(3) // torch.zeros(3, dtype=torch.int64),
    "remainder_by_zero": lambda x: torch.arange(3) % torch.zeros(3, dtype=torch.int64),
    "dimension": lambda x: x.sum(4),
    "python": lambda x: {}["missing"],
    "raised": lambda x: _raise(ValueError("mine")),
    "negative_power": lambda x: torch.arange(3) ** -1,
    "singular": lambda x: torch.linalg.inv(torch.zeros(3, 3) * x.sum()),
    "singular_with_gradient": lambda x: torch.linalg.inv(x.t().requires_grad_() @ x * 0),
    "not_positive": lambda x: torch.linalg.cholesky(-x.t() @ x - torch.eye(4)),
    "probability": lambda x: F.binary_cross_entropy(x + 2, x.sigmoid()),
    "division_by_number_zero": lambda x: x.long() // 0,
    "index_select_range": lambda x: x.index_select(1, torch.tensor([4])),
    "index_add_range": lambda x: x.index_add(0, torch.tensor([3]), x[:1]),
    "scatter_range": lambda x: x.scatter(1, torch.tensor([[4]]), 1.0),
    "class_range": lambda x: F.cross_entropy(x, torch.tensor([0, 1, 4])),
}


def _raise(problem: Exception) -> Any:
    raise problem


TRACED = ("index_range", "dimension")
"""Errors that Dynamo finds while it traces: in torch 2.11 it raises one of its own for them, with any backend."""


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("name", list(ERRORS))
def test_errors_are_those_of_eager(compile: CompileFunction, name: str) -> None:
    program = ERRORS[name]
    accepted = None
    if name in TRACED:
        with pytest.raises((IndexError, RuntimeError)) as raised:
            torch.compile(program, backend="eager")(torch.randn(3, 4))
        accepted = raised.type
    raises_alike(compile, lambda: (program, (torch.randn(3, 4),)), accepted=accepted)
