"""What tracing takes apart is a decision for each operation and graph, by both ways of tracing."""

from __future__ import annotations

import pytest
import torch

import lamina


@pytest.mark.parametrize("numerics", ["fast", "eager"])
def test_operations_taken_apart_are_told_once(numerics: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.mvlgamma(x + 3, 2) + torch.mvlgamma(x.sum(0) + 3, 2)
        return torch.block_diag(torch.nn.functional.dropout(y), x)

    compiled = lamina.compile(function, options={"numerics": numerics, "compare_eager": "off"})
    compiled(torch.rand(4, 6, requires_grad=True))
    told = compiled.record.decisions("decompose")
    counts = {d.subject[0]: dict(d.facts)["traced"] for d in told}
    assert counts["aten.mvlgamma.default"] >= 2  # a call may be traced with and without its gradient
    assert counts["aten.block_diag.default"] >= 1
    assert len(counts) == len(told)
    assert "taken apart: a sum of logarithms of gamma functions" in {d.reason for d in told}
