"""The on-disk cache: entries that are published whole, checked before use and readable without a lock.

Layout under the root, which may be moved or copied as a whole:

    v1/<2 hex>/<key>/manifest.json      what the entry is, and the SHA-256 of each of its files
    v1/<2 hex>/<key>/<files>            sources and objects, plain formats only
    v1/index/<2 hex>/<name>.json        small notes, each with its own SHA-256
    v1/locks/<2 hex>                    taken by those who write, never by those who read
    v1/usage                            how many bytes were added, so that the least recently used can be removed

The root is found once and held open. A root, folder or file that belongs to another user (other than the superuser)
or that others can write is not read (see ``cache_files``). The time of a manifest or note is that of its last use, to
the day.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import shutil
import tempfile
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from lamina.runtime.cache_entries import Entry, Miss, draft, load_entry, load_note, publish, write_note
from lamina.runtime.cache_files import FORMAT, Folder, clear_away, digest, distrust, is_full, signed
from lamina.runtime.cache_usage import Usage, sweep
from lamina.runtime.locks import PATIENCE, Patience, Stripe, stripe_of

__all__ = ["FORMAT", "Cache", "Entry", "Miss", "cache_root", "digest"]

_T = TypeVar("_T")


def cache_root(given: str = "") -> Path:
    """The folder the user named, else one in the home folder, or in the temporary folder where there is no home."""
    try:
        return Path(given or "~/.cache/lamina").expanduser()
    except RuntimeError:  # HOME is not set and the system does not know the user
        return Path(given) if given else Path(tempfile.gettempdir()) / f"lamina-user-{os.geteuid()}"


class Cache:
    """Entries by key (at least 8 hexadecimal digits), on disk at ``root``; safe for many threads and processes.

    ``root`` None keeps everything in a folder private to this process, removed when it ends. So does a root
    that cannot be written or trusted, with one warning per process; what can be read of it still is. Beyond ``limit``
    bytes (0: no limit) the entries that were not used for the longest time are removed.
    """

    def __init__(self, root: Path | str | None, limit: int = 0) -> None:
        self.problem = ""  # why the root is not read, or not written
        self.damages: list[Miss] = []  # bad entries met so far, each once
        self.limit = limit
        self._root = None if root is None else Path(os.path.realpath(root))
        self._reading: list[Folder] = []
        self._writing: Folder | None = None
        self._swept: set[Path] = set()
        self._refused: set[tuple[Path, str]] = set()  # bad entries that cannot be removed
        self._guard = threading.RLock()
        _ALL.add(self)
        if self._root is not None:
            self._open(self._root)

    @property
    def location(self) -> Path:
        """The folder that new entries go to."""
        return self._writable().path.parent

    @property
    def top(self) -> Folder | None:
        """What is held open of the root; None where it cannot be used."""
        return next((top for top in self._reading if top.path.parent == self._root), None)

    @property
    def folders(self) -> tuple[Folder, ...]:
        """What is held open of all that is read: the root, and the private folder where that cannot be written."""
        return tuple(self._reading)

    def get(self, key: str) -> Entry | Miss:
        """The entry for ``key`` with every file's SHA-256 checked, or the reason why there is none.

        Takes no lock and writes nothing, but that what was last used a day or longer ago is marked as used now.
        """
        miss = Miss(key, "not in the cache")
        for top in self.folders:
            if (top.path, key) in self._refused:
                continue
            found = load_entry(top, key, touch=top is self._writing)
            if isinstance(found, Entry):
                return found
            if found.damaged:
                miss = found
                self.report(found)
        return miss

    def report(self, damage: Miss) -> None:
        """Remember that a bad entry was met."""
        if damage not in self.damages:
            self.damages.append(damage)

    def evict(self, key: str, reason: str) -> None:
        """Remove an entry that is whole but of no use, so that this process and those to come build it again."""
        self.report(Miss(key, reason, damaged=True))
        for top in self.folders:
            try:
                with top.within(stripe_of(key)) as folder:
                    clear_away(top, folder, key)
            except FileNotFoundError:
                continue
            except OSError:  # a cache that can only be read
                self._refused.add((top.path, key))

    def put(self, key: str, build: Callable[[Path], Mapping[str, Any]]) -> Entry:
        """Have ``build`` fill an empty folder, publish it under ``key`` and return it.

        ``build`` returns the fields of the manifest (plain JSON values); what it raises passes through and leaves
        nothing behind. Takes no lock: two who publish the same key at once both succeed. Raises ``OSError`` if
        neither the root nor the temporary folder can hold the entry.
        """

        def write(top: Folder) -> Entry:
            if top.path not in self._swept:
                self._swept.add(top.path)
                sweep(top)
            with draft(top) as path:
                try:
                    fields = build(path)
                except OSError as error:
                    if is_full(error):
                        raise
                    raise _Foreign(error) from error
                entry = publish(top, path, key, fields)
            if self.limit and top is self.top:
                Usage(top, self.limit).add(key)
            return entry

        return self._written(write)

    def get_or_build(self, key: str, build: Callable[[Path], Mapping[str, Any]]) -> Entry:
        """The entry, built if missing or damaged, once among all threads and processes that ask for it.

        ``build`` must not call this method again. One who holds the lock for a minute is not waited for any longer.
        """
        found = self.get(key)
        if isinstance(found, Entry):
            return found
        with self.lock(stripe_of(key)):
            found = self.get(key)
            return found if isinstance(found, Entry) else self.put(key, build)

    def lock(self, stripe: str, patience: Patience = PATIENCE) -> Stripe:
        """The lock of those who write keys of this stripe (see ``stripe_of``)."""
        return Stripe(self._writable().path / "locks", stripe, patience)

    def note(self, name: str) -> Mapping[str, Any] | None:
        """A note written before, or None if there is none or it is damaged."""
        for top in self.folders:
            found = load_note(top, name, touch=top is self._writing)
            if not isinstance(found, Miss):
                return found
            if found.damaged:
                self.report(found)
        return None

    def notes_of(self, prefix: str) -> tuple[str, ...]:
        """Names of the notes that begin with ``prefix`` (at least 2 hexadecimal digits)."""
        names: set[str] = set()
        for top in self.folders:
            try:
                with top.within("index", stripe_of(prefix)) as folder:
                    listed = os.listdir(folder)
            except OSError:
                continue
            names.update(n.removesuffix(".json") for n in listed if n.startswith(prefix) and n.endswith(".json"))
        return tuple(sorted(names))

    def write_note(self, name: str, content: Mapping[str, Any]) -> None:
        """Write or replace a small note (plain JSON values)."""
        text = signed({**content, "name": name})
        self._written(lambda top: write_note(top, name, text))

    def _written(self, write: Callable[[Folder], _T]) -> _T:
        """What ``write`` makes of the folder for new entries, or of the private one where that one fails."""
        for _ in range(3):
            top = self._writable()
            try:
                return write(top)
            except _Foreign as foreign:
                raise foreign.error from None
            except OSError as error:
                if self._found_again(top):
                    continue
                if _is_private(top):
                    raise
                if error.errno not in _OF_ALL and _can_write(top):
                    break  # something in the way of this entry alone
                self._abandon(top, error)
        try:
            return write(self._private())
        except _Foreign as foreign:
            raise foreign.error from None

    def _open(self, root: Path) -> None:
        try:
            top, self.problem = _opened(root)
        except OSError as error:
            self.problem = f"{root} cannot be used: {error.strerror or error}"
            return
        if top is None:
            return
        self._reading.insert(0, top)
        if os.access(top.path, os.W_OK | os.X_OK):
            self._writing = top
        else:
            self.problem = f"{root} is not writable"

    def _found_again(self, top: Folder) -> bool:
        """Whether the root, which somebody removed, could be made again."""
        with self._guard:
            if self._root is None or top is not self.top or not top.gone():
                return False
            self._reading.remove(top)
            self._writing = None
            self._open(self._root)
            return self._writing is not None

    def _writable(self) -> Folder:
        with self._guard:
            if self._writing is None:
                _warn_once(self.problem)
                self._writing = self._private()
            return self._writing

    def _private(self) -> Folder:
        """The folder for what only this process will use."""
        with self._guard:
            path = _private_folder() / f"v{FORMAT}"
            found = next((top for top in self._reading if top.path == path), None)
            if found is None:
                path.mkdir(mode=0o700, exist_ok=True)
                found = Folder(path)
                self._reading.append(found)
            return found

    def _abandon(self, top: Folder, error: OSError) -> None:
        """Write to the private folder from now on."""
        with self._guard:
            self.problem = f"{top.path.parent} cannot be written: {error.strerror or error}"
            if self._writing is top:
                self._writing = None

    def _forked(self) -> None:
        """In a forked child: no lock that another thread holds there, no folder that the parent will remove."""
        self._guard = threading.RLock()
        if self._writing is not None and self._writing is not self.top:
            self._writing = None


class _Foreign(Exception):
    """An error of what fills an entry, not of the cache."""

    def __init__(self, error: OSError) -> None:
        self.error = error


_OF_ALL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})
"""Errors that the next entry would meet as well."""
_PRIVATE: dict[int, Path] = {}
"""By process: this one's, and those of the parents that it was forked from."""
_WARNED: set[str] = set()
"""One entry at most: that the cache cannot be used was said."""
_ALL: weakref.WeakSet[Cache] = weakref.WeakSet()
"""Caches in use, to be told of a fork."""


def _after_fork() -> None:
    for one in tuple(_ALL):
        one._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _opened(root: Path) -> tuple[Folder | None, str]:
    """The folder of this format below ``root``, made if need be; or None and why it is not to be trusted."""
    if not root.is_dir():
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
    outer = Folder(root)
    if why := distrust(os.fstat(outer.descriptor), str(root), sticky=True):
        return None, why
    name = f"v{FORMAT}"
    path = root / name
    if not path.is_dir():
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=outer.descriptor)  # a file, or a link that leads nowhere
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=outer.descriptor)
    top = Folder(path, outer.descriptor_of(name))
    why = distrust(os.fstat(top.descriptor), str(path))
    return (None, why) if why else (top, "")


def _can_write(top: Folder) -> bool:
    try:
        with draft(top):
            return True
    except OSError:
        return False


def _is_private(top: Folder) -> bool:
    return top.path.parent == _PRIVATE.get(os.getpid())


def _private_folder() -> Path:
    process = os.getpid()  # a forked child must not use, nor remove, its parent's folder
    if process not in _PRIVATE:
        folder = Path(os.path.realpath(tempfile.mkdtemp(prefix="lamina-")))
        if _PRIVATE.setdefault(process, folder) == folder:
            atexit.register(_remove_private, process, folder)
    return _PRIVATE[process]


def _remove_private(process: int, folder: Path) -> None:
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def _warn_once(problem: str) -> None:
    if problem and "cache" not in _WARNED:
        _WARNED.add("cache")
        text = f"Lamina's cache folder cannot be used, so compiled kernels last only as long as this process: {problem}"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
