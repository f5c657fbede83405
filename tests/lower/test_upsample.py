"""Resampling and rearranging blocks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from lamina.ir.loops import Load, Nest
from lamina.lower.to_loops import lower

from .harness import check, outcome
from .samples import check_samples
from .torch_private import traced

aten = torch.ops.aten
MODES: list[dict[str, Any]] = [
    {"mode": "nearest"},
    {"mode": "nearest-exact"},
    {"mode": "bilinear"},
    {"mode": "bilinear", "align_corners": True},
]


@pytest.mark.sampled(one_in=6)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "name",
    [f"nn.functional.interpolate.{mode}" for mode in ("nearest", "nearest-exact", "linear", "bilinear", "trilinear")]
    + [f"nn.functional.{name}" for name in ("pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "unfold")],
)
def test_samples(name: str, dtype: torch.dtype) -> None:
    check_samples(name, dtype, gpu="interpolate" in name)


X = torch.randn(2, 3, 10, 11)


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("size", [(20, 22), (30, 11), (13, 17), (5, 4), (1, 1)])
def test_sizes(size: tuple[int, int], mode: dict[str, Any]) -> None:
    check(lambda x: F.interpolate(x, size, **mode), X, gpu=True)


@pytest.mark.parametrize("mode", MODES[:3], ids=str)
def test_a_given_scale_is_used_as_given(mode: dict[str, Any]) -> None:
    check(lambda x: F.interpolate(x, scale_factor=1.7, **mode), X, gpu=True)


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_uneven_places_within_rows_are_in_nests(mode: dict[str, Any]) -> None:
    """Whole vectors of channels and whole rows are weighted; the nearest elements are found in a table."""
    found = outcome(lambda x: F.interpolate(x, (17, 17), **mode), [X])
    assert not found.complaints
    assert not found.library
    check(lambda x: F.interpolate(x, (17, 17), **mode), X.to(memory_format=torch.channels_last))
    check(lambda x: F.interpolate(x, (17, 11), **mode), X)
    if mode["mode"] == "nearest":
        check(lambda x: F.interpolate(x, (17, 22), **mode), X)


@pytest.mark.parametrize("exact", ["", "_exact"])
def test_gradients(exact: str) -> None:
    name = f"{'_' if exact else ''}upsample_nearest{exact}2d_backward"
    backward, shape = getattr(aten, name), [2, 3, 10, 11]
    check(lambda g: backward(g, [20, 33], shape), torch.randn(2, 3, 20, 33))
    for size in ([13, 17], [5, 4], [1, 1], [10, 33], [37, 45]):
        found = outcome(lambda g, size=size: backward(g, size, shape), [torch.randn(2, 3, *size)])
        assert not found.complaints
        assert [op for op, _ in found.library] == ([f"aten.{name}.default"] if size == [37, 45] else [])


RESIZED = [
    ("linear", (2, 3, 33), (50,)),
    ("linear", (2, 3, 33), (7,)),
    ("bilinear", (2, 3, 10, 11), (13, 17)),
    ("bilinear", (2, 3, 10, 11), (5, 4)),
    ("bilinear", (2, 3, 10, 11), (40, 44)),
    ("bilinear", (2, 3, 4, 64), (6, 7)),
    ("bilinear", (2, 3, 10, 11), (10, 17)),
    ("bilinear", (2, 3, 10, 11), (13, 11)),
    ("bilinear", (2, 3, 1, 3), (4, 5)),
    ("bilinear", (2, 3, 4, 5), (1, 1)),
    ("bilinear", (2, 3, 1, 1), (12, 12)),
    ("bicubic", (2, 3, 10, 11), (20, 22)),
    ("bicubic", (2, 3, 10, 11), (13, 17)),
    ("bicubic", (2, 3, 10, 11), (5, 4)),
    ("bicubic", (2, 3, 10, 11), (10, 17)),
    ("bicubic", (2, 3, 1, 2), (4, 5)),
    ("trilinear", (1, 2, 5, 6, 7), (7, 9, 10)),
    ("trilinear", (1, 2, 5, 6, 7), (10, 12, 14)),
]
"""Modes, shapes and new sizes: larger, smaller, kept, of rows much longer than what becomes of them."""


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize(("mode", "shape", "size"), RESIZED, ids=str)
def test_weights_within_rows_are_in_nests(
    mode: str, shape: tuple[int, ...], size: tuple[int, ...], corners: bool, dtype: torch.dtype
) -> None:
    """Infinities too: some weights of eager's are zero."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)

    def resized(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, size, mode=mode, align_corners=corners)

    found = outcome(resized, [x])
    assert not found.complaints
    assert not found.library
    for place in {0, shape[-1] // 2, shape[-1] - 1} if dtype == torch.float32 else ():
        odd = x.clone()
        odd[0, 0, ..., place] = float("inf")
        odd[0, 1, ..., place] = float("nan")
        check(resized, odd)


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize(("mode", "shape", "size"), RESIZED, ids=str)
def test_gradients_of_weights_within_rows_are_in_nests(
    mode: str, shape: tuple[int, ...], size: tuple[int, ...], corners: bool, dtype: torch.dtype
) -> None:
    backward = getattr(aten, f"upsample_{mode}{len(size)}d_backward")
    gradient = torch.randn(*shape[:2], *size, generator=torch.Generator().manual_seed(0)).to(dtype)

    def resized(g: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = backward(g, size, shape, corners)
        return found

    found = outcome(resized, [gradient])
    assert not found.complaints
    assert not found.library
    for place in (0, 1, -1) if dtype == torch.float32 else ():
        for dim in range(2, gradient.dim()):
            odd = gradient.clone()
            odd.select(dim, min(place, odd.shape[dim] - 1)).select(0, 0).fill_(float("inf"))
            check(resized, odd)


@pytest.mark.parametrize("scales", [(0.9, 1.9), (1.6, 1.6), (1.5, 1.2)])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_given_scales_within_rows_are_used_as_given(mode: str, scales: tuple[float, float]) -> None:
    """Other factors than those of the sizes, by which places reach far beyond the image or not to its end."""
    forward, backward = getattr(aten, f"upsample_{mode}2d"), getattr(aten, f"upsample_{mode}2d_backward")
    size, shape = [14, 18], [2, 3, 10, 11]
    for function, x in (
        (lambda x: forward(x, size, False, *scales), X),
        (lambda g: backward(g, size, shape, False, *scales), torch.randn(2, 3, *size)),
    ):
        found = outcome(function, [x])
        assert not found.complaints
        assert not found.library


def test_gradients_that_gather_at_an_edge_are_left_to_the_library() -> None:
    gradient = torch.randn(2, 3, 60, 60)
    shape = [2, 3, 10, 11]
    found = outcome(lambda g: aten.upsample_bilinear2d_backward(g, [60, 60], shape, False, 0.5, 0.5), [gradient])
    assert not found.complaints
    assert [op for op, _ in found.library] == ["aten.upsample_bilinear2d_backward.default"]


WINDOWS = (
    ([3, 2], [1, 2], [1, 0], [2, 1]),
    ([2, 2], [1, 1], [0, 0], [2, 2]),
    ([3, 4], [1, 1], [2, 1], [1, 3]),
    ([2, 1], [1, 1], [0, 1], [3, 2]),
    ([5, 3], [1, 1], [1, 2], [2, 3]),
)
"""Sizes, dilations, paddings, steps: patches that overlap, touch, and leave out elements between them."""


@pytest.mark.parametrize("window", WINDOWS)
def test_patches_to_columns_and_back(window: tuple[list[int], ...]) -> None:
    for x in (X, X[0]):
        check(lambda x: aten.im2col(x, *window), x)
        check(lambda c: aten.col2im(c, [10, 11], *window), aten.im2col(x, *window))


def test_an_element_looks_for_no_more_patches_than_it_is_in() -> None:
    columns = torch.randn(2, 3 * 16, 9)
    program = lower(traced(lambda c: aten.col2im(c, [12, 12], [4, 4], [1, 1], [0, 0], [4, 4]), [columns]), "test")
    (nest,) = (step for step in program.steps if isinstance(step, Nest))
    assert sum(isinstance(eqn, Load) for eqn in nest.body) == 1


CUBIC: dict[str, Any] = {"mode": "bicubic"}


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("size", [(20, 22), (13, 11), (5, 4), (1, 1), (10, 11), (10, 7)])
def test_on_gpus_cubic_weights_are_in_kernels(size: tuple[int, int], corners: bool, dtype: torch.dtype) -> None:
    found = outcome(lambda x: F.interpolate(x, size, align_corners=corners, **CUBIC), [X.to(dtype)], gpu=True)
    assert not found.complaints
    assert not found.library


@pytest.mark.parametrize(("size", "scales"), [((5, 5), (0.5, 0.5)), ((17, 18), (1.7, 1.7)), ((10, 27), (1.0, 2.5))])
def test_a_given_scale_of_cubic_weights(size: tuple[int, int], scales: tuple[float, float]) -> None:
    infinite = X.clone()
    infinite[0, 0, 3, 4], infinite[1, 2, 0, 0], infinite[1, 1, 9, 10] = float("inf"), float("nan"), -float("inf")
    for x in (X, infinite):
        check(lambda x: aten.upsample_bicubic2d(x, size, False, *scales), x, gpu=True)


def test_on_cpus_cubic_weights_of_channels_side_by_side_are_left_to_the_library() -> None:
    found = outcome(lambda x: F.interpolate(x, (20, 22), **CUBIC), [X.to(memory_format=torch.channels_last)])
    assert [op for op, _ in found.library] == ["aten.upsample_bicubic2d.default"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize(
    ("mode", "shape", "factors"),
    [
        ("linear", (2, 3, 33), (2,)),
        ("linear", (2, 3, 5), (4,)),
        ("bilinear", (2, 3, 10, 11), (2, 2)),
        ("bilinear", (2, 3, 10, 40), (1.7, 4)),
        ("bilinear", (1, 2, 3, 2), (1, 2)),
        ("bilinear", (1, 2, 20, 70), (0.5, 2)),
        ("trilinear", (1, 2, 5, 6, 7), (2, 2, 2)),
    ],
)
def test_rows_twice_or_four_times_as_long_are_weighted_in_nests(
    mode: str, shape: tuple[int, ...], factors: tuple[float, ...], dtype: torch.dtype
) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)

    def resized(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, scale_factor=factors, mode=mode)

    found = outcome(resized, [x])
    assert not found.complaints
    assert not found.library
    for place in (0, 1, -1):
        odd = x.clone()
        odd[0, 0, ..., place] = float("inf")
        odd[0, 1, ..., place] = float("nan")
        check(resized, odd)


@pytest.mark.parametrize("size", [(10, 22), (20, 11), (10, 11)])
def test_infinities_where_a_dimension_keeps_its_size(size: tuple[int, int]) -> None:
    x = X.clone()
    x[0, 0, 3, 4] = float("inf")
    for one in (x, x.to(memory_format=torch.channels_last)):
        check(lambda x: F.interpolate(x, size, mode="bilinear"), one)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize(
    ("rank", "shape", "size"),
    [
        (1, [2, 3, 7], [14]),
        (1, [2, 3, 7], [28]),
        (2, [2, 3, 5, 20], [10, 40]),
        (2, [2, 3, 5, 20], [5, 40]),
        (2, [2, 3, 2, 2], [4, 4]),
    ],
)
def test_gradients_of_rows_twice_or_four_times_as_long_are_nests(
    rank: int, shape: list[int], size: list[int], dtype: torch.dtype
) -> None:
    """Infinities too: some weights of eager's are zero."""
    backward = aten.upsample_linear1d_backward if rank == 1 else aten.upsample_bilinear2d_backward
    gradient = torch.randn(*shape[:2], *size, generator=torch.Generator().manual_seed(0)).to(dtype)

    def resized(g: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = backward(g, size, shape, False)
        return found

    check(resized, gradient)
    for place in (0, 1, 2, -1):
        for dim in range(-rank, 0):
            odd = gradient.clone()
            odd.select(dim, place).select(0, 0).fill_(float("inf"))
            check(resized, odd)


def _weighted(x: torch.Tensor, sizes: tuple[int, ...], ratios: tuple[float, ...]) -> torch.Tensor:
    """Linear interpolation as ATen's kernels for GPUs have it: each dimension by its ratio, whatever its size."""
    for dim, (size, ratio) in enumerate(zip(sizes, ratios, strict=True), 2):
        last = x.shape[dim] - 1
        real = ((torch.arange(size) + 0.5) * ratio - 0.5).clamp(min=0.0)
        left = real.long().clamp(max=last)
        weight = (real - left).to(x.dtype).view(-1, *[1] * (x.dim() - 1 - dim))
        x = x.index_select(dim, left) * (1 - weight) + x.index_select(dim, (left + 1).clamp(max=last)) * weight
    return x


@pytest.mark.parametrize("spoilt", [1.0, float("inf")])
@pytest.mark.parametrize(
    ("factors", "sizes"), [((1.1, 2.0), (5, 12)), ((1.5, 1.1), (7, 6)), ((1.0, 2.0), (5, 12)), ((1.1, 1.1), None)]
)
def test_on_gpus_a_dimension_that_keeps_its_size_is_copied_only_with_the_others(
    factors: tuple[float, ...], sizes: tuple[int, ...] | None, spoilt: float
) -> None:
    x = torch.randn(2, 3, 5, 6, generator=torch.Generator().manual_seed(0))
    x[0, 1, 2, 3] = spoilt

    def resized(x: torch.Tensor) -> torch.Tensor:
        if x.device.type == "cuda":
            return F.interpolate(x, scale_factor=factors, mode="bilinear")
        return x.clone() if sizes is None else _weighted(x, sizes, tuple(1 / f for f in factors))

    check(resized, x, gpu=True)
