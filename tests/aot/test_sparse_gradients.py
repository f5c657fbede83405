"""Gradients that arrive as sparse tensors: compiled backwards take their values."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import lamina


def test_a_sparse_gradient_of_a_compiled_result_is_taken_by_its_values() -> None:
    compiled = lamina.compile(lambda w: w * 2)
    picked = torch.tensor([1, 3, 1])
    for _ in range(2):
        w, same = (torch.arange(15.0).view(5, 3).requires_grad_() for _ in range(2))
        F.embedding(picked, compiled(w), sparse=True).sum().backward()
        F.embedding(picked, same * 2, sparse=True).sum().backward()
        assert w.grad is not None
        assert same.grad is not None
        torch.testing.assert_close(w.grad.to_dense(), same.grad.to_dense())
        dense = torch.arange(15.0).view(5, 3).requires_grad_()
        compiled(dense).sum().backward()
        assert dense.grad is not None
        assert dense.grad.eq(2).all()
