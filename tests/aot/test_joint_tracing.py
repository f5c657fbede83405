"""Joint graphs traced call by call: when they are made, and that they do what eager does."""

import random
import threading
import weakref
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lamina
from lamina.aot import run
from lamina.testing.fuzz.torch_private import state_of_thread

from .models import GPT, Residual
from .reference import Reference, operations


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def traced_per_call(reference: Reference) -> bool:
    return all(d.taken for d in reference.record.decisions("joint tracing"))


def why(reference: Reference) -> str:
    return "; ".join(d.reason for d in reference.record.decisions("joint tracing"))


def gradients(function, inputs):
    """Results and gradients of ``function`` for gradients that are neither ones nor laid out as the results."""
    inputs = [t.detach().clone().requires_grad_(t.requires_grad) for t in inputs]
    out = function(*inputs)
    outs = out if isinstance(out, tuple) else (out,)
    loss = sum(
        (o.transpose(0, -1).double() * torch.linspace(1, 2, o.numel()).view(o.transpose(0, -1).shape)).sum()
        for o in outs
        if o.requires_grad
    )
    wanted = [t for t in inputs if t.requires_grad]
    return outs, torch.autograd.grad(loss, wanted, allow_unused=True), inputs


def check(function, *inputs, expect=True):
    reference = Reference()
    actual = gradients(reference.compile(function), inputs)
    torch.testing.assert_close(actual, gradients(function, inputs))
    assert traced_per_call(reference) == expect, why(reference)
    return reference


def leaf(*shape, **kwargs):
    return torch.randn(*shape, requires_grad=True, **kwargs)


def test_deeper_models_trace_no_more_calls():
    tokens = torch.randint(0, 64, (2, 16))
    counts = []
    for layers in (2, 5):
        reference = Reference()
        reference.compile(GPT(layers=layers, dropout=0.1))(tokens, tokens).backward()
        assert traced_per_call(reference)
        counts.append(why(reference))
    assert counts[0] == counts[1]


def test_batch_norm_training_is_stitched_with_its_statistics():
    reference = Reference()
    reference.compile(Residual())(torch.randn(2, 8, 4, 4)).sum().backward()
    assert traced_per_call(reference)
    assert operations(reference.graph("forward")).count("aten.copy_.default") == 6


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x.split(2, dim=1)[1] * y[:, 2:4],
        lambda x, y: x.unbind(0)[0] + x.unbind(0)[2] * y[1],
        lambda x, y: torch.var_mean(x, 1)[0] * y.sum(1),
        lambda x, y: x.max(1).values + y.min(1).values,
        lambda x, y: torch.stack([x, y, x]).sum(0) * x * x + x,
        lambda x, y: torch.cat([x, y.expand(4, 4), x.t()]).cos(),
        lambda x, y: (x @ y).softmax(-1).log().sum().expand(3, 3) + 0,
        lambda x, y: x[y.argmax(1)] * y.gather(1, x.argsort(1)),
        lambda x, y: F.layer_norm(x.permute(1, 0), (4,)) * y.detach(),
        lambda x, y: torch.where(x > 0, x, y) + x.clamp(-0.5, 0.5),
        lambda x, y: (x.sin(), y.cos()),
        lambda x, y: torch.var_mean(x * y, 1),
        lambda x, y: (x * y, (x * 2).detach(), x > y),
        lambda x, y: x.contiguous() * x.to(torch.float32) + F.dropout(y, 0.5, training=False),
        lambda x, y: torch.einsum("ij,kj->ik", x, y).cumsum(0),
        lambda x, y: F.pad(x, (1, 2)).sum(1) * y.norm(),
        lambda x, y: attention(x[None], y, need_weights=False)[0] * 2,
    ],
)
def test_gradients(function):
    check(function, leaf(4, 4), leaf(4, 4))


def attention(x, weight, need_weights):
    """One call that gives a tensor and, in place of the weights, None."""
    weights = torch.cat([weight, weight * 2, weight.t()])
    return F.multi_head_attention_forward(
        x, x, x, 4, 2, weights, None, None, None, False, 0.0, weight, None, need_weights=need_weights
    )


def relu_in_place(x):
    y = x * 2
    F.relu(y, inplace=True)
    return y + 1


def added_in_place(x):
    y = x.sin()
    y += x
    y.mul_(x)
    return y


def assigned(x):
    y = x * 1
    y[:, 1:3] = x[:, :2].exp()
    return y.sin()


def assigned_to_constant(x):
    y = torch.zeros(4, 4)
    y[1] = x[0]
    return y * x


def normalized_in_place(x):
    return F.relu(F.layer_norm(x, (4,)), inplace=True)


def list_in_place(x):
    y, z = x * 0.25, x + 1
    torch._foreach_mul_([y, z], [2.0, 3.0])
    torch._foreach_exp_([z, y])
    return y, z


def list_in_place_of_others(x):
    y, z, last = x * 0.25, x + 1, x.detach() * 1
    torch._foreach_add_([last, y], [z, x], alpha=2)
    return y * z, last


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize(
    "function",
    [
        normalized_in_place,
        relu_in_place,
        added_in_place,
        assigned,
        assigned_to_constant,
        list_in_place,
        list_in_place_of_others,
    ],
)
def test_writes_to_intermediate_results(function):
    check(function, leaf(4, 4))


def written_through_a_view(x):
    y = x * 2
    y.view(-1)[3:5].mul_(3)
    return y + x


def view_read_after_a_write(x):
    y = x * 2
    row = y[1]
    y.add_(1)
    return row * y


@pytest.mark.parametrize("function", [written_through_a_view, view_read_after_a_write])
def test_writes_that_a_view_sees_go_to_aotautograd(function):
    check(function, leaf(4, 4), expect=False)


def test_a_backward_that_needs_an_overwritten_value_is_refused():
    def f(x):
        y = x.exp()
        y.mul_(2)
        return y

    with pytest.raises(Exception, match="modified by an inplace operation"):
        Reference().compile(f)(leaf(3)).sum().backward()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.t()[1],
        lambda x: x.view(-1),
        lambda x: (y := x + 1, y.t()),
    ],
)
def test_aliasing_results_go_to_aotautograd(function):
    reference = Reference()
    x = torch.randn(3, 3)
    torch.testing.assert_close(reference.compile(function)(x), function(x))
    assert not traced_per_call(reference)
    assert "shares memory" in why(reference)


def test_no_grad_and_disabled_autocast_inside():
    def f(x, w):
        with torch.no_grad():
            y = x.sin()
            with torch.autocast("cpu", enabled=False):
                z = y * w
        return y * x + z + w

    check(f, leaf(3, 3), leaf(3, 3))


def test_a_write_without_gradients_keeps_the_history():
    def f(x, w):
        y = x * w
        with torch.no_grad():
            y.mul_(3)
        return y

    check(f, leaf(3, 3), leaf(3, 3), expect=False)


def _stepped(p, g):
    with torch.no_grad():
        p.sub_(g, alpha=0.5).mul_(0.9)
        return p.abs().max()


def _stepped_and_left_off(p, g):
    torch.set_grad_enabled(False)
    p.sub_(g, alpha=0.5)
    return p * 2


@torch.no_grad()
def _stepped_by_a_function(p, g):
    p.add_(g)
    return g * p


def _multiplied(p, g):
    with torch.no_grad():
        p.sub_(p @ g.t() @ g)
        return p @ g.t()


@pytest.mark.parametrize("function", [_stepped, _stepped_and_left_off, _stepped_by_a_function, _multiplied])
@pytest.mark.parametrize("kind", ["parameter", "result"])
@pytest.mark.parametrize("enabled", [True, False])
def test_steps_without_gradients_are_stitched(function, kind, enabled):
    """What requires a gradient is written to where gradients are off throughout: an optimizer's steps."""

    def after(called):
        torch.manual_seed(0)
        p, g = leaf(4, 5), torch.randn(4, 5)
        written = p if kind == "parameter" else p * 2
        used = written.sin()
        before = torch.is_grad_enabled()
        try:
            torch.set_grad_enabled(enabled)
            result = called(written, g)
            left = torch.is_grad_enabled()
        finally:
            torch.set_grad_enabled(before)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            used.sum().backward()
        looks = written.requires_grad, written.is_leaf, result.requires_grad, result.grad_fn, left
        (grad,) = torch.autograd.grad((written * 3).sum(), p)
        return looks, written.detach(), result, grad

    reference = Reference()
    compiled = reference.compile(function)
    for _ in range(2):
        found, expected = after(compiled), after(function)
        assert found[0] == expected[0]
        torch.testing.assert_close(found[1:], expected[1:])
    switched_at_once = enabled and function is _stepped_and_left_off
    assert traced_per_call(reference) != switched_at_once, why(reference)


def test_autocast_inside_goes_to_aotautograd():
    def f(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x @ w

    check(f, leaf(3, 3), torch.randn(3, 3), expect=False)


def test_dynamic_sizes_and_autocast_go_to_aotautograd():
    reference = Reference()
    reference.compile(lambda x: x.sin(), dynamic=True)(leaf(3, 3))
    assert "symbolic" in why(reference)
    reference = Reference()
    with torch.autocast("cpu"):
        reference.compile(lambda x: x @ x)(leaf(3, 3))
    assert "autocast" in why(reference)


def test_unused_results_and_inputs():
    x, y = leaf(3), leaf(3)
    reference = Reference()
    a, b = reference.compile(lambda x, y: (x.sin(), x.exp()))(x, y)
    b.sum().backward()
    torch.testing.assert_close(x.grad, x.exp())
    assert y.grad is None
    assert a.requires_grad
    compiled = Reference().compile(lambda x, y: (x * y, x.exp(), y.sin()))
    compiled(x, y)[1].sum().backward()
    assert y.grad is None
    compiled(x, y)[0].sum().backward()
    torch.testing.assert_close(y.grad, x.detach())
    assert traced_per_call(reference)


def test_gradients_cannot_silently_be_differentiated_again():
    x = leaf(3)
    out = Reference().compile(lambda x: (F.dropout(x, 0.5) ** 3 * 0.0 + x**3).sum())(x)
    (grad,) = torch.autograd.grad(out, x, create_graph=True)
    torch.testing.assert_close(grad.detach(), 3 * x.detach() ** 2)
    with pytest.raises(RuntimeError, match="differentiated twice"):
        (grad.sum() + out).backward()


def test_gradients_of_gradients_are_refused_where_only_the_incoming_gradient_leads():
    x, v = leaf(3), leaf(3)
    out = Reference().compile(lambda x: F.dropout(x, 0.5) * 0.0 + x.sin() * 2)(x)
    (grad,) = torch.autograd.grad(out, x, v, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiated twice"):
        torch.autograd.grad(grad.sum(), v, allow_unused=True)


def test_inputs_are_let_go_after_the_backward():
    w = leaf(4)
    compiled = Reference().compile(lambda x: x + 1.0)
    compiled(w * 2).sum().backward()  # compiling holds its inputs for longer
    x = w * 2
    kept, loss = weakref.ref(x), compiled(x).sum()
    del x
    loss.backward(retain_graph=True)
    assert kept() is not None
    loss.backward()
    assert kept() is None


@torch.library.custom_op("lamina_tests::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    assert x.is_contiguous()
    return x * 2


doubled.register_fake(torch.empty_like)
doubled.register_autograd(lambda ctx, gradient: doubled(gradient.contiguous()))


def test_a_users_operation_gets_the_contiguous_gradient_it_asks_for():
    reference = Reference()
    x, gradient = leaf(4, 6), torch.randn(6, 4).t()
    reference.compile(lambda x: doubled(x) + 1.0)(x).backward(gradient)
    torch.testing.assert_close(x.grad, gradient * 2)
    assert traced_per_call(reference)


def test_a_saved_input_written_to_after_the_forward_is_an_error():
    x = leaf(3)
    w = torch.randn(3)
    out = Reference().compile(lambda x, w: (x * w).sum())(x, w)
    w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


def test_written_inputs_count_as_written():
    w, x = torch.randn(3), leaf(3)
    expression = (x * w).sum()

    def f(w):
        w.add_(1)
        return w.sum()

    reference = Reference()
    reference.compile(f)(w)
    assert traced_per_call(reference)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        expression.backward()


def test_threads_share_one_backward():
    reference = Reference()
    x = leaf(64)
    compiled = reference.compile(lambda x: (x.sin() * x).sum())
    out = compiled(x)
    threads = [threading.Thread(target=lambda: torch.autograd.grad(out, x, retain_graph=True)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [r.kind for r in reference.regions] == ["forward", "backward"]


UNARY = (
    torch.sin, torch.tanh, torch.sigmoid, F.gelu, F.silu, lambda t: t * 0.5, lambda t: t.t(), lambda t: t.contiguous(),
    lambda t: t - t.mean(), lambda t: F.softmax(t, -1), lambda t: F.layer_norm(t, t.shape[-1:]),
    lambda t: t.detach() + t, lambda t: t.flip(0), lambda t: t.roll(1, 1), lambda t: t.reshape(-1).view(t.shape),
    lambda t: t.add(1).mul_(2), lambda t: torch.cat(t.chunk(2, 1)[::-1], 1), lambda t: t.masked_fill(t > 1, 0.0),
)  # fmt: skip
BINARY = (torch.add, torch.mul, torch.matmul, torch.minimum, lambda a, b: torch.where(a > b, a, b), torch.sub)


@pytest.mark.sampled(one_in=9)
@pytest.mark.parametrize("seed", range(25))
def test_random_programs(seed):
    chance = random.Random(seed)
    steps = []
    for _ in range(chance.randint(3, 12)):
        if chance.random() < 0.6:
            steps.append((chance.choice(UNARY), chance.random(), None))
        else:
            steps.append((chance.choice(BINARY), chance.random(), chance.random()))

    def program(x, y):
        values = [x, y]
        for function, first, second in steps:
            a = values[int(first * len(values))]
            values.append(function(a) if second is None else function(a, values[int(second * len(values))]))
        return values[-1] + values[len(values) // 2] * 0.5, values[-2] * 2

    reference = Reference()
    inputs = leaf(4, 4), leaf(4, 4)
    actual, expected = gradients(reference.compile(program), inputs), gradients(program, inputs)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert traced_per_call(reference), why(reference)


def test_a_sum_to_differentiate_on_a_gpu_is_left_to_eager(monkeypatch):
    monkeypatch.setattr(run, "device_of", lambda joint: "cuda")
    for function, left in ((lambda x: x.sum((0, 2)), True), (lambda x: (x * x).sum(0), False)):
        torch._dynamo.reset()
        reference = check(function, leaf(4, 5, 6))
        assert [d.taken for d in reference.record.decisions("eager")] == [True] * left
        assert any(stage.name == "partition" for stage in reference.record.stages) != left


def test_a_sum_that_takes_a_gpu_longer_than_the_host_is_compiled(monkeypatch):
    monkeypatch.setattr(run, "device_of", lambda joint: "cuda")
    reference = Reference()
    compiled = reference.compile(lambda x: x.sum(0))
    x = torch.ones(64, 1 << 19, requires_grad=True)  # 128 MiB
    compiled(x).sum().backward()
    assert not reference.record.decisions("eager")
    assert any(stage.name == "partition" for stage in reference.record.stages)
    assert torch.equal(x.grad, torch.ones_like(x))


torch.library.define("lamina_tests::scaled_by_length", "(Tensor x) -> (Tensor, SymInt)")
torch.library.define("lamina_tests::scaled_by_length_backward", "(Tensor gradient, SymInt length) -> Tensor")
for _key in ("CompositeExplicitAutograd", "Meta"):
    torch.library.impl("lamina_tests::scaled_by_length", _key, lambda x: (x * x.shape[0], x.shape[0]))
    torch.library.impl("lamina_tests::scaled_by_length_backward", _key, lambda g, length: g * length)


def _keep_length(ctx, inputs, output):
    ctx.length = output[1]


torch.library.register_autograd(
    "lamina_tests::scaled_by_length",
    lambda ctx, g, _: torch.ops.lamina_tests.scaled_by_length_backward(g, ctx.length),
    setup_context=_keep_length,
)


@torch.compiler.allow_in_graph
def scaled_by_length(x):
    return torch.ops.lamina_tests.scaled_by_length(x)[0]


def test_operations_that_give_sizes_beside_tensors_are_stitched():
    """The library's attention is one: its backward takes how long the sequences were."""
    reference = check(lambda x: scaled_by_length(x.sin()) * x, leaf(4, 3))
    (call,) = [n for n in reference.graph("backward").nodes if "scaled_by_length_backward" in str(n.target)]
    assert call.args[1] == 4


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.cat([torch.tensor([]), x.flatten()]) * 2,
        lambda x: (x * 2, torch.tensor([[]]), torch.tensor([], dtype=torch.int64)),
    ],
)
def test_tensors_of_no_numbers_are_made_by_a_call(function):
    """They are none of the operands: a graph with one was left to AOTAutograd, and so not stored."""
    check(function, leaf(4, 4))


def test_constants_made_inside_go_to_aotautograd():
    check(lambda x: x[torch.tensor([0, 2, 2])] * torch.tensor(2.0), leaf(4, 4), expect=False)


_WRITES = {
    "relu": lambda x: F.relu(x.sin(), inplace=True) * 2,
    "hardswish": lambda x: F.hardswish(x * 3, inplace=True).exp(),
    "silu": lambda x: F.silu(x * 3, inplace=True).exp(),
    "add_": lambda x: (x * 2).add_(x, alpha=3).cos(),
    "twice": lambda x: F.relu((x * 2).add_(1), inplace=True).sin(),
    "wider": lambda x: (x * 2).sub_(x[0]) + x,
    "masked_fill_": lambda x: (x * 2).masked_fill_(x > 0, 0.5).sin(),
}


@pytest.mark.parametrize("name", _WRITES)
def test_calls_that_write_element_by_element_are_recorded(name, monkeypatch):
    monkeypatch.setattr("lamina.aot.trace._functionalized", None)
    check(_WRITES[name], leaf(4, 5))


def test_running_statistics_are_recorded(monkeypatch):
    monkeypatch.setattr("lamina.aot.trace._functionalized", None)
    for training in (True, False):
        ours, theirs = (torch.nn.BatchNorm2d(3).train(training) for _ in range(2))
        x = leaf(2, 3, 4, 4)
        reference = Reference()
        torch.testing.assert_close(gradients(reference.compile(ours), [x]), gradients(theirs, [x]))
        torch.testing.assert_close(ours.state_dict(), theirs.state_dict())
        assert traced_per_call(reference), why(reference)


def test_writes_that_change_sizes_or_meet_a_view_are_not_recorded():
    def turned(x):
        y = x.sin()
        y.t_()
        return y * 2

    def aliased(x):
        y = x.sin()
        y.view(-1).add_(1)
        return y * 2

    for function in (turned, aliased):
        x = leaf(4, 5)
        torch.testing.assert_close(gradients(Reference().compile(function), [x]), gradients(function, [x]))


def test_a_captured_transform_that_raises_while_it_is_traced_leaves_nothing_behind() -> None:
    """torch.func forbids hooks on saved tensors while it differentiates; the calls that do so are in the graph."""
    net = torch.nn.Linear(4, 4)

    def inside(x: Tensor) -> Any:
        return torch.func.grad(lambda p: torch.func.functional_call(net, p, (x,)).square().sum())(
            dict(net.named_parameters())
        )

    before = state_of_thread()
    torch.compiler.reset()
    compiled = lamina.compile(inside, options={"strict": True})
    for number in range(2):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t) if number else nullcontext():
            x = torch.ones(3, 4, requires_grad=True) * 1
        found, wanted = compiled(x), inside(x)
        assert state_of_thread() == before
        torch.testing.assert_close(found, wanted)
        sum(t.sum() for t in found.values()).backward()
        assert state_of_thread() == before
