"""Masks of ReLUs taken from what the norm before them reads."""

import pytest
import torch

from lamina.base.devices import on_host
from lamina.rewrite.norm_masks import masks_from_norms
from lamina.rewrite.passes import remove_dead_code
from lamina.rewrite.verify import verify_fx

from .test_passes import aten, graph_of


def step(x, w, b, mean, variance, g):
    """A batch norm under ReLU, forward and backward, as a joint graph has it."""
    return backward_beyond(0, x, w, b, mean, variance, g)


def backward_beyond(threshold, x, w, b, mean, variance, g):
    y, *kept = aten._native_batch_norm_legit_functional(x, w, b, mean, variance, True, 0.1, 1e-5)
    r = torch.relu(y)
    d = aten.threshold_backward(g, r, threshold)
    return (r, *aten.native_batch_norm_backward(d, x, w, None, None, *kept[:2], True, 1e-5, [True, True, True]))


def operands(dtype, shape=(4, 6, 9, 9)):
    torch.manual_seed(0)
    x, g = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    w, b = (torch.randn(6).to(dtype) for _ in range(2))
    return x, w, b, torch.zeros(6, dtype=dtype), torch.ones(6, dtype=dtype), g


def rewritten(function, *inputs):
    before = remove_dead_code(graph_of(function, *inputs))
    after = remove_dead_code(masks_from_norms(before, where=on_host))
    verify_fx(after, "test")
    return before, after


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(4, 6, 9, 9), (40, 6)])
def test_the_mask_comes_from_the_input_of_the_norm(dtype, shape):
    inputs = operands(dtype, shape)
    inputs[0][0] = float("inf")  # eager's statistics are NaN then, and its masks let everything through
    for given in (inputs, operands(dtype, shape)):
        before, after = rewritten(step, *given)
        (masked,) = after.graph.find_nodes(op="call_function", target=aten.threshold_backward.default)
        assert (masked.args[1].target is aten.relu.default) == (dtype == torch.float64)
        torch.testing.assert_close(after(*given), before(*given), equal_nan=True)


def test_masks_of_half_precision_are_the_forwards():
    inputs = operands(torch.bfloat16)
    before, after = rewritten(step, *inputs)
    # On a CPU half-precision norms keep half-precision statistics: too few digits to find the mask again.
    kept = next(n for n in before.graph.nodes if n.target is aten.native_batch_norm_backward.default).args[5]
    assert (after is before) == (kept.meta["val"].dtype != torch.float32)


def test_other_uses_stay():
    inputs = operands(torch.float32)

    def other_threshold(x, w, b, mean, variance, g):
        return backward_beyond(0.5, x, w, b, mean, variance, g)

    def other_reader(x, w, b, mean, variance, g):
        y, *_ = aten._native_batch_norm_legit_functional(x, w, b, mean, variance, True, 0.1, 1e-5)
        return (aten.threshold_backward(g, torch.relu(y), 0),)

    def other_statistics(x, w, b, mean, variance, g):
        y, *_ = aten._native_batch_norm_legit_functional(x, w, b, mean, variance, True, 0.1, 1e-5)
        d = aten.threshold_backward(g, torch.relu(y), 0)
        return aten.native_batch_norm_backward(d, x, w, None, None, mean, variance, True, 1e-5, [True, True, True])

    for function in (other_threshold, other_reader, other_statistics):
        before, after = rewritten(function, *inputs)
        assert after.code == before.code
