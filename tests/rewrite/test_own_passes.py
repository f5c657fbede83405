"""A pass of ours that fails leaves the graph as it was, and the record says so."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import lamina
from lamina.rewrite import own_passes, rewriting


def fails(gm: Any, *more: Any, **named: Any) -> Any:
    raise RuntimeError("out of luck")


def function(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 2 * 3, -1)


@pytest.fixture(params=["clean", "widen_products", "align_products", "captured"])
def broken(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compiler.reset()
    if request.param == "captured":
        monkeypatch.setattr(rewriting, "AFTER_RULES", (fails,))
    else:
        monkeypatch.setattr(own_passes, request.param, fails)


@pytest.mark.usefixtures("broken")
def test_the_graph_goes_on() -> None:
    compiled = lamina.compile(function)
    x = torch.randn(3, 5)
    torch.testing.assert_close(compiled(x), function(x))
    said = [d.reason for s in compiled.record.stages for d in s.decisions if d.kind == "rewrite" and not d.taken]
    assert "fails failed: RuntimeError: out of luck; the graph stays as it was" in said


@pytest.mark.usefixtures("broken")
def test_strict_raises() -> None:
    with pytest.raises(lamina.StageFailed, match="out of luck"):
        lamina.compile(function, options={"strict": True})(torch.randn(3, 5))
