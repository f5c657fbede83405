"""Bags of embeddings of one size as nests: values, errors, and what is left to the library."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lamina
from lamina.ir.loops import LibraryCall
from lamina.lower.to_loops import lower
from lamina.testing import judge

from .torch_private import traced

Bags = Callable[..., Tensor]


def calls(function: Bags, *given: Tensor) -> list[str]:
    """The library calls of the program."""
    return [s.op for s in lower(traced(function, list(given)), "test").steps if isinstance(s, LibraryCall)]


def operands(dtype: torch.dtype = torch.float32, kind: torch.dtype = torch.int64) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randint(0, 30, (7, 5), dtype=kind), torch.randn(30, 19).to(dtype), torch.randn(7, 5).to(dtype)


WAYS: dict[str, Bags] = {
    "sums": lambda i, w, f: F.embedding_bag(i, w, mode="sum"),
    "means": lambda i, w, f: F.embedding_bag(i, w).tanh(),
    "weighted sums": lambda i, w, f: F.embedding_bag(i, w, mode="sum", per_sample_weights=f) * 2,
    "rows one after the other": lambda i, w, f: F.embedding_bag(i.flatten(), w, torch.arange(0, 35, 7), mode="sum"),
}


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    ("name", "kind"), [*((name, torch.int64) for name in WAYS), ("sums", torch.int32), ("means", torch.int32)]
)
def test_bags_of_one_size(name: str, dtype: torch.dtype, kind: torch.dtype) -> None:
    i, w, f = operands(dtype, kind)
    assert not calls(WAYS[name], i, w, f)
    found = lamina.compile(WAYS[name], options={"strict": True})(i, w, f)
    assert not judge(found, WAYS[name](i, w, f), WAYS[name](i, w.double(), f.double()))


@pytest.mark.parametrize("wrong", [30, -1])
def test_an_index_out_of_range_is_an_error_of_eagers_type(wrong: int) -> None:
    i, w, f = operands()
    i[3, 2] = wrong
    with pytest.raises(RuntimeError):
        WAYS["sums"](i, w, f)
    with pytest.raises(RuntimeError, match=r"embedding_bag|Index 17 of input takes value"):
        lamina.compile(WAYS["sums"], options={"strict": True})(i, w, f)


OTHERS: dict[str, Bags] = {
    "ragged": lambda i, w, f: F.embedding_bag(i.flatten(), w, torch.tensor([0, 3, 3, 9])),
    "ragged sums": lambda i, w, f: F.embedding_bag(i.flatten(), w, torch.tensor([0, 3, 3, 9]), mode="sum"),
    "maxima": lambda i, w, f: F.embedding_bag(i, w, mode="max"),
    "padding": lambda i, w, f: F.embedding_bag(i, w, padding_idx=3),
    "the last offset": lambda i, w, f: F.embedding_bag(
        i.flatten(), w, torch.arange(0, 36, 7), include_last_offset=True
    ),
    "a last bag that is shorter": lambda i, w, f: F.embedding_bag(i.flatten(), w, torch.arange(0, 35, 8)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_the_librarys(name: str) -> None:
    i, w, f = operands()
    i[1, 1] = 3
    assert any("embedding_bag" in op for op in calls(OTHERS[name], i, w, f))
    found = lamina.compile(OTHERS[name])(i, w, f)
    torch.testing.assert_close(found, OTHERS[name](i, w, f))


def test_gradients_are_the_librarys() -> None:
    i, w, f = operands()
    compiled = lamina.compile(WAYS["weighted sums"], options={"strict": True})
    results = []
    for function in (compiled, WAYS["weighted sums"]):
        given = w.clone().requires_grad_(), f.clone().requires_grad_()
        y = function(i, *given)
        results.append((y, *torch.autograd.grad(y.sin().sum(), given)))
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("backend", ["interp", "cpu"])
def test_a_result_that_aten_leaves_empty_is_passed_on(backend: str) -> None:
    """Sums of bags of bfloat16 rows: fake tensors say that a bag is kept for each index, ATen keeps none."""
    i, w, _ = operands(torch.bfloat16)
    found = []
    for function in (
        lamina.compile(OTHERS["ragged sums"], backend=backend, options={"strict": True}),
        OTHERS["ragged sums"],
    ):
        given = w.clone().requires_grad_()
        y = function(i, given, w)
        found.append((y, *torch.autograd.grad(y.float().sum(), given)))
    assert torch.equal(found[0][1], found[1][1])
