"""Activations handed to the library: where, and that shapes and layouts stay."""

import pytest
import torch
import torch.nn.functional as F

from lamina.rewrite.epilogues import library_epilogues
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


def rewritten(function, *inputs):
    """The new graph, how many calls took an activation, and the decisions."""
    notes = []
    before = graph_of(function, *inputs)
    after = library_epilogues(before, notes.append, device="cpu")
    assert (after is before) == (not notes)
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
