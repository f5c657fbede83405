"""Machines that lack something: a whole small model, trained and run, gives eager's results and says what is wrong."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lamina.runtime.toolchain import find_compiler
from tests.processes import python

Run = Callable[..., dict[str, Any]]
CLOSE = 1e-5

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked and give up rights")


@pytest.fixture(scope="module")
def run(compiler_name: str) -> Iterator[Run]:
    """Runs the model in a process of its own; keyword arguments are environment variables, None to unset one."""
    if compiler_name != "lamina":
        pytest.skip("checks lamina's own runtime")
    kept = {k: v for k, v in os.environ.items() if not k.startswith("LAMINA_")}
    command = [*python(), "-m", "tests.semantics.environment_child"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**kept, "OMP_NUM_THREADS": "1"}
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def ask(*, obedient: bool = False, **environment: str | None) -> dict[str, Any]:
            process.stdin.write(json.dumps({"environment": environment, "obedient": obedient}) + "\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            answer: dict[str, Any] = json.loads(process.stdout.readline())  # type: ignore[union-attr]
            assert "failed" not in answer, answer["failed"]
            assert answer["largest_error"] < CLOSE
            return answer

        yield ask
        process.stdin.close()


@pytest.fixture(scope="module")
def filled(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that holds all of the model's kernels."""
    if find_compiler() is None:
        pytest.skip("no C++ compiler on this machine")
    folder = tmp_path_factory.mktemp("filled") / "cache"
    answer = run(LAMINA_CACHE_DIR=str(folder))
    assert answer["warnings"] == []
    assert answer["compiled"] >= 3
    assert answer["missing"] == 0
    return folder


@pytest.fixture
def copied(filled: Path, tmp_path: Path) -> Path:
    """A copy of that cache, to be harmed."""
    return Path(shutil.copytree(filled, tmp_path / "cache"))


def objects(cache: Path) -> list[Path]:
    return sorted(cache.rglob("kernels.so"))


def test_a_warm_process_compiles_nothing(run: Run, filled: Path) -> None:
    answer = run(LAMINA_CACHE_DIR=str(filled))
    assert (answer["compiled"], answer["missing"], answer["warnings"]) == (0, 0, [])
    assert answer["reused"] >= 3


def test_no_compiler(run: Run, tmp_path: Path) -> None:
    answer = run(PATH=str(tmp_path), LAMINA_CACHE_DIR=str(tmp_path / "cache"))
    assert answer["missing"] >= 3
    (warning,) = answer["warnings"]
    assert "no C++ compiler" in warning
    assert "do: install g++" in warning


def test_no_compiler_is_an_error_where_fallbacks_are_not_wanted(run: Run, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"LM011 StageFailed: building .* no C\+\+ compiler"):
        run(PATH=str(tmp_path), LAMINA_CACHE_DIR=str(tmp_path / "cache"), LAMINA_STRICT="1")


def test_no_compiler_but_a_cache_made_elsewhere(run: Run, copied: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    answer = run(PATH=str(tmp_path / "empty"), LAMINA_CACHE_DIR=str(copied))
    assert (answer["compiled"], answer["missing"], answer["warnings"]) == (0, 0, [])


def test_a_read_only_cache(run: Run, copied: Path) -> None:
    for folder, _, _ in os.walk(copied, topdown=False):
        os.chmod(folder, 0o500)
    try:
        hit = run(obedient=True, LAMINA_CACHE_DIR=str(copied))
        assert (hit["compiled"], hit["missing"], hit["warnings"]) == (0, 0, [])
        miss = run(obedient=True, LAMINA_CACHE_DIR=str(copied), LAMINA_NUMERICS="eager")
        assert miss["compiled"] >= 1
        assert miss["missing"] == 0
        (warning,) = miss["warnings"]
        assert f"{copied} is not writable" in warning
    finally:
        for folder, _, _ in os.walk(copied):
            os.chmod(folder, 0o700)


def test_a_cache_path_with_spaces_and_other_letters(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "mein Ördner – «ü» 'x' $HOME"
    answer = run(LAMINA_CACHE_DIR=str(folder))
    assert (answer["missing"], answer["warnings"]) == (0, [])
    assert objects(folder)


def truncated(cache: Path) -> None:
    for path in objects(cache):
        path.write_bytes(path.read_bytes()[:1000])


def swapped(cache: Path) -> None:
    first, second = objects(cache)[:2]
    contents = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(contents)


def garbage(cache: Path) -> None:
    for path in cache.rglob("manifest.json"):
        path.write_bytes(b"\xff{not json")


def other_fields(cache: Path) -> None:
    for path in cache.rglob("manifest.json"):
        path.write_text(json.dumps({"format": 1, "sha256": "0" * 64}))


def garbled_notes(cache: Path) -> None:
    for path in (cache / "v1" / "index").rglob("*.json"):
        path.write_text("[]")


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("harm", [truncated, swapped, garbage, other_fields, garbled_notes], ids=lambda f: f.__name__)
def test_a_harmed_cache(run: Run, copied: Path, harm: Callable[[Path], None]) -> None:
    harm(copied)
    answer = run(LAMINA_CACHE_DIR=str(copied))
    assert answer["compiled"] >= 1
    assert answer["missing"] == 0
    assert answer["damages"]
    assert answer["warnings"] == []
    again = run(LAMINA_CACHE_DIR=str(copied))
    assert (again["compiled"], again["damages"], again["warnings"]) == (0, [], [])


def test_a_cache_folder_that_is_a_file(run: Run, tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.touch()
    answer = run(LAMINA_CACHE_DIR=str(place))
    assert answer["missing"] == 0
    (warning,) = answer["warnings"]
    assert f"{place} cannot be used: File exists" in warning


def test_a_home_that_cannot_be_written(run: Run) -> None:
    answer = run(HOME="/proc/nobody")
    assert answer["missing"] == 0
    (warning,) = answer["warnings"]
    assert "/proc/nobody/.cache/lamina cannot be used" in warning
