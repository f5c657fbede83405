"""Gradients: modes, graphs kept and reused, accumulation, custom functions, autocast."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import lamina
from benchmarks.compilers import CompileFunction
from tests.semantics.program import agree, observe, raises_alike


def _gated(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).sigmoid() * (x.sum(1, keepdim=True) + w.amax(0))


def _leaves() -> tuple[Tensor, Tensor]:
    return torch.randn(5, 4, requires_grad=True), torch.randn(4, 6, requires_grad=True)


def test_graph_kept_and_used_again(compile: CompileFunction) -> None:
    torch.manual_seed(0)
    x, w = _leaves()
    out = compile(_gated, dynamic=False)(x, w)
    first = torch.autograd.grad(out.sum(), (x, w), retain_graph=True)
    second = torch.autograd.grad(out.sum(), (x, w))
    expected = torch.autograd.grad(_gated(x, w).sum(), (x, w))
    for a, b, e in zip(first, second, expected, strict=True):
        torch.testing.assert_close(a, e)
        torch.testing.assert_close(b, a, rtol=0, atol=0)


def test_graph_freed_raises(compile: CompileFunction) -> None:
    x, w = _leaves()
    loss = compile(_gated, dynamic=False)(x, w).sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


@pytest.mark.parametrize("dynamic", [False, True])
def test_hooks_that_store_saved_tensors_in_another_layout(compile: CompileFunction, dynamic: bool) -> None:
    torch.manual_seed(0)

    def function(x: Tensor, w: Tensor) -> Tensor:
        return (x.tanh().t() * w).exp()

    x = torch.empty_strided((5, 7), (1, 5)).normal_().requires_grad_()
    w = torch.randn(1, 5).expand(7, 5).requires_grad_()
    compiled = compile(function, dynamic=dynamic)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: t.clone(memory_format=torch.contiguous_format), lambda t: t
    ):
        out = compiled(x, w)
    found = torch.autograd.grad(out.sum(), (x, w))
    for a, e in zip(found, torch.autograd.grad(function(x, w).sum(), (x, w)), strict=True):
        torch.testing.assert_close(a, e)


def test_gradients_accumulate(compile: CompileFunction) -> None:
    agree(compile, lambda: (_gated, _leaves()), calls=4)


def test_several_forwards_before_their_backwards(compile: CompileFunction) -> None:
    torch.manual_seed(0)
    compiled = compile(_gated, dynamic=False)
    cases = [_leaves() for _ in range(4)]
    losses = [compiled(x, w).square().sum() for x, w in cases]
    for loss, (x, w) in reversed(list(zip(losses, cases, strict=True))):
        loss.backward()
        expected = torch.autograd.grad(_gated(x, w).square().sum(), (x, w))
        for leaf, e in zip((x, w), expected, strict=True):
            torch.testing.assert_close(leaf.grad, e)


def test_outputs_without_a_gradient(compile: CompileFunction) -> None:
    def program(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return (x @ w).tanh(), x.detach() * 2, x.argmax(1), (x > 0).any(), w.sum()

    agree(compile, lambda: (program, _leaves()), floor=16)  # a sum of numbers that nearly cancel
    x, w = _leaves()
    outputs = compile(program, dynamic=False)(x, w)
    outputs[4].backward()
    assert x.grad is None or not x.grad.any()
    torch.testing.assert_close(w.grad, torch.ones(4, 6))


def test_only_some_inputs_need_gradients(compile: CompileFunction) -> None:
    compiled = compile(_gated, dynamic=False)
    for flags in ((True, False), (False, True), (False, False), (True, True)):
        x, w = (t.detach().requires_grad_(flag) for t, flag in zip(_leaves(), flags, strict=True))
        out = compiled(x, w)
        assert out.requires_grad == any(flags)
        if any(flags):
            out.sum().backward()
        assert (x.grad is not None, w.grad is not None) == flags


def test_modes_around_one_compiled_function(compile: CompileFunction) -> None:
    torch.manual_seed(0)
    compiled = compile(_gated, dynamic=False)
    x, w = _leaves()
    expected = _gated(x, w).detach()
    for mode in (torch.no_grad, torch.enable_grad, torch.inference_mode, torch.no_grad, torch.enable_grad):
        with mode():
            out = compiled(x, w)
        assert out.requires_grad == (mode is torch.enable_grad)
        assert out.is_inference() == (mode is torch.inference_mode)
        torch.testing.assert_close(out.detach(), expected)


def test_modes_inside(compile: CompileFunction) -> None:
    def program(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        with torch.no_grad():
            frozen = x.sin()
        with torch.set_grad_enabled(False):
            other = w * 2
        with torch.no_grad(), torch.enable_grad():
            live = x * 3
        return frozen @ w, other, live + frozen

    agree(compile, lambda: (program, _leaves()))


def test_gradient_with_respect_to_a_value_between(compile: CompileFunction) -> None:
    torch.manual_seed(0)
    x, w = _leaves()
    inner, outer = compile(lambda a: a.sin() * 2, dynamic=False), compile(lambda a, b: (a @ b).relu(), dynamic=False)
    middle = inner(x)
    middle.retain_grad()
    outer(middle, w).sum().backward()
    y = x.detach().requires_grad_()
    between = y.sin() * 2
    between.retain_grad()
    (between @ w.detach()).relu().sum().backward()
    torch.testing.assert_close(middle.grad, between.grad)
    torch.testing.assert_close(x.grad, y.grad)


def test_hooks_of_tensors(compile: CompileFunction) -> None:
    seen: list[Tensor] = []
    x, w = _leaves()
    x.register_hook(lambda g: g * 3)
    out = compile(_gated, dynamic=False)(x, w)
    out.register_hook(seen.append)
    out.sum().backward()
    y, v = (t.detach().requires_grad_() for t in (x, w))
    _gated(y, v).sum().backward()
    assert y.grad is not None
    torch.testing.assert_close(x.grad, y.grad * 3)
    torch.testing.assert_close(seen[0], torch.ones(5, 6))


def test_gradients_that_are_not_contiguous(compile: CompileFunction) -> None:
    torch.manual_seed(0)
    compiled = compile(lambda x, w: (x @ w).exp() + x.sum(), dynamic=False)
    for make in (
        lambda: torch.ones(()).expand(5, 6),
        lambda: torch.randn(6, 5).t(),
        lambda: torch.randn(5, 12)[:, ::2],
    ):
        x, w = _leaves()
        gradient = make()
        ours = torch.autograd.grad(compiled(x, w), (x, w), gradient)
        theirs = torch.autograd.grad((x @ w).exp() + x.sum(), (x, w), gradient)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b)


class Straight(torch.autograd.Function):
    """Rounds; its gradient is that of a clamped identity."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, limit: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.limit = limit
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return torch.where(x.abs() < ctx.limit, gradient, 0.0), None


def test_custom_function(compile: CompileFunction) -> None:
    agree(compile, lambda: (lambda x: Straight.apply(x * 2, 1.5) + x, (torch.randn(40, requires_grad=True),)))


def test_checkpointed_region(compile: CompileFunction) -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        return checkpoint(lambda a, b: F.gelu(a @ b), x, w, use_reentrant=False) * 2

    agree(compile, lambda: (program, _leaves()))


def test_gradient_of_a_gradient_is_right_or_refused(compile: CompileFunction) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, requires_grad=True)
    out = compile(lambda t: t.sin() * t, dynamic=False)(x)
    (first,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    expected = 2 * x.cos() - x * x.sin()
    try:
        (second,) = torch.autograd.grad(first.sum(), x)
    except RuntimeError as refusal:
        assert "double backward" in str(refusal), refusal  # noqa: PT017
        return
    torch.testing.assert_close(second, expected)


def test_gradients_in_batches(compile: CompileFunction) -> None:
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 2)
    compiled = compile(lambda a: (a @ w).tanh().sum(0), dynamic=False)
    every = torch.eye(2)
    for program in (compiled, compiled):  # the second finds a compiled backward
        (found,) = torch.autograd.grad(program(x), x, every, is_grads_batched=True)
        out = (x @ w).tanh().sum(0)
        (expected,) = torch.autograd.grad(out, x, every, is_grads_batched=True)
        torch.testing.assert_close(found, expected)
        program(x).sum().backward()


def test_backward_inside_the_compiled_function(compile: CompileFunction) -> None:
    model = nn.Linear(4, 3)

    def step(x: Tensor) -> Tensor:
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    x = torch.randn(5, 4)
    step(x)
    assert model.weight.grad is not None
    expected = model.weight.grad.clone()
    model.zero_grad()
    compile(step, dynamic=False)(x)
    torch.testing.assert_close(model.weight.grad, expected)


def test_functional_gradients(compile: CompileFunction) -> None:
    def program(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        gradient = torch.func.grad(lambda a: (a @ w).sin().sum())(x)
        return gradient, torch.func.vmap(lambda row: row.softmax(0))(x)

    agree(compile, lambda: (program, (torch.randn(5, 4), torch.randn(4, 6))), exact=False, strides=False)


def test_in_place_on_a_leaf_raises(compile: CompileFunction) -> None:
    raises_alike(compile, lambda: (lambda x: x.mul_(2), (torch.randn(3, requires_grad=True),)))


def test_wrong_gradient_shape_raises(compile: CompileFunction) -> None:
    x, w = _leaves()
    out = compile(_gated, dynamic=False)(x, w)
    with pytest.raises(RuntimeError):
        out.backward(torch.ones(3))


def _under_autocast(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    with torch.autocast("cpu", torch.bfloat16):
        product = x @ w
        total = product.float().softmax(-1)
        with torch.autocast("cpu", enabled=False):
            plain = x @ w
    return product, total, plain


def test_autocast_inside(compile: CompileFunction) -> None:
    agree(compile, lambda: (_under_autocast, _leaves()), floor=16)


def test_autocast_outside(compile: CompileFunction) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4))
    compiled = compile(model, dynamic=False)
    x = torch.randn(8, 16, requires_grad=True)
    for enabled in (True, False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            outcome = observe(model, (x,), compiled)
            gradients = [g.clone() for _, g in outcome.gradients if g is not None]
            model.zero_grad()
            x.grad = None
            expected = observe(model, (x,), model)
        assert outcome.outputs[0].dtype == expected.outputs[0].dtype == (torch.bfloat16 if enabled else torch.float32)
        tolerance = 3e-2 if enabled else 1e-5
        torch.testing.assert_close(outcome.outputs[0], expected.outputs[0], rtol=tolerance, atol=tolerance)
        for mine, (_, theirs) in zip(gradients, expected.gradients, strict=True):
            assert theirs is not None
            torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)
        model.zero_grad()
        x.grad = None


LAYOUTS = {
    "dense": lambda g: g.contiguous(),
    "transposed": lambda g: g.transpose(0, 1).contiguous().transpose(0, 1),
    "repeated": lambda g: g[:1, :1, :1].expand(g.shape),
    "rows": lambda g: g[:, :, :1].expand(g.shape),
    "spread": lambda g: g.repeat_interleave(2, -1)[..., ::2],
    "channels": lambda g: g.transpose(0, 2).contiguous().transpose(0, 2),
}


def _layouts_program(x: Tensor, w: Tensor) -> Tensor:
    y = (x.transpose(0, 1) * w).softmax(-1)
    return (y.reshape(5, -1) @ torch.ones(24, 24)).view(5, 4, 6).sin()


def test_gradients_in_any_layout_as_in_eager(compile: CompileFunction) -> None:
    compiled = compile(_layouts_program, dynamic=False)
    x, w = torch.randn(4, 5, 6, requires_grad=True), torch.randn(6, requires_grad=True)
    for name, layout in LAYOUTS.items():
        for _ in range(2):
            gradient = layout(torch.randn(5, 4, 6))
            ours = torch.autograd.grad(compiled(x, w), [x, w], gradient)
            theirs = torch.autograd.grad(_layouts_program(x, w), [x, w], gradient)
            for a, b in zip(ours, theirs, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=name)
                assert a.stride() == b.stride(), name


def test_a_graph_that_addresses_memory_takes_a_copy(compile: CompileFunction) -> None:
    def program(x: Tensor) -> Tensor:
        return (x * 2).as_strided((3, 4), (4, 1)) * 3

    compiled = compile(program, dynamic=False)
    x = torch.randn(3, 4, requires_grad=True)
    for layout in (lambda g: g.t().contiguous().t(), lambda g: g[:1, :1].expand(3, 4)):
        gradient = layout(torch.randn(3, 4))
        (ours,) = torch.autograd.grad(compiled(x), x, gradient)
        torch.testing.assert_close(ours, gradient * 6)


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("backend", ["lamina", "interp"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_of_two_leaves_lie_in_memory_of_their_own(dynamic: bool, backend: str) -> None:
    def views(x: Tensor, y: Tensor) -> Any:
        return (x + y).t()

    def pool(x: Tensor, y: Tensor) -> Any:
        return F.max_pool1d((x + y)[None], 2)[0]

    for function in (views, pool):
        x, y = (torch.ones(3, 5, requires_grad=True) for _ in range(2))
        lamina.compile(function, dynamic=dynamic, backend=backend)(x, y).square().sum().backward()
        assert x.grad is not None
        assert y.grad is not None
        assert x.grad.data_ptr() != y.grad.data_ptr()


@pytest.mark.parametrize("create_graph", [False, True])
def test_a_result_that_requires_a_gradient_and_gives_none(compile: CompileFunction, create_graph: bool) -> None:
    def nonzero(x: Tensor) -> Tensor:
        return torch.linalg.vector_norm(x, 0)

    x = torch.randn(3, 5, requires_grad=True)
    out = compile(nonzero, dynamic=False)(x)
    assert out.requires_grad
    assert torch.autograd.grad(out, x, allow_unused=True, create_graph=create_graph) == (None,)
    compile(nonzero, dynamic=False)(x).backward()
    assert x.grad is None
