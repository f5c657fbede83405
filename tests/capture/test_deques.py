"""Deques drop items beyond their length in traces, too."""

import collections

import pytest
import torch

import lamina


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("bounds", [(None, 2), (2, None), (3, 2)])
def test_deques_that_drop_items_at_another_length(bounds):
    def f(x, items):
        kept, twice = items.copy(), items * 2
        kept.append(7)
        twice.appendleft(5)
        return x * len(kept), list(kept), list(twice), kept.maxlen, twice.maxlen, items == twice

    compiled = lamina.compile(f)
    for bound in bounds:
        items = collections.deque([1, 2], maxlen=bound)
        assert compiled(torch.ones(1), items)[1:] == f(torch.ones(1), items)[1:]
