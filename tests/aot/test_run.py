"""Compiled through our AOT stage and run as FX graphs, programs do what they do in eager."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lamina
import lamina.aot.run
from lamina.capture.module import original_of

from .models import GPT, Residual
from .reference import Reference, operations


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def step(model, *inputs):
    """Output, gradients and buffers after one training step."""
    model.zero_grad()
    out = model(*inputs)
    out.float().sum().backward()
    grads = {n: p.grad.clone() for n, p in model.named_parameters()}
    return out.detach(), grads, {n: b.clone() for n, b in model.named_buffers()}


def same_training(model, *inputs, steps=2, tolerance=None, **kwargs):
    twin, reference = copy.deepcopy(model), Reference()
    compiled = reference.compile(model, **kwargs)
    for _ in range(steps):
        expected, actual = step(twin, *inputs), step(compiled, *inputs)
        torch.testing.assert_close(actual, expected, **(tolerance or {}))
    return reference


def tokens(batch=2, length=16):
    return torch.randint(0, 64, (batch, length)), torch.randint(0, 64, (batch, length))


def test_gpt_trains_as_in_eager():
    reference = same_training(GPT(), *tokens())
    assert [r.kind for r in reference.regions] == ["forward", "backward"]
    assert [r.name for r in reference.regions] == ["graph_forward", "graph_backward"]
    assert {"aot", "partition", "capture"} <= set(reference.record.seconds())


def test_composite_backward_operations_stay_whole():
    reference = same_training(GPT(), *tokens())
    backward = operations(reference.graph("backward"))
    for name in ("native_layer_norm_backward", "_softmax_backward_data", "gelu_backward", "nll_loss_backward"):
        assert any(name in op for op in backward), name
    reference = same_training(Residual(), torch.randn(2, 8, 6, 6))
    backward = operations(reference.graph("backward"))
    assert "aten.native_batch_norm_backward.default" in backward
    assert "aten.convolution_backward.default" in backward


def test_batch_norm_statistics_are_written_in_the_graph():
    reference = same_training(Residual(), torch.randn(2, 8, 6, 6), steps=3)
    assert operations(reference.graph("forward")).count("aten.copy_.default") == 6


def test_every_call_names_the_users_line():
    reference = same_training(GPT(dropout=0.1).eval(), *tokens())
    for kind in ("forward", "backward"):
        for node in reference.graph(kind).nodes:
            if node.op == "call_function":
                assert node.meta["source"].startswith("models.py:"), node.name
    sources = {n.meta["source"].split(" ", 1)[1] for n in reference.graph("backward").nodes if "source" in n.meta}
    assert {"GELU backward", "LayerNorm backward", "softmax backward"} <= sources


def test_parameters_are_marked_static():
    reference = same_training(GPT(layers=1), *tokens())
    forward, backward = reference.regions
    model_tensors = len(list(GPT(layers=1).parameters())) + 1
    assert sum(i.static for i in forward.inputs) == model_tensors
    assert [i.role for i in backward.inputs][-1] == "tangent"
    assert any(i.static and i.role == "saved" for i in backward.inputs)


def test_no_grad_and_inference_mode_give_inference_graphs():
    model = GPT().eval()
    reference = Reference()
    compiled = reference.compile(model)
    inputs = tokens()
    with torch.no_grad():
        torch.testing.assert_close(compiled(*inputs), model(*inputs))
    with torch.inference_mode():
        torch.testing.assert_close(compiled(*inputs), model(*inputs))
    assert {r.kind for r in reference.regions} == {"inference"}
    torch.testing.assert_close(compiled(*inputs), model(*inputs))
    assert "forward" in {r.kind for r in reference.regions}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    model = GPT(layers=1)
    twin = copy.deepcopy(model)
    compiled = Reference().compile(model)
    with torch.autocast("cpu", dtype=dtype):
        expected, actual = twin(*(inputs := tokens())), compiled(*inputs)
    expected.backward()
    actual.backward()
    torch.testing.assert_close(actual, expected)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


def test_retain_graph_and_accumulation():
    x = torch.randn(4, 5, requires_grad=True)
    compiled = Reference().compile(lambda x: (x.exp() * x.sin()).sum())
    out = compiled(x)
    out.backward(retain_graph=True)
    out.backward()
    expected = x.exp() * x.sin() + x.exp() * x.cos()
    torch.testing.assert_close(x.grad, 2 * expected)


def test_unused_outputs_and_outputs_without_gradient():
    def f(x):
        return x.sin(), x.cos(), x.detach() * 2, (x > 0)

    x = torch.randn(7, requires_grad=True)
    a, _, c, d = Reference().compile(f)(x)
    assert a.requires_grad
    assert not c.requires_grad
    assert d.dtype is torch.bool
    a.sum().backward()
    torch.testing.assert_close(x.grad, x.cos())


def test_inputs_mutated():
    def f(x, cache, place):
        cache.index_copy_(0, place, x)
        x.mul_(2)
        return cache.sum() + x

    x, cache, place = torch.randn(2, 3), torch.zeros(5, 3), torch.tensor([1, 4])
    x2, cache2 = x.clone(), cache.clone()
    reference = Reference()
    torch.testing.assert_close(reference.compile(f)(x, cache, place), f(x2, cache2, place))
    torch.testing.assert_close((x, cache), (x2, cache2))
    assert operations(reference.graph("inference")).count("aten.copy_.default") == 2


def test_a_mutated_input_saved_for_the_backward_keeps_its_old_value():
    def f(w, buffer):
        y = (w * buffer.float().neg()).sum()
        with torch.no_grad():
            buffer.add_(1)
        return y

    w, buffer = torch.randn(4, requires_grad=True), torch.randn(4).bfloat16()
    before = buffer.clone()
    reference = Reference()
    reference.compile(f)(w, buffer).backward()
    torch.testing.assert_close(w.grad, -before.float())
    torch.testing.assert_close(buffer, before + 1)
    assert "aten.clone.default" in operations(reference.graph("forward"))


def test_outputs_that_alias_inputs_and_each_other():
    def f(x):
        y = x + 1
        return x.view(-1), y, y[0], y.t()

    x = torch.randn(3, 4)
    out = Reference().compile(f)(x)
    torch.testing.assert_close(out, f(x))
    assert out[0].data_ptr() == x.data_ptr()
    assert out[1].data_ptr() == out[2].data_ptr() == out[3].data_ptr()
    out[1].zero_()
    assert not out[3].any()


def test_differentiable_views_of_inputs_and_double_use():
    def f(x, y):
        return x.view(-1)[2:] * y.reshape(-1)[2:] + x.sum()

    x = torch.randn(3, 4, requires_grad=True)
    Reference().compile(f)(x, x).sum().backward()
    actual, x.grad = x.grad, None
    f(x, x).sum().backward()
    torch.testing.assert_close(actual, x.grad)


def test_inputs_that_overlap_in_memory():
    def f(a, b):
        a.add_(1)
        return b * 2

    base, base2 = torch.arange(6.0), torch.arange(6.0)
    torch.testing.assert_close(Reference().compile(f)(base[:4], base[2:]), f(base2[:4], base2[2:]))
    torch.testing.assert_close(base, base2)


def test_dynamic_batch_and_length_compile_once():
    model = GPT(layers=1)
    twin, reference = copy.deepcopy(model), Reference()
    compiled = reference.compile(model, dynamic=True)
    for batch, length in ((2, 8), (3, 12), (5, 11)):
        inputs = tokens(batch, length)
        torch.testing.assert_close(step(compiled, *inputs), step(twin, *inputs))
    assert len(reference.regions) == 2
    roles = [i.role for i in reference.regions[1].inputs]
    assert "symbol" in roles
    assert roles == sorted(roles, key=["symbol", "saved", "tangent"].index)


def test_symbolic_arithmetic_reaches_the_backward():
    def f(x):
        return (x.sin() * x.shape[0]).reshape(x.shape[1], -1).cos() / (x.shape[0] + x.shape[1])

    reference = Reference()
    compiled = reference.compile(f, dynamic=True)
    for shape in ((3, 4), (6, 5), (7, 2)):
        x = torch.randn(*shape, requires_grad=True)
        out = compiled(x)
        (grad,) = torch.autograd.grad(out.sum(), x)
        (expected,) = torch.autograd.grad(f(x).sum(), x)
        torch.testing.assert_close((out, grad), (f(x), expected))
    assert len(reference.regions) == 2


def test_a_gradient_that_needs_no_tangent():
    class Constant(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sum()

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return x.exp().sin()

    x = torch.randn(4, requires_grad=True)
    Reference().compile(lambda x: Constant.apply(x))(x).backward()
    torch.testing.assert_close(x.grad, x.exp().sin())


def test_checkpointed_regions_go_to_torchs_partitioner():
    def block(x, w):
        return torch.utils.checkpoint.checkpoint(lambda x: (x @ w).sin().exp(), x, use_reentrant=False)

    x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    reference = Reference()
    reference.compile(block)(x, w).sum().backward()
    actual = w.grad
    w.grad = None
    block(x, w).sum().backward()
    torch.testing.assert_close(actual, w.grad)
    (decision,) = reference.record.decisions("partition")
    assert "checkpointing" in decision.reason


def test_a_graph_without_a_backward_to_do():
    model = nn.Linear(3, 3)
    out = Reference().compile(lambda x: F.linear(x, model.weight).detach().requires_grad_(False))(torch.randn(2, 3))
    assert not out.requires_grad


def test_the_compiled_module_is_still_the_original():
    model = Residual()
    compiled = Reference().compile(model)
    compiled(torch.randn(1, 8, 4, 4)).sum().backward()
    assert original_of(compiled) is model
    assert int(model.norm1.num_batches_tracked) == 1
    assert all(p.grad is not None for p in compiled.parameters())


def test_a_backward_that_eager_lacks_is_missed_only_when_it_is_asked_for():
    def f(x):
        return torch.special.i1(x * 2) + 1

    x = torch.rand(5, dtype=torch.bfloat16, requires_grad=True)
    reference = Reference()
    compiled = reference.compile(f)
    result = compiled(x)
    assert torch.equal(result, f(x))
    assert result.requires_grad
    with pytest.raises(NotImplementedError, match="i1_backward"):
        result.sum().backward()
    (decision,) = [d for stage in reference.record.stages if stage.name == "eager" for d in stage.decisions]
    assert "i1_backward" in decision.reason


@pytest.mark.by_dynamo("counts Dynamo's graphs, or asks what it leaves to eager")
def test_sizes_are_fixed_where_questions_about_them_take_too_long(monkeypatch):
    def halved(x, y):
        y.view(2, -1)[0].mul_(2)
        return x.view(2, -1).sum(1)

    compiled = lamina.compile(halved, dynamic=True, options={"strict": True})
    monkeypatch.setattr(lamina.aot.run, "_SECONDS_FOR_SIZES", 0.0)
    for size in (4, 6):
        x, y = torch.arange(8.0 * size).reshape(size, 8).clone(), torch.ones(size, 8)
        assert compiled(x, y).equal(x.view(2, -1).sum(1))
        assert y.sum() == 12 * size
    assert [d.taken for d in compiled.record.decisions("fixed sizes")] == [True, True]
    assert not compiled.record.decisions("eager")
