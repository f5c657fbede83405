"""Faults put into Lamina where only operations with graphs, second gradients, calls in turns or NaN come by."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from lamina.aot.differentiable import Rerun
from lamina.eager_comparison import trial
from lamina.flex_attention.tiles import _Tiled
from lamina.ir.ops import REDUCTIONS
from lamina.segments.control_flow import _Body
from lamina.testing.fuzz import check, generate


def _off(value: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda t: t * math.nan if t.is_floating_point() else t, value)


def _body(patch: pytest.MonkeyPatch) -> None:
    right = _Body.forward
    patch.setattr(_Body, "forward", lambda self, *inputs: _off(right(self, *inputs)))


def _tiles(patch: pytest.MonkeyPatch) -> None:
    right = _Tiled.whole
    patch.setattr(_Tiled, "whole", lambda *given: _off(right(*given)))


def _second(patch: pytest.MonkeyPatch) -> None:
    right = Rerun._differentiated
    patch.setattr(Rerun, "_differentiated", lambda *given: _off(right(*given)))


def _turns(patch: pytest.MonkeyPatch) -> None:
    right = trial._by_eager

    def wrong(*given: Any) -> Any:
        run = right(*given)
        return lambda *inputs: _off(run(*inputs))

    patch.setattr(trial, "_by_eager", wrong)


def _extremes(patch: pytest.MonkeyPatch) -> None:
    right = REDUCTIONS["max"]

    def wrong(rows: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        return right.reference(rows.nan_to_num(-math.inf, math.inf, -math.inf), dtype)

    patch.setitem(REDUCTIONS, "max", replace(right, reference=wrong))


@pytest.mark.by_dynamo(
    "tiles of flex_attention are out of reach of so few programs with the own front end",
    "_tiles-higher-30-lamina:interp",
)
@pytest.mark.parametrize(
    ("fault", "ingredient", "seed", "target"),
    [
        (_body, "higher", 0, "lamina:interp"),
        (_tiles, "higher", 30, "lamina:interp"),
        (_second, "second", 0, "lamina:interp"),
        (_turns, "pointwise", 1, "lamina:turns"),
        (_extremes, "extremes", 4, "lamina:interp"),
    ],
)
def test_a_fault_is_within_reach(
    fault: Any, ingredient: str, seed: int, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = generate(seed, [ingredient])
    assert check(source, target).ok
    with monkeypatch.context() as patch:
        fault(patch)
        assert check(source, target).kind == "value"
