from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import lamina
from lamina.base.text import one_line
from lamina.cli.app import app
from lamina.errors import BadArgument
from lamina.runtime import cache_tool
from lamina.runtime.cache import FORMAT, Cache, Entry, digest
from lamina.runtime.cache_files import signed

KEY = digest("an entry")


def run(root: Path, *words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["cache", *words], env={"LAMINA_CACHE_DIR": str(root)})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output


def fill(text: str) -> Callable[[Path], Mapping[str, Any]]:
    def build(folder: Path) -> Mapping[str, Any]:
        (folder / "a.txt").write_text(text)
        return {"kind": "example"}

    return build


@pytest.fixture
def root(tmp_path: Path) -> Path:
    cache = Cache(tmp_path / "cache")
    cache.put(KEY, fill("content"))
    cache.write_note(f"{KEY}.note", {"object": KEY})
    return tmp_path / "cache"


def test_info_says_what_is_there(root: Path) -> None:
    status, said = run(root, "info")
    assert status == 0
    assert str(root) in said
    assert "in 2 entries and notes, limit 10240.0 MiB" in said
    assert [line.split()[:2] for line in said.splitlines()[2:]] == [["note", "1"], ["example", "1"]] or [
        line.split()[:2] for line in said.splitlines()[2:]
    ] == [["example", "1"], ["note", "1"]]


def test_verify_removes_what_is_bad(root: Path) -> None:
    assert run(root, "verify") == (0, "0 bad\n")
    (root / "v1" / KEY[:2] / KEY / "a.txt").write_text("changed")
    status, said = run(root, "verify", "--no-repair")
    assert status == 1
    assert "a.txt does not have the SHA-256" in said
    assert "2 bad" in said  # the note leads to it
    assert run(root, "verify")[0] == 1
    assert run(root, "verify") == (0, "0 bad\n")
    assert not (root / "v1" / KEY[:2] / KEY).exists()


def test_verify_loads_objects(root: Path) -> None:
    def build(folder: Path) -> Mapping[str, Any]:
        (folder / "kernels.so").write_bytes(b"no object")
        return {"kind": "kernels"}

    Cache(root).put(digest("object"), build)
    status, said = run(root, "verify")
    assert status == 1
    assert "kernels.so cannot be loaded" in said


def test_clear_removes_all(root: Path) -> None:
    assert run(root, "clear") == (0, "2 entries and notes removed\n")
    assert run(root, "clear") == (0, "0 entries and notes removed\n")


def test_what_is_exported_is_imported(root: Path, tmp_path: Path) -> None:
    archive, other = tmp_path / "cache.tar.gz", tmp_path / "other"
    assert run(root, "export", str(archive))[0] == 0
    status, said = run(other, "import", str(archive))
    assert (status, said) == (0, "2 entries and notes added, 0 refused\n")
    there = Cache(other)
    entry = there.get(KEY)
    assert isinstance(entry, Entry)
    assert entry.read("a.txt") == b"content"
    assert there.note(f"{KEY}.note") is not None
    again = tmp_path / "again.tar.gz"
    run(other, "export", str(again))
    with tarfile.open(archive) as one, tarfile.open(again) as two:
        assert one.getnames() == two.getnames()


def test_an_imported_cache_serves_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(folder: Path) -> Any:
        torch.compiler.reset()
        return lamina.compile(lambda x: (x * 7.25).sin() + 0.125, options={"cache_dir": str(folder), "strict": True})

    x = torch.randn(33)
    expected = compiled(tmp_path / "one")(x)
    run(tmp_path / "one", "export", str(tmp_path / "archive"))
    run(tmp_path / "two", "import", str(tmp_path / "archive"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert torch.equal(compiled(tmp_path / "two")(x), expected)


@pytest.mark.parametrize(
    "name", ["../outside", "/outside", f"v1/../{KEY}/x", f"v1/{KEY[:2]}/{KEY}/../../x", "v1/usage"]
)
def test_nothing_is_written_outside_of_the_cache(name: str, root: Path, tmp_path: Path) -> None:
    archive = tmp_path / "bad.tar"
    with tarfile.open(archive, "w") as made:
        member = tarfile.TarInfo(name)
        member.size = 3
        made.addfile(member, io.BytesIO(b"bad"))
        link = tarfile.TarInfo(f"v1/{KEY[:2]}/{KEY}/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        made.addfile(link)
    before = sorted(tmp_path.rglob("*"))
    status, said = run(root, "import", str(archive))
    assert status == 1
    assert "0 entries and notes added, 2 refused" in said
    assert sorted(tmp_path.rglob("*")) == before


def test_a_changed_archive_is_refused(root: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "bad.tar", "w") as made:
        for file, text in (
            ("manifest.json", (root / "v1" / KEY[:2] / KEY / "manifest.json").read_bytes()),
            ("a.txt", b"x"),
        ):
            member = tarfile.TarInfo(f"v1/{KEY[:2]}/{KEY}/{file}")
            member.size = len(text)
            made.addfile(member, io.BytesIO(text))
    status, said = run(tmp_path / "other", "import", str(tmp_path / "bad.tar"))
    assert status == 1
    assert "its files are not those of the manifest" in said
    (tmp_path / "no.tar").write_text("no archive")
    with pytest.raises(BadArgument, match="cannot be read") as refused:
        run(tmp_path / "other", "import", str(tmp_path / "no.tar"))
    assert "\n" not in refused.value.what


def archive_of(path: Path, members: Sequence[tuple[str, bytes]]) -> Path:
    with tarfile.open(path, "w") as made:
        for name, text in members:
            member = tarfile.TarInfo(name)
            member.size = len(text)
            made.addfile(member, io.BytesIO(text))
    return path


def entry_of(key: str, **files: bytes) -> list[tuple[str, bytes]]:
    given = {name: digest(content) for name, content in files.items()}
    manifest = signed({"format": FORMAT, "key": key, "fields": {"kind": "example"}, "files": given})
    place = f"v{FORMAT}/{key[:2]}/{key}"
    return [(f"{place}/manifest.json", manifest), *((f"{place}/{name}", files[name]) for name in files)]


@pytest.mark.parametrize("name", ["..", ".", "a" * 300, "line\nend", "\x1b[31m", "with space"])
def test_names_that_no_entry_has_are_refused_and_what_follows_is_added(name: str, tmp_path: Path) -> None:
    other = digest("another entry")
    path = archive_of(tmp_path / "a.tar", [*entry_of(KEY, **{name: b"x"}), *entry_of(other, file=b"y")])
    cache = Cache(tmp_path / "cache")
    added, bad = cache_tool.import_from(cache, path)
    assert added == 1
    assert {one.key for one in bad} == {one_line(f"v{FORMAT}/{KEY[:2]}/{KEY}/{name}"), KEY}
    assert isinstance(cache.get(other), Entry)


def test_no_more_than_one_entry_is_held_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_tool, "_LARGEST", 1000)
    keys = [digest(f"entry {k}") for k in range(5)]
    small = [member for key in keys for member in entry_of(key, file=b"x" * 400)]
    large = entry_of(digest("large"), one=b"x" * 600, two=b"y" * 600)
    added, bad = cache_tool.import_from(Cache(tmp_path / "cache"), archive_of(tmp_path / "a.tar", [*large, *small]))
    assert added == 5
    assert any("larger" in one.reason for one in bad)


def test_an_archive_that_is_a_pipe_is_not_waited_for(root: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadArgument, match="not a regular file"):
        cache_tool.import_from(Cache(root), tmp_path / "pipe")


def test_an_export_follows_no_link(root: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("kept")
    for name in ("out.tar", "out.tar.part"):
        (tmp_path / name).symlink_to(tmp_path / "kept")
    assert cache_tool.export_to(Cache(root), tmp_path / "out.tar") == 2
    assert (tmp_path / "kept").read_text() == "kept"
    assert tarfile.is_tarfile(tmp_path / "out.tar")


def test_a_cache_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadArgument, match="the cache cannot be used"):
        run(tmp_path / "file", "info")


def test_every_command_prints_json(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "one")
    cache.put(KEY, fill("a"))
    file = tmp_path / "all.tar.gz"
    status, text = run(tmp_path / "one", "info", "--json")
    found = json.loads(text)
    assert (status, found["folder"]) == (0, str(tmp_path / "one"))
    assert [(one["kind"], one["count"]) for one in found["held"]] == [("example", 1)]
    assert json.loads(run(tmp_path / "one", "export", str(file), "--json")[1]) == {"file": str(file), "written": 1}
    assert json.loads(run(tmp_path / "two", "import", str(file), "--json")[1]) == {"added": 1, "refused": []}
    assert json.loads(run(tmp_path / "two", "verify", "--json")[1]) == {"bad": [], "removed": False}
    assert json.loads(run(tmp_path / "two", "clear", "--json")[1]) == {"removed": 1}
