"""Whose kernels a cache holds: a compiler's identity; full disks, and compilers that are not there."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import lamina
from lamina.errors import LaminaWarning
from lamina.runtime import batch, cache_entries, compilation, workspace
from lamina.runtime.cache import Cache
from lamina.runtime.toolchain import Compiler, DiskIsFull, NoCompiler, find_compiler, look_for_compiler, probe
from lamina.runtime.workspace import DiskFull
from tests.runtime.caching import Forget, MakeUnit, build, script


def test_what_a_wrapper_adds_is_part_of_the_compilers_identity(
    compiler: Compiler, cache: Cache, tmp_path: Path
) -> None:
    fast = script(tmp_path, "fast-c++", f'exec "{compiler.path}" -ffast-math "$@"')
    plain = script(tmp_path, "plain-c++", f'exec "{compiler.path}" "$@"')
    found = [find_compiler(str(path), cache) for path in (fast, plain)] + [compiler]
    assert len({one.identity for one in found if one is not None}) == 3


def test_kernels_of_a_wrapper_are_not_those_of_the_compiler(
    compiler: Compiler, cache: Cache, scale_unit: MakeUnit, tmp_path: Path, fresh_process: Forget
) -> None:
    fast = find_compiler(str(script(tmp_path, "fast-c++", f'exec "{compiler.path}" -ffast-math "$@"')), cache)
    assert build([scale_unit(1)], fast, cache).compiled == 1
    fresh_process()
    assert build([scale_unit(1)], compiler, cache).compiled == 1


def test_a_wrapper_that_is_edited_is_another_compiler(
    compiler: Compiler, cache: Cache, tmp_path: Path, fresh_process: Forget
) -> None:
    path = script(tmp_path, "c++", f'exec "{compiler.path}" "$@"')
    before = find_compiler(str(path), cache)
    script(tmp_path, "c++", f'exec "{compiler.path}" -DX=1 -ffast-math "$@"')
    fresh_process()
    after = find_compiler(str(path), cache)
    assert before is not None
    assert after is not None
    assert before.identity != after.identity


def test_the_name_that_a_program_is_called_by_counts(compiler: Compiler, cache: Cache, tmp_path: Path) -> None:
    text = f'case "$0" in *fast*) exec "{compiler.path}" -ffast-math "$@";; esac\nexec "{compiler.path}" "$@"'
    path = script(tmp_path, "many", text)
    for name in ("fast-c++", "slow-c++"):
        (tmp_path / name).symlink_to(path)
    found = [find_compiler(str(tmp_path / name), cache) for name in ("fast-c++", "slow-c++")]
    assert len({one.identity for one in found if one is not None}) == 2


def test_a_full_disk_is_not_no_compiler(compiler: Compiler, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(workspace.tempfile, "mkdtemp", full)
    monkeypatch.setattr(cache_entries.tempfile, "mkdtemp", full)
    found = look_for_compiler(compiler.path, cache)
    assert isinstance(found, DiskIsFull)
    assert "no disk has room" in found.what
    assert "install" not in str(found)


def test_the_next_disk_is_used_where_the_first_is_full(
    compiler: Compiler, cache: Cache, scale_unit: MakeUnit, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Path] = []

    def places(folder: Callable[[], Path]) -> list[str]:
        return [tempfile.gettempdir(), str(cache.location)]

    monkeypatch.setattr(workspace, "_places", places)
    compile_in = batch._compile

    def fails_once(build: Any, compiler: Compiler, hashes: list[str], space: workspace.Workspace) -> list[str]:
        tried.append(space.path.parent)
        if len(tried) == 1:
            raise DiskFull(errno.ENOSPC, "full")
        return compile_in(build, compiler, hashes, space)

    monkeypatch.setattr(batch, "_compile", fails_once)
    result = build([scale_unit(1)], compiler, cache)
    assert (result.compiled, tried) == (1, [Path(tempfile.gettempdir()), cache.location])


def test_a_relative_compiler(compiler: Compiler, cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, "my-c++", f'exec "{compiler.path}" "$@"')
    monkeypatch.chdir(tmp_path)
    found = find_compiler("./my-c++", cache)
    assert found is not None
    assert found.path == str(tmp_path / "my-c++")
    monkeypatch.setenv("PATH", f".:{os.environ['PATH']}")
    assert find_compiler("my-c++", cache) is not None
    with pytest.raises(NoCompiler, match=r"no-such-c\+\+"):
        probe("no-such-c++", cache)


@pytest.mark.parametrize(
    ("cxx", "why"), [("nonsense", "nonsense is not on the PATH"), ("/nowhere/c++", "/nowhere/c++")]
)
def test_a_compiler_that_is_not_there_is_told_even_if_the_cache_serves(
    cxx: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(**options: Any) -> torch.Tensor:
        torch.compiler.reset()
        compiled = lamina.compile(lambda x: (x * 2.75).cos(), options={"cache_dir": str(tmp_path), **options})
        result: torch.Tensor = compiled(torch.ones(8))
        return result

    run()
    monkeypatch.setattr("lamina.backends.caches._warned", set())
    with pytest.warns(lamina.LaminaWarning, match=re.escape(why)):
        run(cxx=cxx)


def test_a_full_disk_is_no_missing_compiler(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_process: Callable[[], None]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("lamina.runtime.cache_entries.write_file", full)
    monkeypatch.setattr(Path, "write_bytes", full)
    monkeypatch.setattr(Path, "write_text", full)
    cache = Cache(tmp_path / "cache")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LaminaWarning)
        with pytest.raises(DiskIsFull, match="the disk is full") as caught:
            probe(compiler.path, cache)
    assert "TMPDIR" in str(caught.value)
    assert "install" not in str(caught.value)


def test_a_compiler_may_say_any_amount(compiler: Compiler, cache: Cache, scale_unit: MakeUnit, tmp_path: Path) -> None:
    text = f'head -c 3000000 /dev/zero | tr "\\0" x\nprintf "\\377 end"\nexec "{compiler.path}" "$@"'
    found = probe(str(script(tmp_path, "talkative", text)), cache)
    assert build([scale_unit(1)], found, cache).compiled == 1


def test_a_compiler_that_leaves_a_process_behind_has_ended(compiler: Compiler, cache: Cache, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    path = script(tmp_path, "leaves", f'(sleep 30; touch "{mark}") &\nexec "{compiler.path}" "$@"')
    start = time.monotonic()
    assert probe(str(path), cache).kind in ("gcc", "clang")
    assert time.monotonic() - start < 20
    groups = subprocess.run(("pgrep", "-f", str(path)), capture_output=True, check=False)
    assert not groups.stdout.split()


def test_a_compiler_that_writes_nothing_is_told_by_what_it_does(cache: Cache, tmp_path: Path) -> None:
    path = script(tmp_path, "idle", "exit 0")
    with pytest.raises(NoCompiler, match=r"says that all is well and writes no"):
        probe(str(path), cache)


def test_what_is_kept_of_much_is_its_beginning_and_end() -> None:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    said = compilation._Said()
    for k in range(40):
        os.write(writing, f"<{k}>".encode() + b"x" * 50_000)
        assert said.read(reading)
    os.close(writing)
    assert not said.read(reading)
    os.close(reading)
    text = said.text()
    assert text.startswith("<0>")
    assert "<39>" in text
    assert "bytes left out" in text
    assert len(text) < 5 * compilation._MOST_SAID
