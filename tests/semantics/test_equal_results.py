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


@pytest.mark.parametrize("front", ["dynamo", "own"])
def test_results_that_eager_does_not_save_may_be_written_to(front: str) -> None:
    """The gradient of a softmax, which a rule makes of the quotient, asks for its result."""
    torch._dynamo.reset()

    def by_hand(x: torch.Tensor) -> torch.Tensor:
        powers = (x - x.amax(-1, True)).exp()
        return powers / powers.sum(-1, True)

    def and_read(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = by_hand(x)
        return found, found * found

    found = []
    for function in (by_hand, lamina.compile(by_hand, options={"capture": front})):
        x = torch.arange(12.0).view(3, 4).sin().requires_grad_()
        result = function(x)
        with torch.no_grad():
            result.zero_()
        (result * torch.arange(4.0)).sum().backward()
        found.append(x.grad)
    torch.testing.assert_close(found[1], found[0])

    x = torch.randn(3, 4, requires_grad=True)
    result, square = lamina.compile(and_read, options={"capture": front})(x)
    with torch.no_grad():
        result.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        square.sum().backward()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("front", ["dynamo", "own"])
def test_results_may_be_written_to_where_aotautograd_traces(front: str, dynamic: bool) -> None:
    """It traces graphs that return views and sizes that change."""
    torch._dynamo.reset()

    def by_hand(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        powers = (x - x.amax(-1, True)).exp()
        found = powers / powers.sum(-1, True)
        return found, x.relu(), found[:]

    def and_read(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found, _, view = by_hand(x)
        return found, view, view * found

    found = []
    options = {"capture": front}
    for function in (by_hand, lamina.compile(by_hand, dynamic=dynamic, options=options)):
        x = torch.arange(12.0).view(3, 4).sin().requires_grad_()
        result, *others = function(x)
        with torch.no_grad():
            result.zero_()
        ((result + others[0]) * torch.arange(4.0)).sum().backward()
        found.append(x.grad)
    torch.testing.assert_close(found[1], found[0])

    x = torch.randn(3, 4, requires_grad=True)
    result, _, square = lamina.compile(and_read, dynamic=dynamic, options=options)(x)
    with torch.no_grad():
        result.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        square.sum().backward()
