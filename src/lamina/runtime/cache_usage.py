"""How much a cache holds, and what is removed when that is too much."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass

from lamina.runtime.cache_entries import Entry, load_entry, load_note
from lamina.runtime.cache_files import MANIFEST, Folder, clear_away, distrust
from lamina.runtime.locks import Stripe, stripe_of

__all__ = ["Item", "Usage", "items", "sweep"]

_STALE_SECONDS = 24 * 3600.0
"""Age in seconds from which an unfinished draft is taken for one of a process that died, and removed."""
_FILE = "usage"
_LONGEST = 1 << 16
"""Bytes of the usage file from which the cache is counted again, which makes the file short."""


@dataclass(frozen=True, slots=True)
class Item:
    """An entry or a note: its key or name, its size in bytes, and the time of its last use, to the day."""

    name: str
    is_note: bool
    nbytes: int
    used: float


def items(top: Folder) -> Iterator[Item]:
    """All entries and notes below ``top``. What vanishes meanwhile, or cannot be read, is left out."""
    for stripe in _names(top, r"[0-9a-f]{2}"):
        for key in _names(top, r"[0-9a-f]{8,}", stripe):
            with contextlib.suppress(OSError), top.within(stripe, key) as folder:
                found = {n: os.stat(n, dir_fd=folder, follow_symlinks=False) for n in os.listdir(folder)}
                used = found[MANIFEST].st_mtime if MANIFEST in found else 0.0
                yield Item(key, False, sum(f.st_size for f in found.values()), used)
    for stripe in _names(top, r"[0-9a-f]{2}", "index"):
        with contextlib.suppress(OSError), top.within("index", stripe) as folder:
            for name in os.listdir(folder):
                with contextlib.suppress(OSError):
                    about = os.stat(name, dir_fd=folder, follow_symlinks=False)
                    yield Item(name.removesuffix(".json"), True, about.st_size, about.st_mtime)


def _names(top: Folder, pattern: str, *within: str) -> list[str]:
    try:
        with top.within(*within) as folder:
            return sorted(name for name in os.listdir(folder) if re.fullmatch(pattern, name))
    except OSError:
        return []


class Usage:
    """Keeps a cache below ``limit`` bytes.

    Who adds to the cache appends the size to a file, so that the total is known without looking at each entry. When it
    is too large, what was not used for the longest time is removed, until a tenth of the limit is free.
    """

    def __init__(self, top: Folder, limit: int) -> None:
        self.top, self.limit = top, limit

    def add(self, key: str) -> None:
        """Count the entry ``key``, which was just written, and make room if that is needed."""
        with contextlib.suppress(OSError):  # a cache that cannot be tidied can still be used
            with self.top.within(stripe_of(key), key) as folder:
                nbytes = sum(os.stat(n, dir_fd=folder, follow_symlinks=False).st_size for n in os.listdir(folder))
            total = self._counted(nbytes)
            if total is None or total > self.limit:
                self._trim(key)

    def _counted(self, nbytes: int) -> int | None:
        """The total after adding ``nbytes``; None if the cache has to be counted."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(_FILE, flags, 0o600, dir_fd=self.top.descriptor)
        except OSError:
            clear_away(self.top, self.top.descriptor, _FILE)
            return None
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or distrust(found, _FILE):
                clear_away(self.top, self.top.descriptor, _FILE)
                return None
            os.write(descriptor, b"%d\n" % nbytes)
            text = os.pread(descriptor, _LONGEST, 0)
        finally:
            os.close(descriptor)
        if not re.fullmatch(rb"=(\d+\n)+", text) or len(text) == _LONGEST:
            return None
        return sum(map(int, text[1:].split()))

    def _trim(self, keep: str) -> None:
        lock = Stripe(self.top.path / "locks", "usage")
        if not lock.acquire(blocking=False):
            return  # somebody else is at it
        try:
            found = sorted(items(self.top), key=lambda item: item.used)
            total = sum(item.nbytes for item in found)
            if total > self.limit:
                for item in found:
                    if total <= self.limit * 9 // 10:
                        break
                    if item.name != keep:
                        total -= item.nbytes
                        _remove(self.top, item)
            self._write(total)
        finally:
            lock.release()

    def _write(self, total: int) -> None:
        draft = f"tmp-usage-{os.getpid()}"
        path = self.top.path / draft
        path.write_text(f"={total}\n")
        path.chmod(0o600)
        os.rename(draft, _FILE, src_dir_fd=self.top.descriptor, dst_dir_fd=self.top.descriptor)


def _remove(top: Folder, item: Item) -> None:
    """Remove an entry with the notes that lead to it, or a note."""
    with contextlib.suppress(OSError):
        if item.is_note:
            with top.within("index", stripe_of(item.name)) as folder:
                os.unlink(f"{item.name}.json", dir_fd=folder)
            return
        entry = load_entry(top, item.name)
        with top.within(stripe_of(item.name)) as folder:
            clear_away(top, folder, item.name)
        if isinstance(entry, Entry):
            kernels, compiler = entry.fields.get("kernels"), entry.fields.get("compiler")
            for identity in kernels if isinstance(kernels, dict) else ():
                _remove_note(top, f"{identity}.{compiler}", item.name)


def _remove_note(top: Folder, name: str, key: str) -> None:
    note = load_note(top, name)
    if isinstance(note, dict) and note.get("object") == key:
        with contextlib.suppress(OSError), top.within("index", stripe_of(name)) as folder:
            os.unlink(f"{name}.json", dir_fd=folder)


def sweep(top: Folder) -> None:
    """Remove what processes that died left behind. Cheap: one listing of a folder with at most 260 names."""
    with contextlib.suppress(OSError):
        for name in os.listdir(top.descriptor):
            if not name.startswith("tmp-"):
                continue
            found = os.stat(name, dir_fd=top.descriptor, follow_symlinks=False)
            if time.time() - found.st_mtime < _STALE_SECONDS:
                continue
            if stat.S_ISDIR(found.st_mode):
                shutil.rmtree(top.path / name, ignore_errors=True)
            else:
                os.unlink(name, dir_fd=top.descriptor)
