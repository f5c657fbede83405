"""Channels-last images: which are chosen, that the caller sees nothing of it, and that few copies are left."""

import copy
import functools

import pytest
import torch
import torch.nn.functional as F

import lamina
from lamina.base.devices import on_host
from lamina.ir.loops import LibraryCall, Nest
from lamina.ir.loops_interp import run_program
from lamina.lower.to_loops import lower
from lamina.rewrite import order
from lamina.rewrite.layouts import channels_last, channels_last_on_cpu
from lamina.rewrite.passes import clean
from lamina.rewrite.verify import verify_fx
from lamina.schedule.fuse import fuse
from lamina.testing import judge

from .test_passes import aten, count, graph_of


def laid_out(function, *inputs):
    """The graph before and after, and the decision."""
    notes = []
    before = graph_of(function, *inputs)
    after = channels_last(before, notes.append, where=on_host)
    return before, after, notes


def check(function, *inputs):
    """The new graph run by ATen and by the loop interpreter gives eager's values and strides."""
    before, after, (note,) = laid_out(function, *inputs)
    assert note.taken
    assert note.kind == "layout"
    after = clean(after)
    verify_fx(after, "test")
    program = fuse(lower(after, "test")).program
    exact = before(*[x.double() for x in inputs])
    want = before(*inputs)
    for results in (after(*inputs), run_program(program, list(inputs))):
        for got, reference, truth in zip(results, want, exact, strict=True):
            assert got.dtype == reference.dtype
            assert (got - truth).abs().max() <= 2 * (reference - truth).abs().max() + 1e-5 * truth.abs().max()
    for got, reference in zip(run_program(program, list(inputs)), want, strict=True):
        assert got.stride() == reference.stride()
    return after, program


def draw(*shapes):
    torch.manual_seed(0)
    return [torch.randn(s) for s in shapes]


def batch_norm(x, scale, shift, mean, variance):
    return aten._native_batch_norm_legit_no_training(x, scale, shift, mean, variance, 0.1, 1e-5)[0]


def bottleneck(x, w1, w2, w3, scale, shift, mean, variance, scale3, shift3, mean3, variance3):
    a = F.relu(batch_norm(F.conv2d(x, w1), scale, shift, mean, variance))
    b = F.relu(batch_norm(F.conv2d(a, w2, padding=1), scale, shift, mean, variance))
    return (F.relu(batch_norm(F.conv2d(b, w3), scale3, shift3, mean3, variance3) + x),)


def bottleneck_inputs():
    vectors = [(8,), (8,), (8,), (8,), (32,), (32,), (32,), (32,)]
    x, *rest = draw((2, 32, 6, 6), (8, 32, 1, 1), (8, 8, 3, 3), (32, 8, 1, 1), *vectors)
    for k in (6, 10):
        rest[k] = rest[k].abs() + 0.5
    return x, *rest


def test_a_bottleneck_is_one_kernel_after_each_convolution():
    after, program = check(bottleneck, *bottleneck_inputs())
    # The 3x3 weights, and its image as the first norm's kernel writes it: the last kernel's result is eager's.
    assert count(after, aten.clone.default) == 2
    calls = [s for s in program.steps if isinstance(s, LibraryCall)]
    nests = [s for s in program.steps if isinstance(s, Nest)]
    assert len(calls) == 3
    assert len(nests) == 1 + 3
    buffers = program.buffer_map()
    assert [buffers[call.outs[0]].strides[1] == 1 for call in calls] == [False, True, True]


def test_the_gradients_of_a_bottleneck():
    def step(x, w1, w2, g):
        y = F.relu(F.conv2d(F.relu(F.conv2d(x, w1, padding=1)), w2, padding=1)) + x
        return torch.autograd.grad(y, (x, w1, w2), g)

    inputs = draw((2, 8, 6, 6), (16, 8, 3, 3), (8, 16, 3, 3), (2, 8, 6, 6))
    for x in inputs[:3]:
        x.requires_grad_()
    before, after, (note,) = laid_out(step, *inputs)
    assert note.taken
    plain = [x.detach() for x in inputs]
    program = fuse(lower(clean(after), "test")).program
    for got, want in zip(run_program(program, plain), before(*plain), strict=True):
        assert got.stride() == want.stride()
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_convolutions_of_single_pixels_follow_what_they_are_given():
    def only(x, w):
        return (F.conv2d(F.relu(F.conv2d(x, w)), w),)

    before, after, notes = laid_out(only, *draw((2, 8, 6, 6), (8, 8, 1, 1)))
    assert after is before
    assert not notes


def test_float64_and_one_channel_in_float32_stay():
    def twice(x, w):
        return (F.conv2d(F.relu(F.conv2d(x, w, groups=w.shape[0])), w, groups=w.shape[0]),)

    before, after, notes = laid_out(twice, *draw((2, 8, 6, 6), (8, 1, 3, 3)))
    assert after is before
    assert not notes
    doubles = [x.double() for x in draw((2, 8, 6, 6), (8, 8, 3, 3))]
    before, after, notes = laid_out(lambda x, w: (F.conv2d(F.relu(F.conv2d(x, w)), w),), *doubles)
    assert after is before
    assert not notes


def test_one_channel_a_group_in_half_precision_is_worth_the_copies():
    """Its library kernel is bound by arithmetic where the pixels are innermost."""

    def block(x, w):
        return (F.conv2d(x, w, padding=3, groups=w.shape[0]),)

    inputs = [x.bfloat16() for x in draw((2, 8, 9, 9), (8, 1, 7, 7))]
    before, after, (note,) = laid_out(block, *inputs)
    assert note.taken
    assert after(*inputs)[0].stride() == before(*inputs)[0].stride()


def test_what_is_channels_last_already_stays():
    x, w = (t.contiguous(memory_format=torch.channels_last) for t in draw((2, 8, 6, 6), (8, 8, 3, 3)))
    before, after, notes = laid_out(lambda x, w: (F.conv2d(F.relu(F.conv2d(x, w)), w),), x, w)
    assert after is before
    assert not notes


def test_returned_views_keep_the_strides_of_eager():
    def features(x, w, v):
        y = F.relu(F.conv2d(F.relu(F.conv2d(x, w, padding=1)), w, padding=1))
        z = F.conv2d(y, v)
        return y.flatten(2), z.mean((2, 3)), z

    check(features, *draw((2, 8, 6, 6), (8, 8, 3, 3), (8, 8, 3, 3)))


def test_views_that_the_new_strides_do_not_allow_become_copies():
    def classify(x, w, m):
        y = F.relu(F.conv2d(F.relu(F.conv2d(x, w, padding=1)), w, padding=1))
        return (y.view(2, -1) @ m,)

    after, _ = check(classify, *draw((2, 8, 4, 4), (8, 8, 3, 3), (128, 8)))
    assert count(after, aten.reshape.default) == 1


def test_pooling_concatenation_and_depthwise_convolutions_follow():
    def stem(x, w, d):
        y = F.max_pool2d(F.relu(F.conv2d(x, w, padding=1)), 3, 2, 1)
        y = torch.cat([y, F.conv2d(y, d, padding=1, groups=8)], 1)
        return (F.conv2d(F.interpolate(y, scale_factor=2.0), torch.cat([w, w], 1)).sum((2, 3)),)

    after, _ = check(stem, *draw((2, 8, 8, 8), (8, 8, 3, 3), (8, 1, 3, 3)))
    images = [n.meta["val"] for n in after.graph.nodes if n.op == "call_function"]
    images = [v for v in images if isinstance(v, torch.Tensor) and v.dim() == 4 and v.shape[1:3] == (8, 4)]
    assert images
    assert all(v.stride(1) == 1 for v in images)


@pytest.mark.parametrize("dims", [4, 5])
def test_volumes(dims):
    convolve = F.conv2d if dims == 4 else F.conv3d
    size, kernel = (5,) * (dims - 2), (3,) * (dims - 2)

    def f(x, w):
        return (convolve(F.silu(convolve(x, w, padding=1)), w, padding=1).amax(tuple(range(2, dims))),)

    check(f, *draw((2, 8, *size), (8, 8, *kernel)))


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(8, 8, 3, padding=1), torch.nn.Conv2d(8, 8, 1)
        self.norm = torch.nn.BatchNorm2d(8)

    def forward(self, x):
        return F.relu(self.norm(self.second(F.relu(self.first(x)))) + x)


def test_a_network_trains_as_eagerly(monkeypatch):
    """Through capture, differentiation and partition: gradients, statistics and strides are eager's."""
    on_cpu = functools.partial(channels_last, where=on_host)
    monkeypatch.setattr(order, "PASSES", order.changed("channels_last", lambda usual: on_cpu))
    torch.manual_seed(0)
    ours = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, 2, 1), Block(), Block(), torch.nn.Flatten())
    theirs = copy.deepcopy(ours)
    compiled = lamina.compile(ours, backend="interp", options={"strict": True})
    x = torch.randn(2, 3, 12, 12)
    got, want = compiled(x), theirs(x)
    assert got.stride() == want.stride()
    torch.testing.assert_close(got, want)
    got.square().sum().backward()
    want.square().sum().backward()
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert all(s == t or n == 1 for s, t, n in zip(a.grad.stride(), b.grad.stride(), a.shape, strict=True))
        if "second.bias" not in name:  # a bias before a norm: its gradient is nothing but rounding
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4)
    for a, b in zip(ours.buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(a, b)
    (choice,) = compiled.record.decisions("layout")
    assert choice.taken


def on_cpu(function, *inputs):
    notes = []
    before = graph_of(function, *inputs)
    after = channels_last_on_cpu(before, notes.append)
    return before, after, notes


def test_depthwise_convolutions_of_a_cpu_are_laid_out_once():
    def blurred(x, w):
        y = F.conv2d(F.pad(x, (2, 2, 2, 2), mode="reflect"), w, groups=w.shape[0])
        return (y - x,)

    inputs = draw((2, 16, 32, 32), (16, 1, 5, 5))
    before, after, (note,) = on_cpu(blurred, *inputs)
    assert note.taken
    program = fuse(lower(clean(after), "test")).program
    (call,) = [s for s in program.steps if isinstance(s, LibraryCall)]
    assert [program.buffer_map()[name].strides[1] for name in (call.args[0].buffer, call.outs[0])] == [1, 1]
    for got, want in zip(run_program(program, list(inputs)), before(*inputs), strict=True):
        assert got.stride() == want.stride()
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_on_a_cpu_weights_count_and_dense_convolutions_are_turned_in_bfloat16_only():
    def twice(x, w):
        return (F.relu(F.conv2d(F.silu(F.conv2d(x, w, padding=1)), w, padding=1)) + 1,)

    def trained(x, w):
        (y,) = twice(x, w)
        return torch.autograd.grad(y.sum(), (w,))

    small, large = draw((4, 16, 32, 32), (16, 16, 3, 3)), draw((2, 64, 4, 4), (64, 64, 3, 3))
    assert not on_cpu(twice, *small)[2]
    assert [note.taken for note in on_cpu(twice, *(x.bfloat16() for x in small))[2]] == [True]
    assert not on_cpu(twice, *(x.bfloat16() for x in large))[2]
    small[1].requires_grad_()
    assert not on_cpu(trained, *small)[2]
    halves = [x.detach().bfloat16().requires_grad_(x.requires_grad) for x in small]
    assert [note.taken for note in on_cpu(trained, *halves)[2]] == [True]


def test_a_convolution_with_large_weights_keeps_the_pixels_innermost_after_one_that_turns_them():
    def f(x, d, w):
        return (F.conv2d(F.relu(F.conv2d(x, d, padding=1, groups=64)), w, padding=1).sum((2, 3)),)

    _, after, (note,) = on_cpu(f, *draw((2, 64, 12, 12), (64, 1, 3, 3), (128, 64, 3, 3)))
    last = [n.args[0].meta["val"].stride(1) == 1 for n in after.graph.nodes if n.target is aten.convolution.default]
    assert note.taken
    assert last == [True, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_convolutions_of_a_cpu_train_as_eagerly(dtype):
    def f(x, d, w, b):
        y = F.conv2d(F.gelu(F.conv2d(x, d, padding=2, groups=16)), w, b, padding=1)
        return y.sigmoid().mean((2, 3))

    inputs = [t.to(dtype).requires_grad_() for t in draw((2, 16, 24, 24), (16, 1, 5, 5), (8, 16, 3, 3), (8,))]
    exact = [t.detach().double().requires_grad_() for t in inputs]
    compiled = lamina.compile(f, options={"strict": True})
    results = []
    for function, given in ((compiled, inputs), (f, inputs), (f, exact)):
        y = function(*given)
        results.append([y, *torch.autograd.grad((y * torch.arange(8)).sum(), given)])
    assert any(d.taken for d in compiled.record.decisions("layout"))
    for got, want, truth in zip(*results, strict=True):
        assert got.stride() == want.stride()
        assert not judge(got, want, truth)
