"""Operations whose gradient reads values while it is traced: the graph is broken there, as Dynamo does by itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.compilers import CompileFunction
from lamina.testing.fuzz import check


@torch.library.custom_op("lamina_test::by_counts", mutates_args=())
def _by_counts(x: Tensor, counts: Tensor) -> Tensor:
    return x * 2


@_by_counts.register_fake
def _(x: Tensor, counts: Tensor) -> Tensor:
    return torch.empty_like(x)


def _context(ctx: Any, inputs: Any, output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])


def _backward(ctx: Any, gradient: Tensor) -> Any:
    (counts,) = ctx.saved_tensors
    return gradient * 2 * float(sum(counts.tolist()) > 0), None


_by_counts.register_autograd(_backward, setup_context=_context)


def test_a_gradient_that_reads_values(compile: CompileFunction) -> None:
    def function(x: Tensor, counts: Tensor) -> Tensor:
        return _by_counts(x.sin(), counts).cos()

    counts = torch.tensor([1, 2])
    ours, eager = (torch.arange(4.0, requires_grad=True) for _ in range(2))
    compile(function)(ours, counts).sum().backward()
    function(eager, counts).sum().backward()
    torch.testing.assert_close(ours.grad, eager.grad)


_ASSERTING = """
import torch
from lamina.testing.fuzz import attempt


def f(x):
    y = x.exp()
    assert not torch.isnan(y).any(), "not a number"
    x.add_(1)
    assert (y < 8).all()
    return y * 2


def program(compile):
    g = compile(f, dynamic=DYNAMIC)
    for number in (0.0, torch.nan, 3.0, 1.0):
        x = torch.full((3,), number)
        yield attempt(g, x), x
"""


@pytest.mark.parametrize("dynamic", ["False", "True"])
def test_a_failed_assertion_on_a_tensor_is_an_assertion_error(dynamic: str) -> None:
    """A text, since pytest writes the assertions of test modules anew."""
    verdict = check(_ASSERTING.replace("DYNAMIC", dynamic), "lamina")
    assert verdict.eager_raised
    assert verdict.ok, verdict.differences
