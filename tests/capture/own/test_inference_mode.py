"""Calls within inference mode are captured, and what they give is what eager gives there."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lamina

OWN = {"capture": "own", "strict": True, "cache": False}


class Model(nn.Module):
    """Results of its own, a view of one, a view of what it is given, a write, and a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(16, 16), nn.BatchNorm1d(16)
        self.register_buffer("last", torch.zeros(4, 16))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.norm(self.linear(x)).relu()
        self.last.copy_(y)
        return y, y[:2], x.t()


def _looks(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.is_inference(), tensor._is_view(), tensor.requires_grad, tensor.is_leaf, tensor.stride()


@pytest.mark.parametrize("training", [False, True])
def test_results_writes_and_looks_are_those_of_eager(training: bool) -> None:
    model = Model().train(training)
    expected = copy.deepcopy(model)
    compiled = lamina.compile(model, options=OWN)
    x = torch.randn(4, 16)
    with torch.inference_mode():
        within = torch.randn(4, 16)
    writes = model.last._version, expected.last._version
    for _ in range(3):
        for mode, given in (
            (torch.inference_mode, x),
            (torch.inference_mode, within),
            (torch.no_grad, x),
            (torch.enable_grad, x),
        ):
            with mode():
                for one, other in zip(compiled(given), expected(given), strict=True):
                    torch.testing.assert_close(one, other)
                    assert _looks(one) == _looks(other)
            model.last.detach_(), expected.last.detach_()
            torch.testing.assert_close(model.last, expected.last)
            torch.testing.assert_close(model.norm.running_mean, expected.norm.running_mean)
            assert model.last._version - writes[0] == expected.last._version - writes[1]
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        compiled(within)


def test_a_second_call_is_not_interpreted() -> None:
    compiled = lamina.compile(Model().eval(), options=OWN)
    with torch.inference_mode():
        x = torch.randn(4, 16)
        compiled(x)
        compiled(x)
        compiled(compiled(x)[0])
    said = [decision.reason for decision in compiled.record.decisions() if decision.kind == "capture"]
    assert [reason for reason in said if "done again without interpretation" in reason]
    assert not [reason for reason in said if "Python runs the call" in reason or "are interpreted" in reason]


def test_a_state_that_differs_is_named() -> None:
    compiled = lamina.compile(lambda x: x.sin() * 2, options=OWN)
    x = torch.randn(4)
    with torch.no_grad():
        compiled(x)
    with torch.inference_mode():
        compiled(x)
    (reason,) = [one.reason for one in compiled.record.decisions() if one.kind == "recompile"]
    assert "is_inference_mode_enabled() was False and is True" in reason


def test_modes_that_a_function_enters() -> None:
    @torch.inference_mode()
    def whole(x: Tensor) -> tuple[Tensor, Tensor]:
        y = (x * 2).relu()
        return y, y.sum(0)

    def part(x: Tensor) -> Tensor:
        with torch.inference_mode():
            y = (x * 2).relu() + x.sin()
        return y + 1

    def left(x: Tensor) -> Tensor:
        z = x.sin() * 3
        with torch.inference_mode(False):
            y = (x * 2).relu()
        return y + z

    x = torch.randn(4, 4)
    for function in (whole, part, left):
        compiled = lamina.compile(function, options=OWN)
        for outside in (torch.no_grad, torch.inference_mode):
            for _ in range(3):
                with outside():
                    one, other = compiled(x), function(x)
                torch.testing.assert_close(one, other)
                one, other = (one[0], other[0]) if isinstance(one, tuple) else (one, other)
                assert _looks(one) == _looks(other)
        assert compiled.stats().graphs
