"""What runs on the CPU does so whatever torch's default device is: memory of our own is asked for there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.compilers import CompileFunction


@pytest.fixture
def elsewhere() -> Iterator[None]:
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


def _program(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    hidden = F.gelu(x @ w)
    image = F.interpolate(hidden[None, None], scale_factor=2.0, mode="bilinear")
    return hidden.softmax(-1), image, hidden[hidden.sum(1).argsort()], x.var(0).cumsum(0)


def test_results_do_not_depend_on_the_default_device(compile: CompileFunction, elsewhere: None) -> None:
    generator = torch.Generator("cpu").manual_seed(0)
    # Large enough that results come from memory that is used again.
    x, w = (torch.randn(n, m, generator=generator, device="cpu").requires_grad_() for n, m in ((600, 8), (8, 500)))
    expected = _program(x, w)
    found = compile(_program, dynamic=False)(x, w)
    gradients = [torch.autograd.grad(sum(t.sum() for t in run), (x, w)) for run in (expected, found)]
    for mine, theirs in zip((*found, *gradients[1]), (*expected, *gradients[0]), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)
