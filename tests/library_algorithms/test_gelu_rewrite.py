"""GELU and its gradient handed to the library with the products around them."""

import pytest
import torch
import torch.nn.functional as F

from lamina.base.devices import on_host
from lamina.library_algorithms.gelu_operations import addmm_gelu, mm_gelu_backward
from lamina.library_algorithms.gelu_rewrite import gelu_products
from lamina.rewrite.passes import remove_dead_code
from lamina.rewrite.verify import verify_fx
from tests.rewrite.test_passes import aten, count, graph_of


def draw(*shapes, dtype=torch.bfloat16):
    torch.manual_seed(0)
    return [torch.randn(s).to(dtype) for s in shapes]


def forward(x, w, b):
    h = F.linear(x, w, b)
    return F.gelu(h, approximate="tanh"), h


def backward(g, w, h):
    made = aten.gelu_backward(torch.mm(g.view(-1, g.shape[-1]), w).view(h.shape), h, approximate="tanh")
    matrix = made.view(-1, h.shape[-1])
    return matrix @ w.t(), matrix.sum(0, keepdim=True).view(-1)


def alone_backward(g, w, h):
    return (aten.gelu_backward(torch.mm(g, w), h, approximate="tanh"),)


def rewritten(function, *inputs, answer=lambda product, operation, values, summed: 3):
    """The new graph, checked against the old one's results."""
    before = remove_dead_code(graph_of(function, *inputs))
    after = gelu_products(before, answer, where=on_host)
    verify_fx(after, "test")
    for a, b in zip(after.graph.output_node().args[0], before.graph.output_node().args[0], strict=True):
        assert a.meta["val"].shape == b.meta["val"].shape
        assert a.meta["val"].stride() == b.meta["val"].stride()
    torch.testing.assert_close(after(*inputs), before(*inputs), rtol=0, atol=0)
    return after


@pytest.mark.parametrize("shape", [(6, 8), (2, 3, 8)])
def test_a_forward_that_keeps_what_gelu_is_applied_to(shape):
    after = rewritten(forward, *draw(shape, (16, 8), (16,)))
    assert count(after, addmm_gelu) == 1
    assert count(after, aten.addmm.default) == count(after, aten.gelu.default) == 0


@pytest.mark.parametrize("shape", [(6, 8), (2, 3, 8)])
def test_a_backward_with_the_bias_gradient(shape):
    after = rewritten(backward, *draw(shape, (8, 16), (*shape[:-1], 16)))
    assert count(after, mm_gelu_backward) == count(after, aten.sum.dim_IntList) == 1
    assert count(after, aten.gelu_backward.default) == 0


def test_the_question_names_the_operands():
    asked = []

    def answer(product, operation, values, summed):
        asked.append((operation, [tuple(v.shape) for v in values], summed))

    for function, inputs in (
        (forward, ((2, 3, 8), (16, 8), (16,))),
        (alone_backward, ((6, 8), (8, 16), (6, 16))),
        (backward, ((2, 3, 8), (8, 16), (2, 3, 16))),
    ):
        rewritten(function, *draw(*inputs), answer=answer)
    assert asked == [
        (addmm_gelu, [(16,), (6, 8), (8, 16)], False),
        (mm_gelu_backward, [(6, 8), (8, 16), (6, 16)], False),
        (mm_gelu_backward, [(6, 8), (8, 16), (6, 16)], True),
    ]


def test_what_stays():
    def erf(x, w, b):
        h = F.linear(x, w, b)
        return F.gelu(h), h

    def read(g, w, h):
        gradient = torch.mm(g, w)
        return aten.gelu_backward(gradient, h, approximate="tanh"), gradient

    def alone(x, w, b):
        return (F.gelu(F.linear(x, w, b), approximate="tanh"),)

    def read_by_kernels(x, w, b):
        h = F.linear(x, w, b)
        return F.gelu(h, approximate="tanh").sigmoid(), h

    x, w, b = draw((6, 8), (16, 8), (16,))
    for function, inputs in (
        (read_by_kernels, (x, w, b)),
        (erf, (x, w, b)),
        (read, draw((6, 8), (8, 16), (6, 16))),
        (alone, (x, w, b)),
        (forward, (x.float(), w.float(), b.float())),
        (forward, draw((6, 8), (12, 8), (12,))),
        (forward, draw((6, 8), (16, 8), (1,))),
    ):
        before = remove_dead_code(graph_of(function, *inputs))
        assert gelu_products(before, lambda product, operation, values, summed: 0, where=on_host) is before
        assert gelu_products(before, lambda product, operation, values, summed: 0) is before
