"""The texts of a program are the same each time they are written, and a change of the compiler shows in them."""

from __future__ import annotations

from pathlib import Path

import pytest

import lamina.backends.cpu as cpu_backend
from benchmarks import corpus


@pytest.fixture(autouse=True)
def _nothing_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_backend, "build_together", corpus._not_built)


def test_texts_hold_every_stage_and_are_the_same_again() -> None:
    (program,) = [p for p in corpus.programs(2) if p.name == "generated_1.bf16.training"]
    first = corpus.texts(program)
    for stage in (
        "capture",
        "program0 partition",
        "program0_forward lower",
        "program0_backward plan",
        "program0_backward host",
    ):
        assert f"==== {stage}\n" in first.replace("====  ", "==== ")
    assert "void k0(" in first or 'extern "C"' in first
    assert "tl.store" in first
    assert corpus.texts(program) == first


def test_differences_are_told_by_program_and_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    programs = {p.name: p for p in corpus.programs(0, 10_000)}
    chosen = [programs["pattern_softmax.fp32.forward"], programs["pattern_row_moments.fp32.forward"]]
    for folder in (before, after):
        folder.mkdir()
        for program in chosen[:1]:
            (folder / f"{program.name}.txt").write_text(corpus.texts(program))
    assert not list(corpus.differences(before, after))
    monkeypatch.setenv("LAMINA_NUMERICS", "eager")
    (after / f"{chosen[0].name}.txt").write_text(corpus.texts(chosen[0]))
    (after / f"{chosen[1].name}.txt").write_text("only here\n")
    found = dict(corpus.differences(before, after))
    assert list(found) == [f"{chosen[1].name}.txt", f"{chosen[0].name}.txt"]
    assert found[f"{chosen[1].name}.txt"] == ["@@ -0,0 +1 @@", "+only here"]
    assert any(line.startswith("+") for line in found[f"{chosen[0].name}.txt"])
