"""Activations handed to the library: where, and that shapes and layouts stay."""

import pytest
import torch
import torch.nn.functional as F

from lamina.base.devices import on_host
from lamina.rewrite.epilogues import library_epilogues
from lamina.rewrite.passes import remove_dead_code
from lamina.rewrite.verify import verify_fx

from .test_passes import aten, count, graph_of

FUSED = (
    aten._addmm_activation.default,
    aten.cudnn_convolution_relu.default,
    aten.cudnn_convolution_add_relu.default,
)


def draw(*shapes, dtype=torch.bfloat16):
    torch.manual_seed(0)
    return [torch.randn(s).to(dtype) for s in shapes]


def last(*tensors):
    return [t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t for t in tensors]


def rewritten(function, *inputs, finite=True):
    """The new graph, how many calls took an activation, and the decisions."""
    notes = []
    before = remove_dead_code(graph_of(function, *inputs))
    after = library_epilogues(before, notes.append, where=on_host, finite=finite)
    assert (after is before) == (not any(note.taken for note in notes))
    verify_fx(after, "test")
    for a, b in zip(after.graph.output_node().args[0], before.graph.output_node().args[0], strict=True):
        assert a.meta["val"].shape == b.meta["val"].shape
        assert a.meta["val"].stride() == b.meta["val"].stride()
    return after, sum(count(after, target) for target in FUSED), notes


@pytest.mark.parametrize("activation", [F.relu, lambda x: F.gelu(x, approximate="tanh")])
@pytest.mark.parametrize("shape", [(6, 8), (2, 3, 8)])
def test_an_activation_of_a_linear_layer(activation, shape):
    inputs = draw(shape, (16, 8), (16,))
    after, calls, (note,) = rewritten(lambda x, w, b: (activation(F.linear(x, w, b)),), *inputs)
    assert calls == 1
    assert note.taken
    assert count(after, aten.addmm.default) == 0
    want = activation(F.linear(*inputs).float())
    torch.testing.assert_close(after(*inputs)[0].float(), want, rtol=2e-2, atol=2e-2)


def test_relu_stays_where_nan_may_come_up():
    x, w, b = draw((6, 8), (16, 8), (16,))
    image, filters = last(*draw((2, 8, 6, 6), (8, 8, 3, 3)))
    for function, inputs in (
        (lambda x, w, b: (F.relu(F.linear(x, w, b)),), (x, w, b)),
        (lambda x, w: (F.relu(F.conv2d(x, w)),), (image, filters)),
    ):
        _, calls, (note,) = rewritten(function, *inputs, finite=False)
        assert (calls, note.taken) == (0, False)
        assert "assume_finite" in note.reason
    assert rewritten(lambda x, w, b: (F.gelu(F.linear(x, w, b), approximate="tanh"),), x, w, b, finite=False)[1] == 1


def test_what_the_library_has_no_epilogue_for_stays():
    x, w, b = draw((6, 8), (16, 8), (16,))
    assert rewritten(lambda x, w, b: (F.gelu(F.linear(x, w, b)),), x, w, b)[1] == 0
    assert rewritten(lambda x, w: (F.relu(x @ w.t()),), x, w)[1] == 0
    assert rewritten(lambda x, w, b: (F.relu(F.linear(x, w, b)),), x.float(), w.float(), b.float())[1] == 0


def test_what_is_needed_before_the_activation_too_stays():
    x, w, b = draw((6, 8), (16, 8), (16,))

    def both(x, w, b):
        y = F.linear(x, w, b)
        return F.relu(y), y

    assert rewritten(both, x, w, b)[1] == 0
    assert rewritten(lambda x, w, b: (F.relu(y := F.linear(x, w, b)) + y,), x, w, b)[1] == 0


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_a_convolution_of_channels_last_images(added, bias):
    x, w, b, z = last(*draw((2, 8, 6, 6), (16, 8, 3, 3), (16,), (2, 16, 6, 6)))

    def block(x, w, b, z):
        y = F.conv2d(x, w, b if bias else None, padding=1)
        return (F.relu(z + y if added else y),)

    after, calls, (note,) = rewritten(block, x, w, b, z)
    assert calls == 1
    assert note.subject[0].startswith("convolution")
    (call,) = [n for n in after.graph.nodes if n.target in FUSED]
    assert call.target is FUSED[1 + added]
    placeholders = {n.target: n for n in after.graph.find_nodes(op="placeholder")}
    x_, w_, b_, z_ = placeholders.values()
    wanted = (x_, w_, *((z_, 1.0) if added else ()), b_ if bias else None, [1, 1], [1, 1], [1, 1], 1)
    assert [list(a) if isinstance(a, (list, tuple)) else a for a in call.args] == list(wanted)


def test_convolutions_that_are_laid_out_otherwise_or_need_other_kernels_stay():
    x, w, z = draw((2, 8, 6, 6), (16, 8, 3, 3), (2, 16, 4, 4))
    assert rewritten(lambda x, w: (F.relu(F.conv2d(x, w)),), x, w)[1] == 0
    assert rewritten(lambda x, w, z: (F.relu(F.conv2d(x, w) + z),), *last(x, w), z)[1] == 0
    depthwise, few = draw((8, 1, 3, 3), (2, 3, 6, 6))
    assert rewritten(lambda x, w: (F.relu(F.conv2d(x, w, groups=8)),), *last(x, depthwise))[1] == 0
    assert rewritten(lambda x, w: (F.relu(F.conv2d(x, w[:, :3])),), *last(few, w))[1] == 0


class Emulated(torch.fx.Interpreter):
    """Runs the library's fused convolutions as what they stand for, rounded once."""

    def call_function(self, target, args, kwargs):
        if target in FUSED[1:]:
            x, w, *added, b, steps, pad, dilation, groups = args
            y = F.conv2d(x.float(), w.float(), b if b is None else b.float(), steps, pad, dilation, groups)
            return torch.relu(y + added[0].float() if added else y).to(x.dtype)
        return super().call_function(target, args, kwargs)


def norm_parameters(channels, dtype):
    """Mean, variance, scale, shift; means and shifts as large as what the norm is applied to."""
    mean, scale, shift = draw((channels,), (channels,), (channels,), dtype=torch.float32)
    return [t.to(dtype) for t in (mean, mean.square() + 0.2, scale + 1, shift)]


def normed(y, mean, variance, scale, shift):
    return aten._native_batch_norm_legit_no_training(y, scale, shift, mean, variance, 0.1, 0.1)[0]


def as_exact_as_eager(function, inputs):
    """The new graph beside fp64, and the calls that took an activation; the error is at most twice eager's."""
    after, calls, notes = rewritten(function, *inputs)
    (ours,), (eager,) = Emulated(after).run(*inputs), function(*inputs)
    (exact,) = function(*[t.double() for t in inputs])
    assert (ours - exact).norm() <= 1.5 * (eager - exact).norm()
    assert (ours - exact).abs().max() <= 2 * (eager - exact).abs().max()
    return after, calls, notes


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("held", [torch.bfloat16, torch.float32])
def test_a_norm_of_fixed_statistics_goes_into_the_weights(added, bias, held):
    x, w, b, z = last(*draw((16, 8, 72, 72), (48, 8, 3, 3), (48,), (16, 48, 72, 72)))
    w = w / 8

    def block(x, w, b, z, *norm):
        y = normed(F.conv2d(x, w, b if bias else None, padding=1), *norm)
        return (F.relu(y + z if added else y),)

    after, calls, _ = as_exact_as_eager(block, [x, w, b, z, *norm_parameters(48, held)])
    assert calls == 1
    assert count(after, aten._native_batch_norm_legit_no_training.default) == 0
    assert count(after, aten.convolution.default) == 0


def test_two_branches_with_norms_share_their_shifts():
    x, h, v, w = last(*draw((16, 8, 144, 144), (16, 16, 72, 72), (48, 8, 1, 1), (48, 16, 1, 1)))

    def block(x, h, v, w, *norms):
        short = normed(F.conv2d(x, v, stride=2), *norms[:4])
        return (F.relu(normed(F.conv2d(h, w), *norms[4:]) + short),)

    norms = [*norm_parameters(48, torch.bfloat16), *(t.flip(0) for t in norm_parameters(48, torch.bfloat16))]
    after, calls, _ = as_exact_as_eager(block, [x, h, v, w, *norms])
    assert calls == 1
    assert count(after, aten._native_batch_norm_legit_no_training.default) == 0
    (plain,) = after.graph.find_nodes(op="call_function", target=aten.convolution.default)
    assert plain.args[2] is None


def test_norms_whose_pass_costs_less_than_scaling_weights_stay():
    def block(x, w, *norm):
        return (F.relu(normed(F.conv2d(x, w), *norm)),)

    norm = norm_parameters(48, torch.bfloat16)
    small, large, w = last(*draw((1, 8, 8, 8), (16, 8, 80, 80), (48, 8, 1, 1)))
    assert rewritten(block, small, w, *norm)[1] == 0
    assert rewritten(block, large, w, *norm)[1] == 1
    # Half precision with few exponents could overflow in the weights.
    assert rewritten(block, *[t.half() for t in (large, w, *norm)])[1] == 0


def test_norms_that_are_needed_otherwise_stay():
    def block(x, w, *norm):
        y = normed(F.conv2d(x, w), *norm)
        return F.relu(y), y

    def of_batch(x, w, *norm):
        return (F.relu(aten._native_batch_norm_legit.no_stats(F.conv2d(x, w), *norm[2:], True, 0.1, 1e-5)[0]),)

    x, w = last(*draw((16, 8, 80, 80), (48, 8, 1, 1)))
    norm = norm_parameters(48, torch.bfloat16)
    assert rewritten(block, x, w, *norm)[1] == 0
    assert rewritten(of_batch, x, w, *norm)[1] == 0


@pytest.mark.parametrize("ceil_mode", [False, True])
def test_a_norm_before_pooling_is_a_factor_and_a_shift_of_the_maxima(ceil_mode):
    """Channels are too few for the library's fused operation; factors below zero turn no maximum into a minimum."""

    def stem(x, w, *norm):
        return (F.max_pool2d(F.relu(normed(F.conv2d(x, w, padding=1), *norm)), 3, 2, 1, ceil_mode=ceil_mode),)

    x, w = last(*draw((16, 3, 80, 80), (48, 3, 3, 3)))
    norm = norm_parameters(48, torch.bfloat16)
    assert (norm[2] < 0).any()
    after, calls, (note,) = as_exact_as_eager(stem, [x, w, *norm])
    assert calls == 0
    assert note.taken
    assert count(after, aten._native_batch_norm_legit_no_training.default) == 0

    def dilated(x, w, *norm):
        return (F.max_pool2d(F.relu(normed(F.conv2d(x, w, padding=1), *norm)), 3, 2, 1, dilation=2),)

    assert rewritten(dilated, x, w, *norm)[2] == []
