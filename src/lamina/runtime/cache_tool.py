"""What is done to a cache as a whole: counted, checked, emptied, written to one file and read from one."""

from __future__ import annotations

import contextlib
import io
import lzma
import os
import re
import shutil
import stat
import tarfile
import tempfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from lamina.base.text import one_line
from lamina.errors import BadArgument
from lamina.runtime.cache import Cache, Entry, Miss
from lamina.runtime.cache_entries import load_entry, load_note
from lamina.runtime.cache_files import FORMAT, MANIFEST, Folder, clear_away, digest, read_signed, signed
from lamina.runtime.cache_usage import Item, items
from lamina.runtime.loading import load_library
from lamina.runtime.locks import stripe_of

__all__ = ["Held", "check", "clear", "count", "export_to", "import_from"]

_ENTRY = re.compile(rf"v{FORMAT}/([0-9a-f]{{2}})/([0-9a-f]{{8,128}})/([^/]+)")
_NOTE = re.compile(rf"v{FORMAT}/index/[0-9a-f]{{2}}/([0-9a-f]{{2}}[0-9A-Za-z.-]{{0,200}})\.json")
_NAME = re.compile(r"[0-9A-Za-z_+-][0-9A-Za-z_.+-]{0,127}")
_LARGEST = 1 << 28
"""Bytes of one entry that is imported."""


@dataclass(frozen=True, slots=True)
class Held:
    """How many entries of one kind there are, and their bytes."""

    kind: str
    count: int
    nbytes: int


def count(cache: Cache) -> list[Held]:
    """What the cache holds, by kind, largest first."""
    found: dict[str, list[int]] = {}
    for item in _items(cache):
        kind = "note" if item.is_note else _kind(load_entry(_top(cache), item.name))
        found.setdefault(kind, []).append(item.nbytes)
    return sorted((Held(kind, len(sizes), sum(sizes)) for kind, sizes in found.items()), key=lambda h: -h.nbytes)


def check(cache: Cache, repair: bool = True) -> list[Miss]:
    """Bad entries and notes, objects that cannot be loaded among them; ``repair`` removes them."""
    bad: list[Miss] = []
    for item in _items(cache):
        why = _bad_note(cache, item.name) if item.is_note else _bad_entry(cache, item.name)
        if why:
            bad.append(Miss(item.name, why, damaged=True))
            if repair:
                remove(cache, item)
    return bad


def clear(cache: Cache) -> int:
    """Remove all entries and notes; how many there were. Other processes go on with what they have loaded."""
    removed = 0
    for item in _items(cache):
        removed += remove(cache, item)
    if (top := cache.top) is not None:
        for name in os.listdir(top.descriptor):
            if name.startswith("tmp-"):
                shutil.rmtree(top.path / name, ignore_errors=True)
        clear_away(top, top.descriptor, "usage")
    return removed


def remove(cache: Cache, item: Item) -> bool:
    """Remove one entry or note; False if it is gone already. Raises ``BadArgument`` where that is not allowed."""
    top = _top(cache)
    within, name = (("index",), f"{item.name}.json") if item.is_note else ((), item.name)
    try:
        with top.within(*within, stripe_of(item.name)) as folder:
            return clear_away(top, folder, name)
    except FileNotFoundError:
        return False
    except OSError as error:
        where = f"{top.path.parent} cannot be written: {error.strerror or error}"
        raise BadArgument(where, remedy="run this as the user whose cache it is") from None


def export_to(cache: Cache, path: Path, only: Collection[str] | None = None) -> int:
    """Write all good entries and notes to a tar file, in an order that is always the same; how many those are.

    Those of this process alone, whose root cannot be written, are among them. ``only``: the names of those to write.
    """
    written = 0
    part: Path | None = None
    try:
        # Under a name that nobody could have foreseen, and put something else in its place.
        descriptor, name = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
        part = Path(name)
        with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for (_, name), items_of in sorted(_by_name(cache).items()):
                if only is not None and name not in only:
                    continue
                members = next(filter(None, (list(_members(top, item)) for top, item in items_of)), [])
                for name, content in members:
                    member = tarfile.TarInfo(name)
                    member.size, member.mode = len(content), 0o600
                    archive.addfile(member, io.BytesIO(content))
                written += bool(members)
        os.replace(part, path)
    except OSError as error:
        raise BadArgument(f"{path} cannot be written: {error.strerror or error}", remedy="name another file") from None
    finally:
        if part is not None:
            with contextlib.suppress(OSError):
                part.unlink()
    return written


def import_from(cache: Cache, path: Path) -> tuple[int, list[Miss]]:
    """Add what ``export_to`` wrote: how many entries and notes, and what was refused and why.

    Nothing is written outside of the cache, whatever the file says, and no more than one entry is held in memory. Its
    kernels will be run: it must be as trustworthy as a program.
    """
    bad: list[Miss] = []
    added = 0
    try:
        with _opened(path) as file, tarfile.open(fileobj=file) as archive:
            for kind, name, files in _received(archive, bad):
                try:
                    add = _add_note if kind == "note" else _add_entry
                    why = add(cache, name, files)
                except OSError as error:
                    why = f"it cannot be written: {error.strerror or error}"
                added += not why
                bad += [Miss(name, why, damaged=True)] if why else []
    except (OSError, tarfile.TarError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
        remedy = "name a file that `lamina cache export` wrote"
        raise BadArgument(f"{path} cannot be read: {_first_line(error)}", remedy=remedy) from None
    return added, bad


def _first_line(error: Exception) -> str:
    """What an error says, without a line for each way that was tried."""
    return str(error).partition("\n")[0].rstrip(" :") or type(error).__name__


def _opened(path: Path) -> IO[bytes]:
    """A regular file, opened without waiting: a pipe would have to be written to first."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError("it is not a regular file")
    return os.fdopen(descriptor, "rb")


_Received = tuple[str, str, dict[str, bytes]]
"""What is received: "entry" or "note", its key or name, and its files."""


def _received(archive: tarfile.TarFile, bad: list[Miss]) -> Iterator[_Received]:
    """Entries, whose files follow one another, and notes, one at a time; what is neither is added to ``bad``."""
    key, files = "", dict[str, bytes]()
    for member in archive:
        entry, note = _ENTRY.fullmatch(member.name), _NOTE.fullmatch(member.name)
        if key and (entry is None or entry[2] != key):
            yield "entry", key, files
            key, files = "", {}
        room = _LARGEST - sum(map(len, files.values()))
        if not member.isreg() or (entry is None and note is None) or (entry and not _NAME.fullmatch(entry[3])):
            bad.append(Miss(one_line(member.name), "it is no file of a cache", damaged=True))
        elif member.size > room:
            bad.append(Miss(one_line(member.name), "it is larger than anything of a cache", damaged=True))
        elif entry is not None:
            key = entry[2]
            files[entry[3]] = _content(archive, member)
        elif note is not None:
            yield "note", note[1], {MANIFEST: _content(archive, member)}
    if key:
        yield "entry", key, files


def _items(cache: Cache) -> list[Item]:
    return list(items(cache.top)) if cache.top is not None else []


def _by_name(cache: Cache) -> dict[tuple[bool, str], list[tuple[Folder, Item]]]:
    """Where each entry and note is, by whether it is a note and by name: first the folder that is read first."""
    found: dict[tuple[bool, str], list[tuple[Folder, Item]]] = {}
    for top in cache.folders:
        for item in items(top):
            found.setdefault((item.is_note, item.name), []).append((top, item))
    return found


def _top(cache: Cache) -> Folder:
    assert cache.top is not None
    return cache.top


def _kind(entry: Entry | Miss) -> str:
    if isinstance(entry, Miss):
        return "damaged"
    return str(entry.fields.get("kind") or ("backend" if "backend" in entry.fields else "other"))


def _bad_entry(cache: Cache, key: str) -> str:
    entry = load_entry(_top(cache), key)
    if isinstance(entry, Miss):
        return entry.reason if entry.damaged else ""
    for name in entry.files:
        if name.endswith(".so"):
            try:
                with entry.opened(name) as descriptor:
                    load_library(descriptor)
            except OSError as error:
                return f"{name} cannot be loaded: {error}"
    return ""


def _bad_note(cache: Cache, name: str) -> str:
    note = load_note(_top(cache), name)
    if isinstance(note, Miss):
        return note.reason if note.damaged else ""
    key = note.get("object")
    if isinstance(key, str) and isinstance(load_entry(_top(cache), key), Miss):
        return "the entry that it names is not there"
    return ""


def _members(top: Folder, item: Item) -> Iterator[tuple[str, bytes]]:
    """Names in an archive and contents of an entry or note; nothing of a bad one."""
    if item.is_note:
        note = load_note(top, item.name)
        if not isinstance(note, Miss):
            yield f"v{FORMAT}/index/{stripe_of(item.name)}/{item.name}.json", signed(note)
        return
    entry = load_entry(top, item.name)
    if isinstance(entry, Entry):
        place = f"v{FORMAT}/{stripe_of(item.name)}/{item.name}"
        manifest = {"format": FORMAT, "key": entry.key, "fields": entry.fields, "files": entry.files}
        yield f"{place}/{MANIFEST}", signed(manifest)
        for name in entry.files:
            yield f"{place}/{name}", entry.read(name)


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file: IO[bytes] | None = archive.extractfile(member)
    return file.read() if file is not None else b""


def _add_entry(cache: Cache, key: str, files: Mapping[str, bytes]) -> str:
    """Put an entry in the cache, or why not."""
    try:
        manifest = read_signed(files.get(MANIFEST, b""), MANIFEST)
    except ValueError as error:
        return str(error)
    expected, fields = manifest.get("files"), manifest.get("fields")
    if manifest.get("format") != FORMAT or manifest.get("key") != key or not isinstance(fields, dict):
        return "the manifest belongs to another entry or format"
    given = {name: digest(content) for name, content in files.items() if name != MANIFEST}
    if given != expected:
        return "its files are not those of the manifest"

    def fill(folder: Path) -> Mapping[str, Any]:
        for name in given:
            (folder / name).write_bytes(files[name])
        return fields

    if not isinstance(cache.get(key), Entry):
        cache.put(key, fill)
    return ""


def _add_note(cache: Cache, name: str, files: Mapping[str, bytes]) -> str:
    """Put a note in the cache, or why not."""
    try:
        content = read_signed(files[MANIFEST], f"{name}.json")
    except ValueError as error:
        return str(error)
    if content.pop("name", None) != name:
        return "the note belongs to another name"
    cache.write_note(name, content)
    return ""
