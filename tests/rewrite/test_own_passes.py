"""A pass of ours that fails leaves the graph as it was, and the record says so."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import lamina
from lamina.rewrite import order


def fails(gm: Any, *more: Any, **named: Any) -> Any:
    raise RuntimeError("out of luck")


def function(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 2 * 3, -1)


NAMES = ("the rules", "without_dropout", "use_library_attention", "join_views", "widen_products", "clean")


@pytest.fixture(params=NAMES)
def broken(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    torch.compiler.reset()
    monkeypatch.setattr(order, "PASSES", order.changed(request.param, lambda usual: fails))
    return str(request.param)


def test_the_graph_goes_on(broken: str) -> None:
    compiled = lamina.compile(function)
    x = torch.randn(3, 5)
    torch.testing.assert_close(compiled(x), function(x))
    said = [d.reason for s in compiled.record.stages for d in s.decisions if d.kind == "rewrite" and not d.taken]
    assert f"{broken} failed: RuntimeError: out of luck; the graph stays as it was" in said


@pytest.mark.usefixtures("broken")
def test_strict_raises() -> None:
    with pytest.raises(lamina.StageFailed, match="out of luck"):
        lamina.compile(function, options={"strict": True})(torch.randn(3, 5))
