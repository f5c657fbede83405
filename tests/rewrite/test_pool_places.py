"""Max pooling whose backward finds its maxima again from one or two bytes each."""

import pytest
import torch

from lamina.base.devices import on_host
from lamina.rewrite.pool_places import max_pool2d_offsets_backward, max_pool2d_with_offsets, short_pool_places
from lamina.rewrite.verify import verify_fx

from .test_passes import aten, graph_of

WINDOWS = (
    ([3, 3], [2, 2], [1, 1], [1, 1], False),
    ([2], [], [0], [1], False),
    ([3, 2], [1, 2], [1, 0], [2, 1], True),
    ([5, 3], [2, 3], [2, 1], [1, 2], True),
)


def both(*window):
    def step(x, g):
        y, places = aten.max_pool2d_with_indices(x, *window)
        return y, aten.max_pool2d_with_indices_backward(g, x, *window, places)

    return step


def operands(window, shape=(2, 3, 13, 17)):
    torch.manual_seed(0)
    x = torch.randn(shape)
    x[0, 0] = float("-inf")
    x[0, 1, 4:6, 4:6] = float("nan")
    return x, torch.randn(pooled_shape(x, window))


def pooled_shape(x, window):
    return aten.max_pool2d_with_indices(x, *window)[0].shape


@pytest.mark.parametrize(("width", "dtype"), [(17, torch.uint8), (130, torch.int16)])
@pytest.mark.parametrize("window", WINDOWS)
def test_places_are_kept_in_short(window, width, dtype):
    inputs = operands(window, (2, 3, 13, width))
    if len(window[0]) == 1:
        dtype = torch.uint8  # of windows of two columns no place is far from the corner
    before = graph_of(both(*window), *inputs)
    after = short_pool_places(before, where=on_host)
    assert after is not before
    verify_fx(after, "test")
    (pool,) = after.graph.find_nodes(op="call_function", target=max_pool2d_with_offsets)
    assert pool.meta["val"][1].dtype == dtype
    (backward,) = after.graph.find_nodes(op="call_function", target=max_pool2d_offsets_backward)
    assert backward.args[-1].meta["val"].dtype == dtype
    torch.testing.assert_close(after(*inputs), before(*inputs), equal_nan=True, rtol=0, atol=0)


def test_the_image_before_norm_and_relu_gives_the_shape():
    def step(x, w, g):
        n, mean, scale, *_ = aten._native_batch_norm_legit_functional(x, w, w, w, w, True, 0.1, 1e-5)
        r = torch.relu(n)
        y, places = aten.max_pool2d_with_indices(r, [3, 3], [2, 2], [1, 1])
        return (
            y,
            mean,
            scale,
            aten.max_pool2d_with_indices_backward(g, r, [3, 3], [2, 2], [1, 1], [1, 1], False, places),
        )

    torch.manual_seed(0)
    inputs = torch.randn(2, 4, 12, 12), torch.rand(4), torch.randn(2, 4, 6, 6)
    before = graph_of(step, *inputs)
    after = short_pool_places(before, where=on_host)
    (backward,) = after.graph.find_nodes(op="call_function", target=max_pool2d_offsets_backward)
    assert backward.args[1].op == "placeholder"
    torch.testing.assert_close(after(*inputs), before(*inputs))


def test_places_that_are_needed_or_too_far_stay():
    def returned(x, g):
        y, places = aten.max_pool2d_with_indices(x, [2, 2])
        return y, places, aten.max_pool2d_with_indices_backward(g, x, [2, 2], [2, 2], [0, 0], [1, 1], False, places)

    window = ([9, 2], [1, 1], [0, 0], [1, 1], False)
    wide = torch.zeros(1, 1, 9, 5000)
    for function, x, g in (
        (returned, torch.zeros(1, 1, 4, 4), torch.zeros(1, 1, 2, 2)),
        (both(*window), wide, torch.zeros(pooled_shape(wide, window))),
    ):
        gm = graph_of(function, x, g)
        assert short_pool_places(gm, where=on_host) is gm
        assert short_pool_places(gm) is gm
