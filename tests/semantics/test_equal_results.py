"""Results that are equal are tensors of their own, as eager's are, whatever rules put in the place of either."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import lamina


def _rms(x: torch.Tensor) -> torch.Tensor:
    return x / (x.pow(2).mean(-1, True) + 1e-6).sqrt()


def _other_rms(x: torch.Tensor) -> torch.Tensor:
    return x * x.pow(2).mean(-1, True).add(1e-6).rsqrt()


def _silu(x: torch.Tensor) -> torch.Tensor:
    return x * x.sigmoid()


@pytest.mark.parametrize("front", ["dynamo", "own"])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    ("one", "other"), [(_rms, _rms), (_rms, _other_rms), (_silu, _silu), (_silu, F.silu), (F.normalize, F.normalize)]
)
def test_equal_results_are_tensors_of_their_own(
    one: Callable[..., torch.Tensor], other: Callable[..., torch.Tensor], grad: bool, front: str
) -> None:
    torch._dynamo.reset()
    x = torch.randn(3, 5, requires_grad=grad)
    wanted = one(x).detach()
    a, b = lamina.compile(lambda x: (one(x), other(x)), options={"capture": front})(x)
    assert a is not b
    with torch.no_grad():
        a.add_(1)
    torch.testing.assert_close(a.detach(), wanted + 1)
    torch.testing.assert_close(b.detach(), wanted)
