"""A right side that loses a gradient is not applied where one is recorded; numbers that a rule reads may change."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import lamina
from lamina.base.rule import rule
from lamina.errors import LaminaError, LaminaWarning

Side = Callable[..., Tensor]

torch.library.define("lamina_tests::doubled_sine", "(Tensor x) -> Tensor")
torch.library.impl("lamina_tests::doubled_sine", "CompositeExplicitAutograd", lambda x: x.sin() * 2)
torch.library.register_fake("lamina_tests::doubled_sine", torch.empty_like)
torch.library.define("lamina_tests::refusing_sine", "(Tensor x) -> Tensor")
torch.library.impl("lamina_tests::refusing_sine", "CompositeExplicitAutograd", lambda x: x.sin() * 2)
torch.library.register_fake("lamina_tests::refusing_sine", torch.empty_like)


def _refuse(*args: object) -> None:
    raise NotImplementedError("this sine has no derivative")


torch.library.register_autograd("lamina_tests::refusing_sine", _refuse)
SCALE = 2.0


def _before(x: Tensor, y: Tensor) -> Tensor:
    return torch.sin(x) * 2 + y


def _without_gradients(x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        twice = torch.cos(x - math.pi / 2) * 2
    return twice + y


LOSING: dict[str, tuple[Side, str]] = {
    "detached": (lambda x, y: torch.cos(x.detach() - math.pi / 2) * 2 + y, "gives x no gradient"),
    "detached as data": (lambda x, y: torch.cos(x - math.pi / 2) * 2 + y.data, "gives y no gradient"),
    "all detached": (lambda x, y: (torch.cos(x - math.pi / 2) * 2 + y).detach(), "gives x and y no gradient"),
    "one of two terms detached": (
        lambda x, y: torch.sin(x).detach() + torch.sin(x) + y,
        "x gets another gradient than from its left side",
    ),
    "one factor detached": (
        lambda x, y: torch.sin(x / 2).detach() * torch.cos(x / 2) * 4 + y,
        "x gets another gradient than from its left side",
    ),
    "switched off": (_without_gradients, "gives x no gradient"),
    "without a derivative": (lambda x, y: torch.ops.lamina_tests.doubled_sine(x) + y, "gives x no gradient"),
    "refusing a derivative": (lambda x, y: torch.ops.lamina_tests.refusing_sine(x) + y, "has no derivative"),
}


def _function(x: Tensor, y: Tensor) -> Tensor:
    return (torch.sin(x) * 2 + y).cos()


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize("how", LOSING)
def test_a_right_side_that_loses_a_gradient_is_not_applied(how: str) -> None:
    after, why = LOSING[how]
    one = rule(_before, after, name=f"loses: {how}")
    x, y = (torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_() for _ in range(2))
    compiled = lamina.compile(_function, options={"rules": (one,), "strict": False})
    with pytest.warns(LaminaWarning, match=why) as caught:
        found = compiled(x, y)
    assert any(one.name in str(warning.message) for warning in caught)
    expected = torch.autograd.grad(_function(x, y).sum(), (x, y))
    torch.testing.assert_close(torch.autograd.grad(found.sum(), (x, y)), expected)
    torch._dynamo.reset()
    with pytest.raises(LaminaError, match=why):
        lamina.compile(_function, options={"rules": (one,), "strict": True})(x, y)


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize("how", LOSING)
def test_without_gradients_it_is_applied(how: str) -> None:
    one = rule(_before, LOSING[how][0], name=f"infers: {how}")
    x = torch.linspace(-1, 1, 12)
    compiled = lamina.compile(_function, options={"rules": (one,)})
    torch.testing.assert_close(compiled(x, x), _function(x, x))
    taken = {d.subject[0] for d in compiled.record.decisions("rewrite") if d.taken}
    assert one.name in taken


def test_a_gradient_that_neither_side_has_may_be_missing() -> None:
    one = rule(
        lambda x, y: torch.sin(x.detach()) * 2 + y,
        lambda x, y: y + 2 * torch.cos(x.detach() - math.pi / 2),
        name="both detach",
    )
    x = torch.linspace(-1, 1, 12).requires_grad_()
    options = {"rules": (one,), "expect_matches": {one.name: 1}, "strict": True}
    compiled = lamina.compile(lambda x, y: (torch.sin(x.detach()) * 2 + y).cos(), options=options)
    compiled(x, x.exp()).sum().backward()


def test_a_pattern_is_traced_again_when_a_number_that_it_reads_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    def before(x: Tensor) -> Tensor:
        return torch.sin(x) * SCALE

    one, x = rule(before, lambda x: torch.cos(x) * SCALE, name="scaled"), torch.linspace(-1, 1, 12)
    for scale in (2.0, 3.0):
        monkeypatch.setattr(f"{__name__}.SCALE", scale)
        torch._dynamo.reset()
        two = lamina.compile(lambda x: torch.sin(x) * 2.0, options={"rules": (one,)})
        three = lamina.compile(lambda x: torch.sin(x) * 3.0, options={"rules": (one,)})
        torch.testing.assert_close(two(x), x.cos() * 2 if scale == 2.0 else x.sin() * 2)
        torch.testing.assert_close(three(x), x.cos() * 3 if scale == 3.0 else x.sin() * 3)
