"""Inputs that eager saves are saved as they are, also where no call of the backward reads them any more."""

import pytest
import torch
import torch.nn.functional as F

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


COPIES = {
    "clone": lambda x: x.clone(),
    "clone of a view": lambda x: x.t().clone(),
    "product with one": lambda x: x * 1,
    "computed again": lambda x: x * 2,
}


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("copy", COPIES)
def test_what_eager_saves_a_copy_of_may_be_written_to(copy, dynamic):
    """A pass puts the operand in the place of the copy, and the formula then asks for what the user may write to."""

    def of_input(x):
        return (F.silu(COPIES[copy](x)),)

    def of_result(x):
        seen = x.exp() * 2 if copy != "computed again" else x * 2
        return F.silu(COPIES[copy](x if copy == "computed again" else seen)), seen

    def of_product(x):
        seen = x @ x.t()
        return F.silu(COPIES[copy](seen)), seen.view(-1)

    for function in (of_input, of_result, of_product):
        gradients = []
        for run in (function, lamina.compile(function, backend="interp", dynamic=dynamic)):
            x = torch.linspace(-1, 2, 15).reshape(3, 5).requires_grad_()
            results = run(x)
            (x if function is of_input else results[1]).detach().mul_(3)
            gradients += torch.autograd.grad(sum(one.sum() for one in results), x)
        torch.testing.assert_close(gradients[1], gradients[0])
        torch._dynamo.reset()
