"""`lamina demo` on a GPU: every result within twice eager's error, nothing left uncompiled."""

from __future__ import annotations

import pytest
from rich.console import Console

import lamina
from lamina.cli.demo import demonstrate
from lamina.cli.demo_models import DEMOS, Demo


@pytest.mark.parametrize("demo", DEMOS, ids=lambda demo: demo.name)
def test_demo(demo: Demo) -> None:
    rows = list(demonstrate([demo], lamina.compile, None, Console(stderr=True), seconds=0.05, device="cuda"))
    assert [row.step for row in rows] == ["inference", "training"]
    for row in rows:
        assert not row.failure
        assert row.counts is not None
        assert row.counts.kernels or row.counts.library_calls  # attention by hand becomes one call
        assert not row.counts.fallbacks
