"""Gathers, scatters and gradients of views: torch's samples, all forms of indexing, and indices out of range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from lamina.ir.loops import Nest, Store
from lamina.ir.loops_interp import run_program
from lamina.lower.to_loops import lower

from .harness import check, outcome
from .samples import DTYPES, check_samples
from .torch_private import traced

aten = torch.ops.aten

READS = ("gather", "index_select", "take", "take_along_dim", "nn.functional.embedding", "tril", "triu", "roll", "flip")
READS += ("rot90", "repeat", "tile", "diag_embed", "__getitem__", "fliplr")
WRITES = ("index_put", "scatter", "scatter_add", "scatter_reduce.sum", "index_add", "index_copy", "index_fill", "put")
WRITES += ("select_scatter", "slice_scatter", "diagonal_scatter", "as_strided_scatter")


@pytest.mark.sampled(one_in=20)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", [*READS, *WRITES])
def test_samples(name: str, dtype: torch.dtype) -> None:
    check_samples(name, dtype)


X = torch.randn(4, 6, 8)
PLACES = torch.tensor([2, -1, 0, 3, -4])

FORMS: dict[str, Callable[..., Any]] = {
    "first": lambda x, i: x[i],
    "middle": lambda x, i: x[:, i],
    "apart": lambda x, i: x[i, :, i],
    "together": lambda x, i: x[:, i, i],
    "all": lambda x, i: x[i, i, i],
    "broadcast": lambda x, i: x[:, i[:, None], i],
    "apart_broadcast": lambda x, i: x[i[:, None], :, i],
    "matrix": lambda x, i: x[i.view(1, 5).expand(2, 5)],
    "single": lambda x, i: torch.ops.aten.index(x, [None, i[0]]),
    "int32": lambda x, i: x[i.int()],
}


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_indexing(name: str, symbolic: bool) -> None:
    check(FORMS[name], X, PLACES, symbolic=symbolic)


@pytest.mark.parametrize("symbolic", [False, True])
def test_writes_through_indices(symbolic: bool) -> None:
    check(
        lambda x, i, v: aten.index_put(x, [None, i], v),
        X,
        torch.tensor([4, -6, 1]),
        torch.randn(4, 3, 8).to(X),
        symbolic=symbolic,
    )
    check(lambda x, i: aten.index_put(x, [i, None, i], x[:1, :1, 0], True), X, PLACES, symbolic=symbolic)
    check(
        lambda x, i, v: (x.scatter_add(1, i, v), x.scatter(1, i, 2.0)),
        X,
        torch.randint(0, 6, (4, 3, 8)),
        torch.randn(4, 5, 8),
        symbolic=symbolic,
    )


@pytest.mark.parametrize("symbolic", [False, True])
def test_gradients_of_views(symbolic: bool) -> None:
    check(lambda x: aten.slice_backward(x, [4, 20, 8], 1, 3, 9, 1), X, symbolic=symbolic)
    check(lambda x: aten.slice_backward(x, [4, 6, 30], 2, -24, 2**63 - 1, 3), X, symbolic=False)
    check(lambda x: aten.select_backward(x, [4, 6, 8, 3], 3, -1), X, symbolic=symbolic)
    check(lambda x: aten.diagonal_backward(x, [4, 6, 9, 9], 1, 2, 3), X, symbolic=symbolic)
    check(lambda x: aten.unfold_backward(x, [4, 13], 1, 8, 1), X)
    check(lambda x: aten.unfold_backward(x, [4, 18], 1, 8, 2), X)
    check(lambda x: aten.unfold_backward(x, [4, 28], 1, 8, 4), X)
    check(lambda x: aten.unfold_backward(x, [4, 63], 1, 8, 11), X)
    check(lambda x: aten.unfold_backward(x, [4, 10, 5], 1, 8, 1), torch.randn(4, 3, 5, 8))
    check(lambda x: aten.unfold_backward(x, [4, 32], 1, 30, 1), torch.randn(4, 3, 30))


@pytest.mark.parametrize("padding", [-1, 0, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_embedding_and_its_gradient(padding: int, dtype: torch.dtype) -> None:
    weight, index = torch.randn(10, 5, dtype=dtype), torch.tensor([[0, 2, 2, 9], [9, 9, 1, 2]])
    check(lambda w, i: F.embedding(i, w), weight, index)
    check(lambda g, i: aten.embedding_dense_backward(g, i, 10, padding, False), torch.randn(2, 4, 5).to(dtype), index)


@pytest.mark.parametrize("rows", [1, 2])
def test_the_gradient_of_few_rows_is_a_sum_for_each(rows: int) -> None:
    """A row that nothing refers to is zero; an index beyond counts nowhere, as with more rows."""
    index = torch.randint(0, max(rows - 1, 1), (3, 40))
    gradient = torch.randn(3, 40, 5)

    def function(g: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return aten.embedding_dense_backward(g, i, rows, -1, False)

    check(function, gradient, index)
    program = lower(traced(function, [gradient, index]), "test")
    stores = [e for step in program.steps if isinstance(step, Nest) for e in step.body if isinstance(e, Store)]
    assert [e.mode for e in stores] == ["set"] * rows


def test_a_gradient_scaled_by_frequency_is_left_to_the_library() -> None:
    found = outcome(
        lambda g, i: aten.embedding_dense_backward(g, i, 4, -1, True), [torch.randn(3, 2), torch.tensor([1, 1, 2])]
    )
    assert not found.complaints
    assert [reason for _, reason in found.library] == ["gradients divided by the frequency of each index"]


RAISES: dict[str, Callable[..., Any]] = {
    "index": lambda x, i: x[i],
    "index_put": lambda x, i: aten.index_put(x, [i], x[:1]),
    "index_select": lambda x, i: x.index_select(0, i),
    "index_select_1": lambda x, i: x.index_select(1, i * 10),
    "index_select_2": lambda x, i: x[None].index_select(2, i * 10),
    "index_add": lambda x, i: x.index_add(0, i, x[:1]),
    "index_add_2": lambda x, i: x.index_add(1, i * 10, x[:, :1]),
    "index_add_scaled": lambda x, i: x.index_add(0, i, x[:1], alpha=2),
    "index_add_middle": lambda x, i: x[None].index_add(1, i, x[None, :1]),
    "index_add_vector": lambda x, i: x[0].index_add(0, i * 10, x[0, :1]),
    "index_copy": lambda x, i: x.index_copy(0, i, x[:1]),
    "index_fill": lambda x, i: x.index_fill(0, i, 1.0),
    "embedding": lambda x, i: F.embedding(i, x),
    "take": lambda x, i: x.take(i * 100),
    "put": lambda x, i: x.put(i * 100, x[0, :1]),
    "gather": lambda x, i: x.gather(0, i[None]),
    "scatter": lambda x, i: x.scatter(0, i[None], 1.0),
    "scatter_add": lambda x, i: x.scatter_add(0, i[None], x[:1, :1]),
    "scatter_reduce": lambda x, i: x.scatter_reduce(0, i[None], x[:1, :1], "sum"),
}
WRAPS = ("index", "index_put", "index_fill")


@pytest.mark.parametrize("wrong", [-1, -5, 4])
@pytest.mark.parametrize("name", RAISES)
def test_indices_out_of_range_raise_as_in_eager(name: str, wrong: int) -> None:
    x, index = torch.randn(4, 6), torch.tensor([wrong])
    program = lower(traced(RAISES[name], [x, index]), "test")
    if wrong == -1 and name in WRAPS:
        check(RAISES[name], x, index)
        return
    with pytest.raises((IndexError, RuntimeError), match="out of") as raised:
        RAISES[name](x, index)
    with pytest.raises(raised.type, match=str(raised.value)[:5]) as ours:
        run_program(program, [x, index])
    assert ours.type is raised.type


def test_masks_and_other_reductions_are_left_to_the_library() -> None:
    found = outcome(lambda x, i: x.scatter_reduce(0, i, x, "amax"), [X, torch.randint(0, 4, (4, 6, 8))])
    assert not found.complaints
    assert found.library == (("aten.scatter_reduce.two", "colliding indices combined by amax"),)


def test_nothing_to_index() -> None:
    empty = torch.zeros(0, dtype=torch.int64)
    for fn in (lambda x, i: x[i], lambda x, i: x.index_select(1, i), lambda x, i: F.embedding(i, x[0])):
        found = outcome(fn, [X, empty])
        assert not found.complaints
        assert not found.library


@pytest.mark.parametrize(("shape", "nests"), [((2, 7, 6, 16), 1), ((2, 7, 6, 15), 2), ((2, 7, 3, 4), 4)])
def test_rolled_rows_are_read_where_they_were(shape: tuple[int, ...], nests: int) -> None:
    """A row takes one remainder; within short rows each element would, so that these are moved in pieces."""
    found = outcome(lambda x: aten.roll(x, [-3, 2], [1, 2]), [torch.randn(shape)])
    assert not found.complaints
    assert found.nests == nests


@pytest.mark.parametrize(("length", "nests"), [(2, 2), (3, 1), (16, 1), (17, 2)])
def test_a_short_last_dimension_is_turned_in_vectors(length: int, nests: int) -> None:
    """Its places repeat after each row, so that rows are joined."""
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        x = (torch.rand(37, length) * 100).to(dtype)
        found = outcome(lambda x: aten.roll(x, [1], [1]), [x])
        assert not found.complaints
        assert found.nests == nests
