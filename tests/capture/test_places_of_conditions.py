"""The files that conditions name: found by whole parts of their paths, as torch shortens them."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch.utils._traceback import shorten_filename

import lamina
from lamina.capture.conditions import whole_path


def test_the_likely_file_is_taken_for_whole_parts_only() -> None:
    assert whole_path("unknown_a.py:3", "/w/data_unknown_a.py") == "unknown_a.py:3"
    assert whole_path("unknown_a.py:3", "/w/unknown_a.py") == "/w/unknown_a.py:3"
    assert whole_path("w/unknown_a.py", "/w/unknown_a.py") == "/w/unknown_a.py"
    assert whole_path("mp/unknown_a.py:3", "/tmp/unknown_a.py") == "/tmp/unknown_a.py:3"  # as torch writes it
    assert whole_path("unknown_a.py", "unknown_a.py") == "unknown_a.py"


@pytest.mark.parametrize("module", [torch.nn.functional, json, lamina])
def test_what_torch_has_shortened_is_found(module: ModuleType) -> None:
    path = str(module.__file__)
    assert shorten_filename(path) != path
    assert whole_path(f"{shorten_filename(path)}:7") == f"{path}:7"


def test_a_name_that_may_be_of_several_files_stays_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them is preferred because it is loaded, or because the name is its last part."""
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "project/env/packages/torch/__init__.py"))
    (tmp_path / "project/env/packages/torch/utils").mkdir(parents=True)
    (tmp_path / "project/env/packages/torch/utils/common_c.py").touch()
    assert whole_path("common_c.py:3") == "common_c.py:3"
    (tmp_path / "project/common_c.py").touch()
    assert whole_path("common_c.py:3") == f"{tmp_path}/project/common_c.py:3"
    (tmp_path / "project/common_d.py").touch()
    (tmp_path / "project/env/common_d.py").touch()
    assert whole_path("common_d.py:3") == "common_d.py:3"
