"""Entries and notes of the cache: what they are, how one is read, and how one comes to its place whole."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lamina.runtime.cache_files import (
    FORMAT,
    MANIFEST,
    Folder,
    clear_away,
    digest,
    distrust,
    open_file,
    read_file,
    read_signed,
    signed,
    write_file,
)
from lamina.runtime.locks import stripe_of

__all__ = ["Entry", "Miss", "draft", "load_entry", "load_note", "publish", "write_note"]

_TOUCH_SECONDS = 24 * 3600.0
"""Seconds for which a use is not written down again: a hit most often writes nothing."""


@dataclass(frozen=True, slots=True)
class Miss:
    """Why a key has no usable entry. ``damaged`` tells a bad entry from one that never was."""

    key: str
    reason: str
    damaged: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """A verified entry: ``path`` is its folder, ``fields`` what its builder said of it, ``files`` name -> SHA-256."""

    key: str
    path: Path
    fields: Mapping[str, Any]
    files: Mapping[str, str]
    top: Folder = field(compare=False, repr=False)

    def read(self, name: str) -> bytes:
        """The content of one file, checked again now. Raises ``OSError`` if it has changed since."""
        with self.top.within(stripe_of(self.key), self.key) as folder:
            content, _ = read_file(folder, name)
        if digest(content) != self.files[name]:
            raise OSError(f"{self.path / name} changed after it was verified")
        return content

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[int]:
        """A descriptor of one file, which nobody else could have written. Raises ``OSError``."""
        with self.top.within(stripe_of(self.key), self.key) as folder, open_file(folder, name) as (descriptor, _):
            yield descriptor


def load_entry(top: Folder, key: str, touch: bool = False) -> Entry | Miss:
    """The entry for ``key`` below ``top``, all of its files checked. ``touch`` marks it as used, at most daily."""
    if not key.isalnum():
        return Miss(key, "it is no key", damaged=True)
    try:
        with top.within(stripe_of(key), key) as folder:
            return _load(top, folder, key, touch)
    except FileNotFoundError:
        return Miss(key, "not in the cache")
    except OSError as error:
        return Miss(key, f"its folder cannot be used: {error.strerror or error}", damaged=True)


def _load(top: Folder, folder: int, key: str, touch: bool) -> Entry | Miss:
    try:
        text, found = read_file(folder, MANIFEST)
        content = read_signed(text, MANIFEST)
    except FileNotFoundError:
        return Miss(key, "the entry has no manifest", damaged=True)
    except (OSError, ValueError) as error:
        return Miss(key, _reason(error, MANIFEST), damaged=True)
    if content.get("format") != FORMAT or content.get("key") != key:
        return Miss(key, "the manifest belongs to another entry or format", damaged=True)
    files, fields = content.get("files"), content.get("fields")
    if not isinstance(files, dict) or not isinstance(fields, dict) or not all(map(_is_file_name, files)):
        return Miss(key, "the manifest does not say what the entry holds", damaged=True)
    for name, expected in files.items():
        try:
            actual = digest(read_file(folder, name)[0])
        except OSError as error:
            return Miss(key, _reason(error, name), damaged=True)
        if actual != expected:
            return Miss(key, f"{name} does not have the SHA-256 in the manifest", damaged=True)
    if touch:
        _touch(folder, MANIFEST, found)
    return Entry(key, top.path / stripe_of(key) / key, fields, files, top)


def load_note(top: Folder, name: str, touch: bool = False) -> Mapping[str, Any] | Miss:
    """The note called ``name`` below ``top``."""
    file = f"{name}.json"
    try:
        with top.within("index", stripe_of(name)) as folder:
            text, found = read_file(folder, file)
            content = read_signed(text, file)
            if content.get("name") != name:
                return Miss(name, "the note belongs to another name", damaged=True)
            if touch:
                _touch(folder, file, found)
            return content
    except FileNotFoundError:
        return Miss(name, "not in the cache")
    except (OSError, ValueError) as error:
        return Miss(name, _reason(error, file), damaged=True)


def _reason(error: Exception, name: str) -> str:
    return f"{name} cannot be read: {error.strerror or error}" if isinstance(error, OSError) else str(error)


def _is_file_name(name: str) -> bool:
    return bool(name) and name not in (".", "..", MANIFEST) and "/" not in name and "\0" not in name


def _touch(folder: int, name: str, found: os.stat_result) -> None:
    """Mark a file as used now, by its time, unless that was done within a day."""
    if time.time() - found.st_mtime > _TOUCH_SECONDS:
        with contextlib.suppress(OSError):
            os.utime(name, dir_fd=folder, follow_symlinks=False)


@contextlib.contextmanager
def draft(top: Folder) -> Iterator[Path]:
    """An empty folder (mode 0700) for an entry to be; removed if it is still there in the end."""
    path = Path(tempfile.mkdtemp(prefix="tmp-", dir=top.path))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def publish(top: Folder, path: Path, key: str, fields: Mapping[str, Any]) -> Entry:
    """Seal the draft at ``path`` with a manifest and rename it to its place; a good entry in that place is kept."""
    with top.within(path.name) as folder:
        files = {name: _seal(folder, name) for name in sorted(os.listdir(folder))}
        manifest = {"format": FORMAT, "key": key, "fields": dict(fields), "files": files}
        write_file(folder, MANIFEST, signed(manifest))
        os.fsync(folder)
    final = top.path / stripe_of(key) / key
    with top.made(stripe_of(key)) as place:
        for _ in range(100):
            try:
                os.rename(path.name, key, src_dir_fd=top.descriptor, dst_dir_fd=place)
            except OSError:
                if not _is_there(place, key):
                    raise
            else:
                os.fsync(place)
                return Entry(key, final, fields, files, top)
            there = load_entry(top, key)
            if isinstance(there, Entry):
                return there
            clear_away(top, place, key)
    raise OSError(f"{final} is replaced faster than it can be written")


def _seal(folder: int, name: str) -> str:
    """Make a file its owner's alone, and have it on the disk; its SHA-256."""
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, distrust(found, name) or f"{name} is not a regular file of this user")
        os.fchmod(descriptor, 0o600)
        content = file.read()
        os.fsync(descriptor)
    return digest(content)


def _is_there(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return True


def write_note(top: Folder, name: str, text: bytes) -> None:
    """Write a note, or replace what is in its place."""
    with draft(top) as path, top.within(path.name) as folder, top.made("index", stripe_of(name)) as place:
        file = f"{name}.json"
        write_file(folder, file, text)
        try:
            os.rename(file, file, src_dir_fd=folder, dst_dir_fd=place)
        except OSError:
            if not _is_there(place, file):
                raise
            clear_away(top, place, file)  # a folder
            os.rename(file, file, src_dir_fd=folder, dst_dir_fd=place)
