"""A kernel that the cache lacks is compared with the nearest that it had: the part that differs, and both values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import lamina
from lamina.base.decision import Decision
from lamina.runtime.cache import Cache


def program(x: Tensor) -> Tensor:
    return (x.sin() * 2 + 1).softmax(-1)


def missed(folder: Path, columns: int, **options: Any) -> list[Decision]:
    """The decisions on the cache of a program compiled in a folder, beyond the one that counts."""
    torch.compiler.reset()
    options = {"compare_eager": "off", "progress": False, "cache_dir": str(folder), **options}
    compiled = lamina.compile(program, dynamic=False, options=options)
    compiled(torch.randn(8, columns))
    assert not compiled.record.incomplete
    first, *others = compiled.record.decisions("cache")
    assert first.taken == (not others)
    return others


def test_what_differs_is_told(tmp_path: Path) -> None:
    assert [d.code for d in missed(tmp_path, 64)] == ["LM7103"]
    assert missed(tmp_path, 64) == []
    (size,) = missed(tmp_path, 96)
    facts = dict(size.facts)
    assert (size.code, facts["part"]) == ("LM7106", "source")
    assert "64" in str(facts["old"])
    assert "96" in str(facts["new"])
    assert str(facts["old"]) in size.reason
    assert not size.remedy


def test_flags_are_told(tmp_path: Path) -> None:
    missed(tmp_path, 64)
    (flags,) = missed(tmp_path, 64, numerics="eager")
    assert dict(flags.facts)["part"] == "flags"
    assert "-ffp-contract=off" in str(dict(flags.facts)["new"])


def test_what_only_lamina_decides_has_no_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missed(tmp_path, 64)
    monkeypatch.setattr("lamina.runtime.nearest.ABI", "another")
    (version,) = missed(tmp_path, 96)
    assert (version.code, dict(version.facts)["part"], version.remedy) == ("LM7108", "version of the runtime", "")


def test_an_entry_that_was_removed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lamina.runtime.library._LOADED", {})
    monkeypatch.setattr("lamina.runtime.library._LIBRARIES", {})
    missed(tmp_path, 80)
    for entry in (tmp_path / "v1").glob("*/*/manifest.json"):
        Cache(tmp_path).evict(entry.parent.name, "removed by the test")
    monkeypatch.setattr("lamina.runtime.library._LOADED", {})
    monkeypatch.setattr("lamina.runtime.library._LIBRARIES", {})
    assert [d.code for d in missed(tmp_path, 80)] == ["LM7105"]


def test_a_failure_in_comparing_builds_the_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> object:
        raise LookupError("injected")

    monkeypatch.setattr("lamina.runtime.build.missed_kernels", failing)
    monkeypatch.setattr("lamina.runtime.batch.note_built", failing)
    torch.compiler.reset()
    compiled = lamina.compile(program, options={"compare_eager": "off", "progress": False, "cache_dir": str(tmp_path)})
    x = torch.randn(8, 48)
    torch.testing.assert_close(compiled(x), program(x))
    assert [d.code for d in compiled.record.decisions("cache")] == ["LM7101"]
