"""Half-precision products in float32: which are chosen, and what stays as it was."""

import pytest
import torch
import torch.nn.functional as F

import lamina
from lamina.rewrite import products
from lamina.rewrite.passes import clean
from lamina.rewrite.products import widen_products
from lamina.rewrite.verify import verify_fx

from .test_passes import aten, count, graph_of

HALVES = (torch.bfloat16, torch.float16)


@pytest.fixture(autouse=True)
def _no_half_instructions(monkeypatch):
    monkeypatch.setattr(products, "has_half_products", lambda dtype: False)


def tensors(*shapes, dtype):
    torch.manual_seed(0)
    return [torch.randn(s).to(dtype) for s in shapes]


PRODUCTS = {
    "mm": (lambda a, b: (a @ b,), ((64, 32), (32, 48))),
    "addmm": (lambda c, a, b: (torch.addmm(c, a, b, beta=0.5, alpha=2),), ((48,), (64, 32), (32, 48))),
    "bmm": (lambda a, b: (a @ b.mT,), ((3, 64, 32), (3, 48, 32))),
    "baddbmm": (lambda c, a, b: (torch.baddbmm(c, a, b),), ((3, 64, 48), (3, 64, 32), (3, 32, 48))),
    "conv2d": (lambda x, w, b: (F.conv2d(x, w, b, padding=1),), ((2, 8, 9, 9), (6, 8, 3, 3), (6,))),
    "conv1d_transposed": (lambda x, w: (F.conv_transpose1d(x, w, stride=2),), ((2, 8, 9), (8, 6, 3))),
}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_computed_in_float32_and_rounded_once(name, dtype):
    function, shapes = PRODUCTS[name]
    inputs = tensors(*shapes, dtype=dtype)
    before = graph_of(function, *inputs)
    after = widen_products(before)
    assert after is not before
    verify_fx(after, "test")
    got, want = after(*inputs)[0], before(*inputs)[0]
    exact = function(*(x.double() for x in inputs))[0]
    assert got.dtype == dtype
    assert got.stride() == want.stride()
    largest = exact.abs().max()
    assert (got - exact).abs().max() <= torch.finfo(dtype).eps * largest
    assert (got - exact).abs().max() <= 1.01 * (want - exact).abs().max()


def test_an_operand_is_converted_once():
    x, w = tensors((64, 64), (64, 64), dtype=torch.bfloat16)
    after = widen_products(graph_of(lambda x, w: (x @ w, w @ x, x @ w.t()), x, w))
    assert count(after, aten._to_copy.default) == 2 + 1 + 3


def test_the_gradients_of_a_convolution():
    def step(x, w, g):
        y = F.conv2d(x, w)
        return torch.autograd.grad(y, (x, w), g)

    x, w, g = tensors((2, 4, 8, 8), (6, 4, 3, 3), (2, 6, 6, 6), dtype=torch.bfloat16)
    before = graph_of(step, x.requires_grad_(), w.requires_grad_(), g)
    after = clean(widen_products(before))
    verify_fx(after, "test")
    assert count(after, aten.convolution_backward.default) == 1
    for got, want in zip(after(x, w, g), before(x, w, g), strict=True):
        assert got.dtype == torch.bfloat16
        torch.testing.assert_close(got, want, rtol=0.02, atol=0.05)


def test_what_gains_nothing_stays():
    a, b, v = tensors((64, 64), (64, 64), (1, 64), dtype=torch.bfloat16)
    for function, inputs in ((lambda a, b: (a @ b,), (a.float(), b.float())), (lambda v, b: (v @ b.t(),), (v, b))):
        gm = graph_of(function, *inputs)
        assert widen_products(gm) is gm


def test_processors_with_instructions_keep_them(monkeypatch):
    monkeypatch.setattr(products, "has_half_products", lambda dtype: True)
    gm = graph_of(lambda a, b: (a @ b,), *tensors((64, 64), (64, 64), dtype=torch.bfloat16))
    assert widen_products(gm) is gm


def test_a_model_in_bfloat16():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 64)).bfloat16()
    x = torch.randn(32, 64).bfloat16()
    exact = model.double()(x.double())
    model.bfloat16()
    compiled = lamina.compile(model)
    torch.compiler.reset()
    eager = (model(x) - exact).abs().max()
    assert (compiled(x) - exact).abs().max() <= 2 * eager
    plans = [s.value for s in compiled.record.stages if s.name == "plan"]
    assert {b.dtype for p in plans for s in p.steps if hasattr(s, "op") for b in p.buffers if b.name in s.outs} == {
        "float32"
    }
