"""Statistics that the backward keeps, and arithmetic that it computes again: variances and group norms."""

from __future__ import annotations

import pytest
import torch

import lamina
from lamina.aot.partition import partition
from lamina.base.devices import on_host
from lamina.ir.loops import Reduce
from lamina.rewrite.norms import open_group_norm, share_means
from lamina.rewrite.passes import clean
from lamina.rewrite.verify import verify_fx
from lamina.testing import judge

from .test_passes import aten, count, graph_of

GROUPS = 4


def step(x, w, b, tangents_1):
    """A training step written out, as in a joint graph; the backward of the activation asks for the norm's result."""
    samples, channels, *space = x.shape
    sizes = samples, channels, torch.Size(space).numel(), GROUPS
    y, mean, scale = aten.native_group_norm(x, w, b, *sizes, 1e-5)
    inner = aten.silu_backward(tangents_1, y)
    return aten.silu(y), *aten.native_group_norm_backward(
        inner, x, mean, scale, w, *sizes, [True, *[w is not None] * 2]
    )


def operands(dtype, shape=(3, 8, 5, 4), affine=True):
    torch.manual_seed(0)
    x, g = (torch.randn(shape) + 2).to(dtype), torch.randn(shape).to(dtype)
    w, b = (torch.randn(shape[1]).to(dtype) if affine else None for _ in range(2))
    return x, w, b, g


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_norm_becomes_statistics_and_arithmetic(dtype, affine):
    given = operands(dtype, affine=affine)
    tensors = [t for t in given if t is not None]

    def function(*held):
        it = iter(held)
        return tuple(r for r in step(*(next(it) if t is not None else None for t in given)) if r is not None)

    before = graph_of(function, *tensors)
    after = clean(open_group_norm(before, on_host))
    verify_fx(after, "test")
    assert count(after, aten.native_group_norm.default) == 0
    exact = function(*(t.double() for t in tensors))
    for ours, eager, best in zip(after(*tensors), before(*tensors), exact, strict=True):
        assert not judge(ours, eager, best)


def test_other_norms_stay():
    x, w, b, g = operands(torch.float32)
    sizes = 3, 8, 20, GROUPS, 1e-5
    only_forward = graph_of(lambda x, w, b: (aten.silu(aten.native_group_norm(x, w, b, *sizes)[0]),), x, w, b)
    unread = graph_of(lambda x, w, b: aten.native_group_norm(x, w, b, *sizes), x, w, b)
    for gm in (only_forward, unread):
        assert open_group_norm(gm, on_host) is gm
    training = graph_of(step, x, w, b, g)
    assert open_group_norm(training) is training, "it pays on a GPU"


def test_the_backward_keeps_the_statistics_only():
    given = operands(torch.float32, (2, 8, 16, 16))
    joint = graph_of(step, *given)
    copied = 8 * 4  # the bias, which the user may write to
    for gm, kept in ((joint, 0), (clean(open_group_norm(joint, on_host)), 2 * 2 * GROUPS * 4)):
        found = partition(gm, 1, [], "cuda")
        inputs = {n.name for n in found.forward.graph.find_nodes(op="placeholder")}
        own = [n for n in found.forward.graph.output_node().args[0][1:] if n.name not in inputs]
        assert sum(n.meta["val"].nbytes for n in own) == kept + copied
    again = {n.target for n in found.backward.graph.nodes}
    assert aten.var_mean.correction not in again
    assert aten.rsqrt.default in again


@pytest.mark.parametrize("dims", [[1], [0, -1], None])
@pytest.mark.parametrize("operation", [aten.var.correction, aten.std.correction])
def test_a_variance_and_its_mean_are_one_reduction(operation, dims):
    torch.manual_seed(0)
    x = torch.randn(3, 5, 4)
    every = [0, 1, 2] if dims is None else dims

    def function(x):
        mean = aten.mean.dim(x, [d % 3 for d in every], True)
        return operation(x, dims, correction=1), x - mean, operation(x, dims, correction=0, keepdim=True), x.mean(2)

    before = graph_of(function, x)
    after = clean(share_means(before))
    verify_fx(after, "test")
    joined = {aten.var.correction: aten.var_mean.correction, aten.std.correction: aten.std_mean.correction}[operation]
    assert count(after, joined) == 1
    assert count(after, operation) == 1, "the other correction stays"
    assert count(after, aten.mean.dim) == 1, "a mean over other dimensions stays"
    for ours, eager, exact in zip(after(x), before(x), function(x.double()), strict=True):
        assert not judge(ours, eager, exact)


def test_means_of_other_kinds_stay():
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    for function in (
        lambda x, y: (aten.var.correction(x, [1], correction=1), aten.mean.dim(x, [0])),
        lambda x, y: (aten.var.correction(x, [1], correction=1), aten.mean.dim(y, [1])),
        lambda x, y: (aten.var.correction(x, [1], correction=1), aten.mean.dim(x, [1], dtype=torch.float64)),
    ):
        gm = graph_of(function, x, y)
        assert share_means(gm) is gm


def test_the_gradient_of_a_variance_reads_no_mean_again():
    torch.compiler.reset()
    torch.manual_seed(0)
    x = (torch.randn(6, 40, 8) + 3).requires_grad_()
    compiled = lamina.compile(lambda x: x.var(1), dynamic=False)
    compiled(x).square().sum().backward()
    y = x.detach().double().requires_grad_()
    y.var(1).square().sum().backward()
    torch.testing.assert_close(x.grad.double(), y.grad, rtol=1e-4, atol=1e-6)
    _, backward = (s.value for s in compiled.record.stages if s.name == "plan")
    assert not any(isinstance(e, Reduce) for kernel in backward.kernels for nest in kernel.nests for e in nest.body)
