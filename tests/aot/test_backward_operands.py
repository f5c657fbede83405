"""Inputs that eager saves are saved as they are, also where no call of the backward reads them any more."""

import pytest
import torch

import lamina
from lamina.aot.partition import Partition


def quotient(x, y):
    return torch.hypot(x / (y.abs() + 1), y)


def loose(x, y):
    return (x * 2) / (y + 1)


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def compiled(function, *inputs):
    run = lamina.compile(function, backend="interp")
    out = run(*inputs)
    (part,) = [s.value for s in run.record.stages if isinstance(s.value, Partition)]
    return out, part


def leaves():
    return torch.randn(40, 50, requires_grad=True), torch.randn(40, 50, requires_grad=True)


def test_a_quotient_is_made_again_of_its_operands():
    """Eager saves the dividend: its formula divides again, as does the forward, and the two are one call."""
    x, y = leaves()
    out, part = compiled(quotient, x, y)
    assert set(part.saved) == {"primals_1", "primals_2"}
    assert not part.copied
    found = torch.autograd.grad(out.sum(), (x, y))
    torch.testing.assert_close(found, torch.autograd.grad(quotient(x, y).sum(), (x, y)))


def test_a_write_to_the_dividend_is_an_error_as_in_eager():
    for run in (quotient, lambda *inputs: compiled(quotient, *inputs)[0]):
        x, y = leaves()
        out = run(x, y)
        with torch.no_grad():
            x.mul_(2)
        with pytest.raises(RuntimeError, match="modified"):
            out.sum().backward()


def test_a_write_to_what_eager_does_not_save_changes_nothing():
    for write in (lambda t: t.data.mul_(2), lambda t: t.detach().mul_(2)):
        x, y = leaves()
        expected = torch.autograd.grad(loose(x, y).sum(), (x, y))
        out, _ = compiled(loose, x, y)
        write(x)
        write(y)
        torch.testing.assert_close(torch.autograd.grad(out.sum(), (x, y)), expected)
        torch._dynamo.reset()
