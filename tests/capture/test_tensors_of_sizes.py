"""The old constructors make tensors of a size that they are given, and of the values of a tuple."""

import pytest
import torch

import lamina


@pytest.mark.parametrize("make", [torch.Tensor, torch.FloatTensor, torch.LongTensor], ids=lambda kind: kind.__name__)
def test_a_size_and_a_tuple(make):
    def f(x):
        y = x @ torch.ones(10, 4)
        return make(y.size()).shape, make(y.shape[:1]).shape, make((2, 3)), make([2, 3]), make(2, 3).shape

    torch._dynamo.reset()
    compiled = lamina.compile(f)
    for rows in (1, 3, 5):
        assert str(compiled(torch.ones(rows, 10))) == str(f(torch.ones(rows, 10)))
