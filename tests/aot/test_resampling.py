"""Resampling is one operation of a traced graph, and so is its gradient; outside of tracing torch is as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import lamina
from lamina.aot.resampling import whole_resampling

aten = torch.ops.aten
NAMES = ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d")
NAMES += ("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact2d")

FORMS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "linear": ((2, 3, 9), {"scale_factor": 2.0}),
    "bilinear": ((2, 3, 9, 7), {"scale_factor": 1.7}),
    "bilinear_corners": ((2, 3, 9, 7), {"size": (13, 5), "align_corners": True}),
    "bilinear_recomputed": ((2, 3, 9, 7), {"scale_factor": 1.7, "recompute_scale_factor": True}),
    "bicubic": ((2, 3, 9, 7), {"size": (18, 14)}),
    "trilinear": ((1, 2, 4, 5, 3), {"size": (8, 7, 6)}),
    "nearest": ((2, 3, 9, 7), {"scale_factor": 2.0}),
    "nearest_odd": ((2, 3, 9, 7), {"scale_factor": 1.7}),
    "nearest-exact": ((2, 3, 9, 7), {"size": (11, 12)}),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_gradients_with_sizes_that_vary_are_as_exact_as_eagers(dtype: torch.dtype) -> None:
    compiled = lamina.compile(
        lambda x, size: F.interpolate(x, size=(size, size), mode="bilinear"), dynamic=True, options={"strict": True}
    )
    for size in (64, 97):
        x = torch.randn(2, 3, 5, 7, dtype=dtype, requires_grad=True)
        found, eager = compiled(x, size), F.interpolate(x, size=(size, size), mode="bilinear")
        cotangent = torch.randn_like(eager)
        wide = x.detach().double().requires_grad_()
        F.interpolate(wide, size=(size, size), mode="bilinear").backward(cotangent.double())
        assert wide.grad is not None
        errors = [
            (torch.autograd.grad(y, x, cotangent)[0].double() - wide.grad).abs().max().item() for y in (found, eager)
        ]
        assert errors[0] <= 2 * errors[1]


def _kernels() -> list[dict[Any, Any]]:
    return [dict(getattr(getattr(aten, n), o).py_kernels) for n in NAMES for o in ("vec", "default")]


@pytest.mark.sampled(one_in=8)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_values_and_gradients_are_eagers(form: str, dynamic: bool) -> None:
    torch.compiler.reset()
    shape, rest = FORMS[form]
    mode = form.partition("_")[0]
    before = _kernels()

    def resample(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x * 2, mode=mode, **rest) + 1

    compiled = lamina.compile(resample, dynamic=dynamic, options={"strict": True})
    for longer in (0, 2) if dynamic else (0,):
        ours = torch.randn(*shape[:-1], shape[-1] + longer, requires_grad=True)
        theirs = ours.detach().clone().requires_grad_()
        found, expected = compiled(ours), resample(theirs)
        cotangent = torch.randn_like(expected)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(
            torch.autograd.grad(found, ours, cotangent), torch.autograd.grad(expected, theirs, cotangent)
        )
    assert _kernels() == before
    parts = [s.value for s in compiled.record.stages if s.name == "partition"]
    assert parts
    for part in () if dynamic else parts:  # C++ has no shapes of gradients for sizes that are symbols
        for graph in (part.forward, part.backward):
            calls = {str(n.target) for n in graph.graph.nodes if n.op == "call_function"}
            assert any("upsample" in call for call in calls)
            assert not any("index" in call for call in calls)


def test_it_is_entered_again_and_left_in_any_order() -> None:
    before = _kernels()
    first, second = whole_resampling(), whole_resampling()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert _kernels() != before
    second.__exit__(None, None, None)
    assert _kernels() == before


PADS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "one dimension": ((2, 3, 9), (2, 3)),
    "all of a side": ((2, 3, 9), (9, 0)),
    "two dimensions": ((2, 3, 7, 40), (5, 1, 0, 2)),
    "three dimensions": ((1, 2, 4, 5, 6), (1, 2, 0, 0, 2, 1)),
    "no batch": ((3, 6), (1, 1)),
    "more than there is, both sides together": ((2, 3, 5), (4, 3)),
    "one side cut": ((2, 3, 9), (-2, 3)),
    "nothing": ((2, 3, 9), (0, 0)),
}


@pytest.mark.sampled(one_in=16)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", PADS)
def test_circular_padding_has_eagers_values_gradients_and_strides(name: str, dtype: torch.dtype, dynamic: bool) -> None:
    torch.compiler.reset()
    shape, pad = PADS[name]

    def padded(x: torch.Tensor) -> torch.Tensor:
        return F.pad(x, pad, mode="circular")

    before = dict(aten._pad_circular.default.py_kernels)
    ours = torch.randn(shape).to(dtype)
    if len(shape) == 4:
        ours = ours.to(memory_format=torch.channels_last)
    ours, theirs = ours.clone().requires_grad_(), ours.clone().requires_grad_()
    compiled = lamina.compile(padded, dynamic=dynamic, options={"strict": True, "numerics": "eager"})
    found, expected = compiled(ours), padded(theirs)
    assert torch.equal(found, expected)
    assert found.stride() == expected.stride()
    cotangent = torch.randn_like(expected)
    (gradient,), (exact,) = (
        torch.autograd.grad(found, ours, cotangent),
        torch.autograd.grad(expected, theirs, cotangent),
    )
    assert torch.equal(gradient, exact)
    assert dict(aten._pad_circular.default.py_kernels) == before
    sums = [sum(pad[k : k + 2]) <= shape[-1 - k // 2] for k in range(0, len(pad), 2)]
    whole = min(pad) >= 0 and any(pad) and all(sums)
    for part in [s.value for s in compiled.record.stages if s.name == "partition" and whole and not dynamic]:
        calls = {str(n.target) for n in part.forward.graph.nodes if n.op == "call_function"}
        assert not any("copy" in call or "scatter" in call for call in calls)


def test_what_circular_padding_refuses_is_refused() -> None:
    compiled = lamina.compile(lambda x: F.pad(x, (4, 0), mode="circular"), options={"strict": True})
    with pytest.raises(Exception, match="Padding value causes wrapping around more than once"):
        compiled(torch.randn(2, 3, 3))


@pytest.mark.sampled(one_in=5)
@pytest.mark.parametrize("spoilt", [None, torch.nan, torch.inf])
@pytest.mark.parametrize("form", ["linear", "bilinear", "trilinear", "corners", "factor"])
def test_linear_interpolation_to_sizes_that_vary_keeps_what_is_no_number_where_eager_has_it(
    form: str, spoilt: float | None
) -> None:
    """Between two infinities a weighted sum is infinite, a difference is no number; equal sizes have no neighbours."""

    def function(x: torch.Tensor, n: int) -> torch.Tensor:
        how: dict[str, Any] = {"mode": form if "linear" in form else "bilinear", "align_corners": form == "corners"}
        sizes: dict[str, Any] = {"scale_factor": n / 4} if form == "factor" else {"size": n}
        return F.interpolate(x, **sizes, **how)

    rank = {"linear": 1, "trilinear": 3}.get(form, 2)
    torch.compiler.reset()
    compiled = lamina.compile(function, dynamic=True, options={"strict": True})
    for rows, n in ((5, 7), (6, 6), (8, 3), (4, 10)):
        x = torch.randn(2, 3, *[rows] * rank, generator=torch.Generator().manual_seed(rows))
        if spoilt is not None:
            x[0, 0, ..., 2] = x[0, 0, ..., 1] = x[1, 2].view(-1)[0] = spoilt
        torch.testing.assert_close(compiled(x, n), function(x, n), equal_nan=True)


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize(("rows", "n"), [(4, 7), (4, 8), (6, 3), (5, 8)])
def test_sums_of_negative_zeros_are_positive_ones(rows: int, n: int, mode: str) -> None:
    torch.compiler.reset()
    compiled = lamina.compile(lambda x: F.interpolate(x, size=(n, n), mode=mode), options={"strict": True})
    x = torch.ones(1, 1, rows, rows + 1, requires_grad=True)
    y = compiled(x)
    (gradient,) = torch.autograd.grad(y, x, torch.full_like(y, -0.0))
    assert not gradient.signbit().any()


_KEPT_OR_DOUBLED = ((2, 9), (3, 9), (3, 5), (3, 6), (5, 8), (7, 3))
"""Rows, of which some are kept or doubled, and four times a factor that is neither 1 nor 2 for most."""


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", ["1d", "2d", "3d", "2d channels last", "3d channels last"])
def test_sizes_that_a_factor_keeps_or_doubles_have_eagers_elements(name: str, dynamic: bool | None) -> None:
    rank, last = int(name[0]), name.endswith("last")

    def resampled(x: torch.Tensor, quarters: int) -> torch.Tensor:
        return F.interpolate(x, scale_factor=quarters / 4, mode="nearest")

    compiled = lamina.compile(resampled, backend="interp", dynamic=dynamic, options={"strict": True})
    for rows, quarters in _KEPT_OR_DOUBLED:
        image = torch.arange(6.0 * rows * 3 ** (rank - 1)).reshape(2, 3, rows, *[3] * (rank - 1))
        image = image.to(memory_format=(torch.channels_last, torch.channels_last_3d)[rank - 2]) if last else image
        found = []
        for function in (resampled, compiled):
            x = image.clone(memory_format=torch.preserve_format).requires_grad_()
            result = function(x, quarters)
            result.backward(torch.arange(float(result.numel())).reshape(result.shape))
            found.append((result.tolist(), result.stride(), x.grad.tolist()))  # type: ignore[union-attr]
        assert found[0] == found[1], (rows, quarters)


def test_an_infinite_element_keeps_to_itself_where_sizes_that_vary_are_kept() -> None:
    """A neighbour times zero is not a number if it is infinite: eager has no neighbours where a size stays."""
    compiled = lamina.compile(
        lambda x, size: F.interpolate(x, size=(size, size), mode="bilinear", align_corners=True),
        dynamic=True,
        options={"strict": True},
    )
    for rows, columns, size in ((4, 5, 8), (6, 7, 6), (6, 6, 6), (5, 6, 6)):
        x = torch.arange(float(rows * columns)).reshape(1, 1, rows, columns)
        x[0, 0, 2, 3] = -torch.inf
        found, eager = compiled(x, size), F.interpolate(x, size=(size, size), mode="bilinear", align_corners=True)
        torch.testing.assert_close(found, eager, equal_nan=True)
