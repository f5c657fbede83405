"""Odd files in a cache's place, bad objects, other users, growth."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import lamina
from lamina.runtime.cache import Cache, Entry, Miss, digest
from lamina.runtime.cache_usage import items
from lamina.runtime.kernel import KernelFunction, KernelUnit
from lamina.runtime.library import OBJECT
from lamina.runtime.toolchain import Compiler
from tests.runtime.caching import CONTENT, KEY, Forget, MakeUnit, build, fill, script


@pytest.mark.parametrize("what", ["file", "manifest", "entry", "stripe"])
@pytest.mark.parametrize("how", ["owner", "mode"])
def test_what_another_user_could_have_written_is_not_read(
    what: str, how: str, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = cache.put(KEY, fill)
    path = {
        "file": entry.path / "a.bin",
        "manifest": entry.path / "manifest.json",
        "entry": entry.path,
        "stripe": entry.path.parent,
    }[what]
    if how == "mode":
        path.chmod(0o777)
    else:
        real, number = os.fstat, path.stat().st_ino

        def foreign(descriptor: int) -> os.stat_result:
            found = real(descriptor)
            values = list(found)
            values[4] = os.geteuid() + 7 if found.st_ino == number else found.st_uid
            return os.stat_result(values)

        monkeypatch.setattr(os, "fstat", foreign)
    found = cache.get(KEY)
    assert isinstance(found, Miss)
    assert found.damaged
    assert re.search(r"belongs to user|can be written by", found.reason)
    if what != "manifest":  # one that was checked before is not read again
        with pytest.raises(OSError, match=r"belongs to user|can be written by"):
            entry.read("a.bin")


def test_a_root_that_is_turned_round_after_it_was_opened_is_not_followed(tmp_path: Path) -> None:
    ours, theirs, link = tmp_path / "ours", tmp_path / "theirs", tmp_path / "link"
    ours.mkdir(mode=0o700)
    link.symlink_to(ours)
    cache = Cache(link)
    cache.put(KEY, fill)
    shutil.copytree(ours, theirs)
    (theirs / "v1" / KEY[:2] / KEY / "a.bin").write_bytes(b"poison")
    link.unlink()
    link.symlink_to(theirs)
    found = cache.get(KEY)
    assert isinstance(found, Entry)
    assert found.read("a.bin") == CONTENT


def _to_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _to_link(path: Path) -> None:
    outside = path.parent.parent.parent / "outside"
    path.rename(outside)
    path.symlink_to(outside)


def _to_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _to_device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def _to_nothing(path: Path) -> None:
    path.unlink()
    path.symlink_to("/nonexistent/file")


def _to_others(path: Path) -> None:
    path.chmod(0o666)


ATTACKS = {
    "a FIFO": _to_fifo,
    "a symbolic link": _to_link,
    "a folder": _to_folder,
    "a device": _to_device,
    "a link to nothing": _to_nothing,
    "a file that others may write to": _to_others,
    "a file cut off": lambda path: os.truncate(path, 3),
    "an empty file": lambda path: os.truncate(path, 0),
    "no file": Path.unlink,
}


@pytest.mark.parametrize("name", ["a.bin", "manifest.json"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_only_a_regular_file_of_the_user_is_read(cache: Cache, attack: str, name: str) -> None:
    cache.put(KEY, fill)
    (path,) = cache.location.rglob(name)
    ATTACKS[attack](path)
    fresh = Cache(cache.location)
    for opened in (cache, fresh):
        assert isinstance(opened.get(KEY), Miss)
    assert fresh.get_or_build(KEY, fill).read("a.bin") == CONTENT
    assert fresh.problem == ""  # the cache is not given up for it
    assert isinstance(Cache(cache.location).get(KEY), Entry)  # it was put right


@pytest.mark.parametrize("kind", ["pipe", "link", "device", "dangling"])
def test_an_entry_that_is_no_folder_is_replaced(kind: str, cache: Cache, tmp_path: Path) -> None:
    path, aside = cache.put(KEY, fill).path, tmp_path / "aside"
    path.rename(aside)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to({"link": aside, "device": "/dev/zero", "dangling": "/nonexistent/file"}[kind])
    assert isinstance(cache.get(KEY), Miss)
    cache.get_or_build(KEY, fill)
    assert isinstance(cache.get(KEY), Entry)
    assert cache.problem == ""  # the cache is not given up for it


def test_a_note_that_is_a_pipe_is_none(cache: Cache) -> None:
    cache.write_note(f"{KEY}.x", {"a": 1})
    (path,) = (cache.location / "v1" / "index").rglob("*.json")
    path.unlink()
    os.mkfifo(path)
    assert cache.note(f"{KEY}.x") is None
    cache.write_note(f"{KEY}.x", {"a": 2})
    assert cache.note(f"{KEY}.x") == {"a": 2, "name": f"{KEY}.x"}


def objects(cache: Cache) -> list[Path]:
    return sorted(cache.location.glob(f"v1/??/*/{OBJECT}"))


@pytest.mark.parametrize(
    "link", ['exec "$REAL" -shared -nostdlib -x c /dev/null -o kernels.so', "echo nonsense > kernels.so; exit 0"]
)
def test_an_object_that_lacks_its_kernels_is_not_registered(
    link: str, compiler: Compiler, cache: Cache, scale_unit: MakeUnit, tmp_path: Path, fresh_process: Forget
) -> None:
    text = f'REAL="{compiler.path}"\ncase "$*" in *kernels.so*) {link};; esac\nexec "$REAL" "$@"'
    lying = Compiler(
        str(script(tmp_path, "lying-c++", text)), compiler.kind, compiler.version, compiler.machine, compiler.stub
    )
    result = build([scale_unit(1), scale_unit(2)], lying, cache)
    assert sorted(result.errors) == ["scale_1", "scale_2"]
    assert not objects(cache)
    fresh_process()
    assert build([scale_unit(1)], compiler, cache).compiled == 1


@pytest.mark.parametrize("how", ["no object", "no symbol"])
def test_a_bad_object_in_the_cache_is_evicted_and_built_again(
    how: str, compiler: Compiler, cache: Cache, scale_unit: MakeUnit, tmp_path: Path, fresh_process: Forget
) -> None:
    assert build([scale_unit(1)], compiler, cache).compiled == 1
    (there,) = objects(cache)
    entry = cache.get(there.parent.name)
    assert isinstance(entry, Entry)

    def bad(folder: Path) -> Mapping[str, Any]:
        if how == "no object":
            (folder / OBJECT).write_bytes(b"nonsense")
        else:
            words = (compiler.path, "-shared", "-nostdlib", "-x", "c", "/dev/null", "-o", str(folder / OBJECT))
            subprocess.run(words, check=True)
        return entry.fields

    shutil.rmtree(there.parent)
    cache.put(entry.key, bad)
    fresh_process()
    result = build([scale_unit(1)], compiler, cache)
    assert (result.compiled, dict(result.errors)) == (1, {})
    assert any(damage.key == entry.key for damage in result.damages)
    fresh_process()
    assert build([scale_unit(1)], compiler, Cache(cache.location)).reused == 1


def test_an_object_without_its_symbol_is_not_kept(compiler: Compiler, cache: Cache, scale_unit: MakeUnit) -> None:
    lost = KernelUnit("lost", "", (KernelFunction("nowhere", "p"),))
    result = build([lost], compiler, cache)
    assert "nowhere" in str(result.errors["lost"])
    assert not result.kernels
    assert cache.top is not None
    assert not [item.name for item in items(cache.top) if not item.is_note]
    assert build([scale_unit(1)], compiler, cache).compiled == 1


def test_the_least_recently_used_are_removed(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", limit=50_000)
    keys = [digest("entry", str(i)) for i in range(20)]
    for number, key in enumerate(keys):
        entry = cache.put(key, fill)
        os.utime(entry.path / "manifest.json", (number, number))
        if number == 3:
            cache.get(keys[0])  # marks it as used now
    assert cache.top is not None
    assert sum(item.nbytes for item in items(cache.top)) <= 50_000
    assert sum(path.stat().st_size for path in cache.location.rglob("*") if path.is_file()) <= 50_000
    held = [key for key in keys if isinstance(cache.get(key), Entry)]
    assert keys[0] in held
    assert keys[-1] in held
    assert keys[1] not in held


def test_a_cache_without_a_limit_keeps_all(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    keys = [digest("entry", str(i)) for i in range(20)]
    for key in keys:
        cache.put(key, fill)
    assert all(isinstance(cache.get(key), Entry) for key in keys)


def test_the_limit_is_an_option(tmp_path: Path) -> None:
    assert lamina.Options().cache_limit == 10240
    assert lamina.Options.from_environment({"cache_limit": 7}).cache_limit == 7
