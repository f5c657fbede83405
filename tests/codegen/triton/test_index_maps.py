"""Rolls, resampling and pooling with what reads them: kernels for a GPU in Triton's interpreter, against eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.codegen.triton.harness import Interpreter
from tests.codegen.triton.test_plans import run
from tests.codegen.triton.test_pools import planned

aten = torch.ops.aten


def shifted_windows(x: Tensor) -> Tensor:
    x = torch.roll(x, (-3, 2), (1, 2))
    return x.view(2, 2, 4, 2, 4, 16).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, 16) * 2


MAPS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "shifted windows": (shifted_windows, (2, 8, 8, 16)),
    "rolled short rows": (lambda x: torch.roll(x, (1, -2), (0, 1)) * 2 + x, (5, 7)),
    "bilinear": (lambda x: torch.ops.aten.upsample_bilinear2d(x, [13, 17], False) * 2, (2, 3, 7, 9)),
    "bilinear, corners": (lambda x: torch.ops.aten.upsample_bilinear2d(x, [13, 17], True) * 2, (2, 3, 7, 9)),
    "bicubic": (lambda x: torch.ops.aten.upsample_bicubic2d(x, [13, 17], False) * 2, (2, 3, 7, 9)),
    "bicubic, corners": (lambda x: torch.ops.aten.upsample_bicubic2d(x, [3, 5], True) * 2, (2, 3, 7, 9)),
    "nearest": (lambda x: F.interpolate(x, (13, 18)) + 1, (2, 3, 7, 9)),
    "gradient of nearest": (lambda g: aten.upsample_nearest2d_backward(g, [13, 18], [2, 3, 7, 9]) * 2, (2, 3, 13, 18)),
    "gradient of nearest, many": (
        lambda g: aten._upsample_nearest_exact2d_backward(g, [29, 61], [2, 3, 4, 7]) * 2,
        (2, 3, 29, 61),
    ),
    "gradient of nearest, by a factor": (
        lambda g: aten.upsample_nearest1d_backward(g, [171], [2, 3, 101], 1.7) * 2,
        (2, 3, 171),
    ),
    "gradient of bilinear": (
        lambda g: aten.upsample_bilinear2d_backward(g, [13, 17], [2, 3, 7, 9], False) * 2,
        (2, 3, 13, 17),
    ),
    "gradient of bilinear, corners": (
        lambda g: aten.upsample_bilinear2d_backward(g, [29, 37], [2, 3, 7, 9], True) * 2,
        (2, 3, 29, 37),
    ),
    "gradient of bicubic": (
        lambda g: aten.upsample_bicubic2d_backward(g, [13, 17], [2, 3, 7, 9], False) * 2,
        (2, 3, 13, 17),
    ),
    "gradient of bicubic, smaller": (
        lambda g: aten.upsample_bicubic2d_backward(g, [6, 4], [2, 3, 12, 9], False, 0.5, None) * 2,
        (2, 3, 6, 4),
    ),
    "gradient of bicubic, corners": (
        lambda g: aten.upsample_bicubic2d_backward(g, [29, 9], [2, 3, 7, 9], True) * 2,
        (2, 3, 29, 9),
    ),
    "gradient of trilinear": (
        lambda g: aten.upsample_trilinear3d_backward(g, [5, 8, 9], [2, 3, 4, 4, 5], False) * 2,
        (2, 3, 5, 8, 9),
    ),
    "sums of what is rolled": (lambda x: torch.roll(x * 2, (3,), (0,)).square().sum(), (33000,)),
    "uneven means": (lambda x: torch.ops.aten._adaptive_avg_pool2d(x, [3, 4]) * 2, (2, 3, 10, 11)),
}


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("name", MAPS)
def test_values(interpreter: Interpreter, name: str, form: torch.memory_format) -> None:
    function, shape = MAPS[name]
    if len(shape) != 4 and form is torch.channels_last:
        pytest.skip("two dimensions have no channels")
    if name.startswith("bicubic") and form is torch.channels_last:
        pytest.skip("torch copies the result of its shape function, which asks for a GPU")
    x = torch.randn(shape)
    if name != "shifted windows":  # eager's view needs rows as they are
        x = x.contiguous(memory_format=form)
    ours = run(planned(function, (x,)), interpreter, (x,))
    torch.testing.assert_close(ours[0], function(x))
