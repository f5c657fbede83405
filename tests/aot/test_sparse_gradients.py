"""Gradients that arrive sparse: what is made of them is what eager makes, sparse gradients or errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.compilers import CompileFunction

_FUNCTIONS = {
    "scaled": lambda w: w * 2,
    "squared": lambda w: w * w,
    "two results": lambda w: (w.exp(), w.sum()),
}


def _sparse_backward(function: Any, table: Tensor) -> Tensor:
    table.grad = None
    result = function(table)
    rows = result[0] if isinstance(result, tuple) else result
    F.embedding(torch.tensor([1, 3, 1]), rows, sparse=True).sum().backward()
    assert table.grad is not None
    return table.grad


@pytest.mark.parametrize("name", _FUNCTIONS)
def test_sparse_gradients(compile: CompileFunction, name: str) -> None:
    table = torch.randn(5, 3, requires_grad=True)
    compiled = compile(_FUNCTIONS[name], dynamic=False)
    expected = _sparse_backward(_FUNCTIONS[name], table)
    for _ in range(2):
        found = _sparse_backward(compiled, table)
        assert found.is_sparse
        assert found._nnz() == expected._nnz()
        torch.testing.assert_close(found.to_dense(), expected.to_dense())
    dense = torch.autograd.grad(compiled(table)[0].sum(), table)[0]
    torch.testing.assert_close(dense, torch.autograd.grad(_FUNCTIONS[name](table)[0].sum(), table)[0])


def test_sparse_gradients_that_eager_refuses(compile: CompileFunction) -> None:
    table = torch.randn(5, 3, requires_grad=True)
    for function in (torch.tanh, compile(torch.tanh, dynamic=False)):
        with pytest.raises(NotImplementedError, match="tanh_backward"):
            _sparse_backward(function, table)


@pytest.mark.parametrize("name", _FUNCTIONS)
def test_sparse_gradients_of_what_aotautograd_differentiates(compile: CompileFunction, name: str) -> None:
    table = torch.randn(5, 3, requires_grad=True)
    expected = _sparse_backward(_FUNCTIONS[name], table).to_dense()
    for settings in ({"dynamic": True}, {"dynamic": False, "options": {"numerics": "eager"}}):
        found = _sparse_backward(compile(_FUNCTIONS[name], **settings), table)
        torch.testing.assert_close(found.to_dense() if found.is_sparse else found, expected)
