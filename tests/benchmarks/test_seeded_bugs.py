"""The seeded bugs fit the source as it is, and name tests that exist."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.seeded import BUGS, Bug
from benchmarks.seeded_bugs import RESULTS, ROOT, patched


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_fits_the_source_once(bug: Bug) -> None:
    text = patched(bug, (ROOT / bug.file).read_text(encoding="utf-8"))
    if bug.file.endswith(".py"):
        compile(text, bug.file, "exec")
    assert bug.tests
    for test in bug.tests:
        path, _, name = test.partition("::")
        source = (ROOT / path).read_text(encoding="utf-8")
        assert not name or f"def {name.partition('[')[0]}(" in source


def test_a_bug_that_does_not_fit_is_named() -> None:
    bug = Bug("one that is gone", "", "src/lamina/errors.py", "no such text", "", ())
    with pytest.raises(SystemExit, match="one that is gone"):
        patched(bug, Path(ROOT / bug.file).read_text(encoding="utf-8"))


def test_names_are_unique() -> None:
    names = [bug.name for bug in BUGS]
    assert len(set(names)) == len(names) >= 60


def test_nine_of_ten_that_were_run_were_caught() -> None:
    found = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert {o["bug"] for o in found["outcomes"]} <= {bug.name for bug in BUGS}
    assert found["caught"] >= 0.9 * found["run"]
    assert found["run"] >= 60
