from __future__ import annotations

import json
import os
import shutil
import stat
import threading
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from lamina.runtime import cache as cache_module
from lamina.runtime.cache import Cache, Entry, Miss, cache_root, digest

KEY = digest("some", "key")
OTHER = digest("another")


def fill(text: str = "content") -> Callable[[Path], Mapping[str, Any]]:
    def build(folder: Path) -> Mapping[str, Any]:
        (folder / "a.txt").write_text(text)
        (folder / "b.bin").write_bytes(text.encode() * 3)
        return {"what": text, "sizes": [1, 2]}

    return build


def fail(folder: Path) -> Mapping[str, Any]:
    raise AssertionError("the entry was built again")


def entry_of(cache: Cache, key: str = KEY) -> Entry:
    found = cache.get(key)
    assert isinstance(found, Entry), found
    return found


def miss_of(cache: Cache, key: str = KEY) -> Miss:
    found = cache.get(key)
    assert isinstance(found, Miss)
    return found


def test_an_entry_comes_back_as_it_was_built(cache: Cache) -> None:
    assert miss_of(cache) == Miss(KEY, "not in the cache")
    built = cache.get_or_build(KEY, fill())
    found = entry_of(Cache(cache.location))
    assert found == built
    assert found.fields == {"what": "content", "sizes": [1, 2]}
    assert found.read("b.bin") == b"contentcontentcontent"
    assert cache.get_or_build(KEY, fail) == built


def test_digest_keeps_parts_apart() -> None:
    assert digest("ab", "c") != digest("a", "bc")
    assert digest("ab") != digest("ab", "")


def test_everything_is_private_to_the_user(cache: Cache) -> None:
    old = os.umask(0)
    try:
        entry = cache.get_or_build(KEY, fill())
    finally:
        os.umask(old)
    folders = [entry.path, *entry.path.parents][: len(entry.path.relative_to(cache.location).parts) + 1]
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in folders] == [0o700] * len(folders)


def test_a_hit_writes_nothing(cache: Cache) -> None:
    entry = cache.get_or_build(KEY, fill())
    shutil.rmtree(cache.location / "v1" / "locks")

    def state() -> list[tuple[str, int]]:
        return sorted((str(p), p.stat().st_mtime_ns) for p in cache.location.rglob("*"))

    before = state()
    assert Cache(cache.location).get_or_build(KEY, fail) == entry
    assert state() == before


def test_no_absolute_path_is_stored_and_the_folder_can_move(cache: Cache, tmp_path: Path) -> None:
    cache.get_or_build(KEY, fill())
    cache.write_note(OTHER, {"object": KEY})
    texts = [p.read_bytes() for p in cache.location.rglob("*") if p.is_file()]
    assert texts
    assert not any(str(tmp_path).encode() in text for text in texts)
    moved = cache.location.rename(tmp_path / "anderswo – ünïcode and spaces")
    assert entry_of(Cache(moved)).read("a.txt") == b"content"
    assert Cache(moved).note(OTHER) == {"object": KEY, "name": OTHER}


def damage_object(entry: Entry) -> None:
    (entry.path / "b.bin").write_bytes(b"other")


def flip_one_bit(entry: Entry) -> None:
    content = bytearray((entry.path / "b.bin").read_bytes())
    content[3] ^= 1
    (entry.path / "b.bin").write_bytes(content)


def empty_object(entry: Entry) -> None:
    (entry.path / "b.bin").write_bytes(b"")


def remove_object(entry: Entry) -> None:
    (entry.path / "b.bin").unlink()


def truncate_manifest(entry: Entry) -> None:
    path = entry.path / "manifest.json"
    path.write_text(path.read_text()[:40])


def remove_manifest(entry: Entry) -> None:
    (entry.path / "manifest.json").unlink()


def change_manifest(entry: Entry) -> None:
    path = entry.path / "manifest.json"
    path.write_text(path.read_text().replace("content", "kontent"))


def manifest_of_another_kind(entry: Entry) -> None:
    (entry.path / "manifest.json").write_text("[1, 2]")


DAMAGES = [
    damage_object,
    flip_one_bit,
    empty_object,
    remove_object,
    truncate_manifest,
    remove_manifest,
    change_manifest,
    manifest_of_another_kind,
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda f: f.__name__)
def test_a_damaged_entry_is_a_miss_with_a_reason_and_is_replaced(cache: Cache, damage: Callable[[Entry], None]) -> None:
    damage(cache.get_or_build(KEY, fill()))
    again = Cache(cache.location)
    miss = miss_of(again)
    assert miss.damaged
    assert miss.reason != "not in the cache"
    assert again.damages[0] == miss
    assert again.get_or_build(KEY, fill("new")).fields["what"] == "new"
    assert entry_of(Cache(cache.location)).read("a.txt") == b"new"
    assert not list((cache.location / "v1").glob("tmp-*"))


def test_an_object_swapped_for_that_of_another_entry_is_a_miss(cache: Cache) -> None:
    one, other = cache.get_or_build(KEY, fill("one")), cache.get_or_build(OTHER, fill("two"))
    shutil.copy(other.path / "b.bin", one.path / "b.bin")
    assert "SHA-256" in miss_of(cache).reason


def test_a_whole_entry_swapped_for_another_is_a_miss(cache: Cache) -> None:
    one, other = cache.get_or_build(KEY, fill("one")), cache.get_or_build(OTHER, fill("two"))
    shutil.rmtree(one.path)
    shutil.copytree(other.path, one.path)
    assert "another entry" in miss_of(cache).reason


def test_a_file_changed_after_the_check_is_not_read(cache: Cache) -> None:
    entry = cache.get_or_build(KEY, fill())
    damage_object(entry)
    with pytest.raises(OSError, match="changed"):
        entry.read("b.bin")


def test_damaged_notes_are_none(cache: Cache) -> None:
    cache.write_note(KEY, {"object": OTHER})
    [path] = (cache.location / "v1" / "index").rglob("*.json")
    whole = path.read_text()
    path.write_text(whole.replace(OTHER[:6], "ffffff"))
    assert Cache(cache.location).note(KEY) is None
    path.write_text(whole[:20])
    again = Cache(cache.location)
    assert again.note(KEY) is None
    assert again.damages[0].damaged
    assert cache.note(OTHER) is None
    again.write_note(KEY, {"object": KEY})
    assert cache.note(KEY) == {"object": KEY, "name": KEY}


def test_notes_are_found_by_prefix(cache: Cache) -> None:
    for name in (f"{KEY}.gcc", f"{KEY}.clang", OTHER):
        cache.write_note(name, {})
    assert cache.notes_of(f"{KEY}.") == (f"{KEY}.clang", f"{KEY}.gcc")


def test_a_build_that_fails_leaves_nothing(cache: Cache) -> None:
    def broken(folder: Path) -> Mapping[str, Any]:
        (folder / "half.txt").write_text("half")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        cache.get_or_build(KEY, broken)
    assert isinstance(cache.get(KEY), Miss)
    assert not list((cache.location / "v1").glob("tmp-*"))
    assert cache.get_or_build(KEY, fill())


def test_threads_build_a_key_once(cache: Cache) -> None:
    built: list[int] = []
    together = threading.Barrier(8)

    def build(folder: Path) -> Mapping[str, Any]:
        built.append(1)
        return fill()(folder)

    def ask() -> None:
        together.wait()
        cache.get_or_build(KEY, build)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert built == [1]


def test_the_lock_excludes_another_cache_object_on_the_same_folder(cache: Cache) -> None:
    other = Cache(cache.location / ".." / cache.location.name)  # another path: only the file can tell
    with cache.lock("ab"):
        assert not other.lock("ab").acquire(blocking=False)
        free = other.lock("ac")
        assert free.acquire(blocking=False)
        free.release()
    again = other.lock("ab")
    assert again.acquire(blocking=False)
    again.release()


def test_a_root_that_is_a_file_costs_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "_WARNED", set())
    (tmp_path / "file").write_text("not a folder")
    with pytest.warns(RuntimeWarning, match="file"):
        first = Cache(tmp_path / "file").get_or_build(KEY, fill())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Cache(tmp_path / "file").get_or_build(KEY, fail) == first
    assert tmp_path not in first.path.parents


@pytest.mark.parametrize("broken", ["mkdir", "mkdtemp", "rename"])
def test_a_root_that_cannot_be_written_keeps_its_hits(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    old = cache.get_or_build(KEY, fill())
    monkeypatch.setattr(cache_module, "_WARNED", set())
    real = {"mkdir": os.mkdir, "mkdtemp": cache_module.tempfile.mkdtemp, "rename": os.rename}[broken]

    def refuse(*args: Any, **options: Any) -> Any:
        given = options.get("dir_fd") or options.get("dst_dir_fd")
        named = options.get("dir") or args[-1 if broken == "rename" else 0]
        place = os.readlink(f"/proc/self/fd/{given}") if given else named
        if str(place).startswith(str(cache.location)):
            raise OSError(30, "Read-only file system")
        return real(*args, **options)

    module = cache_module.tempfile if broken == "mkdtemp" else os
    monkeypatch.setattr(module, broken, refuse)
    reader = Cache(cache.location)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert reader.get_or_build(KEY, fail) == old
    with pytest.warns(RuntimeWarning, match="Read-only"):
        new = reader.get_or_build(OTHER, fill("new"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reader.write_note(OTHER, {"object": OTHER})
    assert cache.location not in new.path.parents
    assert reader.get_or_build(OTHER, fail) == new
    assert reader.note(OTHER) is not None


def test_a_root_without_write_permission_is_only_read(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    old = cache.get_or_build(KEY, fill())
    monkeypatch.setattr(cache_module.os, "access", lambda path, mode: False)
    reader = Cache(cache.location)
    assert "not writable" in reader.problem
    assert reader.get_or_build(KEY, fail) == old


def test_without_a_root_nothing_is_warned_of_and_the_process_has_its_own_folder() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        entry = Cache(None).get_or_build(digest("private"), fill())
        assert Cache(None).get_or_build(digest("private"), fail) == entry
    assert stat.S_IMODE(entry.path.stat().st_mode) == 0o700


def test_a_root_of_another_user_is_not_read(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.get_or_build(KEY, fill())
    owner = cache.location.stat().st_uid
    if owner == 0:
        os.chown(cache.location / "v1", 12345, -1)  # the superuser's own folders are trusted by all
        owner = 12345
    else:
        monkeypatch.setattr(cache_module.os, "geteuid", lambda: owner + 1)
    stranger = Cache(cache.location)
    assert f"user {owner}" in stranger.problem
    assert isinstance(stranger.get(KEY), Miss)


def test_a_root_that_others_can_write_is_not_read(cache: Cache) -> None:
    cache.get_or_build(KEY, fill())
    (cache.location / "v1").chmod(0o777)
    assert "other users" in Cache(cache.location).problem
    (cache.location / "v1").chmod(0o700)
    assert entry_of(Cache(cache.location))
    cache.location.chmod(0o777)
    assert "other users" in Cache(cache.location).problem
    cache.location.chmod(0o1777)  # as /tmp: others cannot replace what is ours
    assert entry_of(Cache(cache.location))


def test_what_dead_processes_left_is_swept_away(cache: Cache) -> None:
    top = cache.location / "v1"
    for name, age in (("tmp-old", 1e6), ("tmp-new", 0.0)):
        (top / name).mkdir()
        (top / name / "half.o").write_text("x")
        os.utime(top / name, (top.stat().st_mtime - age,) * 2)
    cache.get_or_build(KEY, fill())
    assert not (top / "tmp-old").exists()
    assert (top / "tmp-new").exists()


def test_manifests_are_plain_readable_json(cache: Cache) -> None:
    entry = cache.get_or_build(KEY, fill())
    manifest = json.loads((entry.path / "manifest.json").read_text())
    assert manifest["format"] == cache_module.FORMAT
    assert manifest["files"]["a.txt"] == digest(b"content")


def test_the_default_root_is_in_the_home_folder() -> None:
    assert cache_root() == Path.home() / ".cache" / "lamina"
    assert cache_root("/some/where") == Path("/some/where")


def test_without_a_home_the_folder_is_the_users_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def homeless(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", homeless)
    monkeypatch.setattr(cache_module.tempfile, "gettempdir", lambda: str(tmp_path))
    assert cache_root().parent == tmp_path
    assert str(os.geteuid()) in cache_root().name
    assert cache_root("~/named") == Path("~/named")
