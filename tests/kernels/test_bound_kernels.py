"""A kernel bound to a pattern: it runs where the pattern occurs, with the gradient that was registered for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import lamina
from lamina.base import lowering as registry
from lamina.extend import lowering, rule
from lamina.ir.loops import LibraryCall
from lamina.testing import check_rule
from tests.kernels import operations as ops

STRICT = {"strict": True, "verify": True}


def spelled(x: Tensor, y: Tensor) -> Tensor:
    return torch.sigmoid(y + 1) * x.sin() * 0.5 + x


use_gated = rule(
    lambda x, y: x * torch.sigmoid(y) * 0.5, lambda x, y: ops.gated(x.contiguous(), y, 0.5), name="use gated"
)


def in_the_place_of(function: Any, chosen: Any) -> tuple[Any, list[Tensor], list[Tensor]]:
    """``function`` compiled with a rule that matches once, and the gradients of eager and of the compiled one."""
    torch.manual_seed(0)
    expected_args = [torch.randn(4, 12, requires_grad=True) for _ in range(2)]
    args = [t.detach().clone().requires_grad_() for t in expected_args]
    options = {**STRICT, "rules": (chosen,), "expect_matches": {chosen.name: 1}}
    compiled = lamina.compile(function, options=options)
    expected, found = function(*expected_args), compiled(*args)
    torch.testing.assert_close(found, expected)
    expected.square().sum().backward()
    found.square().sum().backward()
    return compiled, [t.grad for t in args], [t.grad for t in expected_args]


def called(compiled: Any) -> list[str]:
    programs_made = [s.value.program for s in compiled.record.stages if s.name == "fuse"]
    return [step.op for p in programs_made for step in p.steps if isinstance(step, LibraryCall)]


@pytest.mark.parametrize("lowered", [False, True])
def test_an_operation_in_the_place_of_a_pattern(lowered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_LOWERINGS", {})
    torch._dynamo.reset()
    if lowered:
        lowering(ops.gated)(lambda x, y, scale: x * torch.sigmoid(y) * scale)
    compiled, found, expected = in_the_place_of(spelled, use_gated)
    torch.testing.assert_close(found, expected)
    wanted = ["lamina_tests.gated_backward.default"]
    assert called(compiled) == (wanted if lowered else ["lamina_tests.gated.default", *wanted])


def test_both_sides_agree_with_gradients() -> None:
    assert check_rule(use_gated, dtypes=(torch.float32,)).ok
