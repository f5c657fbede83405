"""Saved truth values share a byte, and saved signs take one, on a GPU."""

import pytest
import torch
import torch.nn.functional as F

from lamina.aot import graph_compiler

from .reference import Reference


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    torch._dynamo.reset()
    torch.manual_seed(0)
    monkeypatch.setattr(graph_compiler, "device_of", lambda joint: "cuda")
    yield
    torch._dynamo.reset()


def hinge(x, y):
    return F.hinge_embedding_loss(x * 0.875, y, reduction="none", margin=0.5) * 0.5


def distance(x, y):
    return (x * 0.5 - y).abs() * y


def many(x, *others):
    for other in others:
        x = torch.where(other > 0, x, x * 0.5)
    return x


def packed(function, *inputs):
    """What the forward hands to the backward of each packed value; results and gradients are eager's."""
    reference = Reference()
    compiled = reference.compile(function)
    found = []
    for run in (function, compiled):
        leaves = [t.clone().requires_grad_(t.requires_grad) for t in inputs]
        out = run(*leaves)
        grads = torch.autograd.grad(out, [t for t in leaves if t.requires_grad], torch.ones_like(out).cumsum(-1))
        found.append((out, *grads))
    for ours, eager in zip(*found, strict=True):
        torch.testing.assert_close(ours, eager, rtol=0, atol=0, equal_nan=True)
    part = reference.partition()
    given = part.backward.graph.find_nodes(op="placeholder")
    dtypes = [n.meta["val"].dtype for n in given if "tangents" not in n.name]
    return part, dtypes


def sides(*shape):
    y = torch.where(torch.rand(shape) < 0.5, 1.0, -1.0)
    return torch.randn(shape, requires_grad=True), y


def test_masks_of_a_loss_share_a_byte():
    part, dtypes = packed(hinge, *sides(32, 40))
    assert dtypes == [torch.uint8]
    assert part.saved_bytes == 32 * 40
    assert [len(d.subject) for d in part.decisions if d.kind == "pack"] == [3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sign_takes_a_byte(dtype):
    x, y = torch.randn(16, 24), torch.randn(16, 24)
    x[0, :4] = torch.tensor([0.0, -0.0, float("nan"), float("-inf")])
    y[0] = 0
    part, dtypes = packed(distance, x.to(dtype).requires_grad_(), y.to(dtype))
    assert sorted(map(str, dtypes)) == sorted(["torch.int8", str(dtype)])
    assert [d.reason for d in part.decisions if d.kind == "pack"] == ["a sign in one byte"]


def test_more_than_eight_masks_take_two_bytes():
    _, dtypes = packed(many, *sides(8, 16), *(torch.randn(8, 16) for _ in range(9)))
    assert dtypes == [torch.uint8] * 2


def test_masks_on_both_sides_of_a_reduction_stay_apart():
    def forward(x, y):
        a = torch.where(y > 0, x * 0.5, x)
        a = a - a.sum(-1, keepdim=True)
        return torch.where(y < a.detach(), a, a * 2)

    _, dtypes = packed(forward, *sides(8, 16))
    assert torch.uint8 not in dtypes


def test_masks_that_wait_for_a_reduction_stay_apart():
    """The kernel that makes them is not the one that reads them."""

    def forward(x, y):
        total = (x * 0.5).exp().sum(-1)
        return torch.where(y[:, 0] > 0, total, 0) + torch.where(y[:, 1] > 0.5, 1 - total, 0)

    _, dtypes = packed(forward, *sides(8, 16))
    assert torch.uint8 not in dtypes


def test_masks_of_different_shapes_stay_apart():
    def forward(x, y):
        return torch.where(y[:1] > x[:1] * 2, torch.where(y > 0, x, x * 2), x * 3)

    _, dtypes = packed(forward, *sides(8, 16))
    assert torch.uint8 not in dtypes


def test_masks_that_are_returned_stay():
    def forward(x, y):
        return torch.where(y > 0, x, x * 0.5), y > 0

    reference = Reference()
    x, y = sides(8, 16)
    out, mask = reference.compile(forward)(x, y)
    out.sum().backward()
    assert torch.equal(mask, y > 0)
    assert not [d for d in reference.partition().decisions if d.kind == "pack"]


def test_a_processor_keeps_what_it_has(monkeypatch):
    monkeypatch.setattr(graph_compiler, "device_of", lambda joint: "cpu")
    _, dtypes = packed(hinge, *sides(32, 40))
    assert torch.uint8 not in dtypes
