"""Programs of signs of zeros and of strides along axes of one element, that random ones were reduced to."""

from __future__ import annotations

import pytest
import torch

import lamina
from lamina.testing.fuzz import check

HEAD = """
import torch
import torch.nn.functional as F
from lamina.testing.fuzz import sample
"""

GRADIENT_OF_NEGATIVE_ZEROS = """
def f(x):
    return CALL
def program(compile):
    x = sample(1, 2, 6, 6, seed=1, grad=True)
    out = compile(f)(x)
    out.backward(torch.full_like(out, -0.0))
    yield x.grad
"""

ONE_COLUMN = """
def f(x):
    y = F.batch_norm(x.reshape(1, 2, -1, 1).permute(0, 2, 1, 3), None, None, training=True)
    return torch.cat([y, y], DIM), F.interpolate(torch.cat([y, y], DIM), scale_factor=2)
def program(compile):
    for n in (2, 17):
        yield compile(f)(sample(2, n))
"""


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize(
    "call",
    [
        "F.avg_pool2d(x, 2)",
        "F.avg_pool2d(x, 3, 1)",
        "F.adaptive_avg_pool2d(x, 4)",
        "x.unfold(2, 2, 1)",
        "F.unfold(x, 2)",
        "F.max_pool2d(x, 2)",
        "F.fold(F.unfold(x, 2), (6, 6), 2)",
        "F.conv2d(x, torch.ones(2, 1, 3, 3), groups=2)",
    ],
)
def test_a_sum_that_is_written_out_is_no_negative_zero(call: str) -> None:
    assert check(HEAD + GRADIENT_OF_NEGATIVE_ZEROS.replace("CALL", call), "lamina:interp").ok


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (4, 4)])
def test_a_product_over_one_element_is_no_negative_zero(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    column, row = torch.zeros(2, shape[0], 1, dtype=dtype), -torch.ones(2, 1, shape[1], dtype=dtype)
    product = lamina.compile(torch.bmm, backend="interp")(column, row)
    assert not torch.bmm(column, row).signbit().any()
    assert not product.signbit().any()


@pytest.mark.parametrize("dim", ["1", "-1"])
def test_later_calls_see_the_strides_of_a_norm_along_axes_of_one_element(dim: str) -> None:
    assert check(HEAD + ONE_COLUMN.replace("DIM", dim), "lamina:interp").ok


def test_images_of_usual_strides_are_not_left_to_eager() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.batch_norm(x, None, None, training=True)

    for shape in ((2, 3, 4, 1), (2, 1, 4, 4), (2, 3, 1, 1)):
        for memory_format in (torch.contiguous_format, torch.channels_last):
            compiled = lamina.compile(f, backend="interp")
            compiled(torch.randn(shape).contiguous(memory_format=memory_format))
            assert not [d for stage in compiled.record.stages for d in stage.decisions if d.kind == "eager"]
