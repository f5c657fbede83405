"""The files that conditions name: found by whole parts of their paths, in modules that are loaded by then."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from lamina.capture.conditions import whole_path


def test_the_likely_file_is_taken_for_whole_parts_only() -> None:
    assert whole_path("unknown_a.py:3", "/w/data_unknown_a.py") == "unknown_a.py:3"
    assert whole_path("unknown_a.py:3", "/w/unknown_a.py") == "/w/unknown_a.py:3"
    assert whole_path("w/unknown_a.py", "/w/unknown_a.py") == "/w/unknown_a.py"
    assert whole_path("mp/unknown_a.py:3", "/tmp/unknown_a.py") == "/tmp/unknown_a.py:3"  # as torch writes it
    assert whole_path("unknown_a.py", "unknown_a.py") == "unknown_a.py"


def test_a_module_that_is_loaded_later_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    near, late = ModuleType("near"), ModuleType("late")
    near.__file__, late.__file__ = "/w/not_unknown_b.py", "/w/unknown_b.py"
    monkeypatch.setitem(sys.modules, "near", near)
    assert whole_path("unknown_b.py:7") == "unknown_b.py:7"
    monkeypatch.setitem(sys.modules, "late", late)
    assert whole_path("unknown_b.py:7") == "/w/unknown_b.py:7"
