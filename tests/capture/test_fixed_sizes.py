"""Code that is captured with fixed sizes is told from code of another function that has the same text."""

from __future__ import annotations

import pytest

from lamina.capture.fixed_sizes import torch_private
from lamina.capture.log import CaptureLog
from lamina.record import Record

TEXT = "def f(x):\n    return x + 1\n"


def test_code_of_the_same_text_is_another_function(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (compile(TEXT, "<text>", "exec").co_consts[0] for _ in range(2))
    assert one == other
    assert one is not other
    sizes = torch_private.FixedSizes(CaptureLog(Record()))
    fixed: list[str] = []
    monkeypatch.setattr(sizes, "_fixed", lambda captured: fixed.append("fixed") or captured())
    sizes._add(one)
    assert sizes.capture(other, lambda: 1) == 1
    assert not fixed
    assert sizes.capture(one, lambda: 2) == 2
    assert fixed == ["fixed"]
