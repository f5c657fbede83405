"""The on-disk cache: entries that are published whole, checked before use and readable without a lock.

Layout under the root, which may be moved or copied as a whole:

    v1/<2 hex>/<key>/manifest.json      what the entry is, and the SHA-256 of each of its files
    v1/<2 hex>/<key>/<files>            sources and objects, plain formats only
    v1/index/<2 hex>/<name>.json        small notes, each with its own SHA-256
    v1/locks/<2 hex>                    taken by those who write, never by those who read

A root that belongs to another user (other than the superuser) or that others can write is not read at all.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import shutil
import stat
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lamina.runtime.locks import Stripe, stripe_of

__all__ = ["FORMAT", "Cache", "Entry", "Miss", "cache_root", "digest"]

FORMAT = 1
_MANIFEST = "manifest.json"
_STALE_SECONDS = 24 * 3600.0


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

    def read(self, name: str) -> bytes:
        """The content of one file, checked again now. Raises ``OSError`` if it has changed since."""
        content = (self.path / name).read_bytes()
        if digest(content) != self.files[name]:
            raise OSError(f"{self.path / name} changed after it was verified")
        return content


def digest(*parts: str | bytes) -> str:
    """SHA-256, in hexadecimal, of the parts; ("ab", "c") and ("a", "bc") differ."""
    if len(parts) == 1 and isinstance(parts[0], bytes):
        return hashlib.sha256(parts[0]).hexdigest()
    total = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        total.update(b"%d:" % len(content))
        total.update(content)
    return total.hexdigest()


def cache_root(given: str = "") -> Path:
    """The folder the user named, else one in the home folder, or in the temporary folder where there is no home."""
    try:
        return Path(given or "~/.cache/lamina").expanduser()
    except RuntimeError:  # HOME is not set and the system does not know the user
        return Path(given) if given else Path(tempfile.gettempdir()) / f"lamina-user-{os.geteuid()}"


class Cache:
    """Entries by key (at least 8 hexadecimal digits), on disk at ``root``; safe for many threads and processes.

    ``root`` None keeps everything in a folder private to this process, removed when it ends. So does a root
    that cannot be written or trusted, with one warning per process; what can be read of it still is.
    """

    def __init__(self, root: Path | str | None) -> None:
        self.problem = ""  # why the root is not read, or not written
        self.damages: list[Miss] = []  # bad entries met so far, each once
        self._reading: list[Path] = []
        self._writing: Path | None = None
        self._swept: set[Path] = set()
        self._guard = threading.RLock()
        if root is not None:
            self._open(Path(root))

    @property
    def location(self) -> Path:
        """The folder that new entries go to."""
        return self._writable().parent

    def get(self, key: str) -> Entry | Miss:
        """The entry for ``key`` with every file's SHA-256 checked, or the reason why there is none.

        Takes no lock and writes nothing.
        """
        miss = Miss(key, "not in the cache")
        for top in tuple(self._reading):
            found = _load(top / stripe_of(key) / key, key)
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

    def put(self, key: str, build: Callable[[Path], Mapping[str, Any]]) -> Entry:
        """Have ``build`` fill an empty folder, publish it under ``key`` and return it.

        ``build`` returns the fields of the manifest (plain JSON values); what it raises passes through and leaves
        nothing behind. Takes no lock: two who publish the same key at once both succeed. Raises ``OSError`` if
        neither the root nor the temporary folder can hold the entry.
        """
        top = self._writable()
        if top not in self._swept:
            self._swept.add(top)
            _sweep(top)
        try:
            return _publish(top, key, build)
        except OSError as error:
            if not self._abandon(top, error):
                raise
            return _publish(self._writable(), key, build)

    def get_or_build(self, key: str, build: Callable[[Path], Mapping[str, Any]]) -> Entry:
        """The entry, built if missing or damaged, once among all threads and processes that ask for it.

        ``build`` must not call this method again.
        """
        found = self.get(key)
        if isinstance(found, Entry):
            return found
        with self.lock(stripe_of(key)):
            found = self.get(key)
            return found if isinstance(found, Entry) else self.put(key, build)

    def lock(self, stripe: str) -> Stripe:
        """The lock of those who write keys of this stripe (see ``stripe_of``)."""
        return Stripe(self._writable() / "locks", stripe)

    def note(self, name: str) -> Mapping[str, Any] | None:
        """A note written before, or None if there is none or it is damaged."""
        for top in tuple(self._reading):
            path = top / "index" / stripe_of(name) / f"{name}.json"
            content, why = _read_signed(path)
            if content is not None and content.get("name") == name:
                return content
            if why or content is not None:
                self.report(Miss(name, why or "the note belongs to another name", damaged=True))
        return None

    def notes_of(self, prefix: str) -> tuple[str, ...]:
        """Names of the notes that begin with ``prefix`` (at least 2 hexadecimal digits)."""
        names: set[str] = set()
        for top in tuple(self._reading):
            try:
                listed = os.listdir(top / "index" / stripe_of(prefix))
            except OSError:
                continue
            names.update(n.removesuffix(".json") for n in listed if n.startswith(prefix) and n.endswith(".json"))
        return tuple(sorted(names))

    def write_note(self, name: str, content: Mapping[str, Any]) -> None:
        """Write or replace a small note (plain JSON values)."""
        top = self._writable()
        text = _signed({**content, "name": name})
        try:
            _write_note(top, name, text)
        except OSError as error:
            if not self._abandon(top, error):
                raise
            _write_note(self._writable(), name, text)

    def _open(self, root: Path) -> None:
        top = root / f"v{FORMAT}"
        try:
            if not top.is_dir():
                root.mkdir(mode=0o700, parents=True, exist_ok=True)
                top.mkdir(mode=0o700, exist_ok=True)
            self.problem = _distrust(top)
        except OSError as error:
            self.problem = f"{root} cannot be used: {error.strerror or error}"
            return
        if self.problem:
            return
        self._reading.append(top)
        if os.access(top, os.W_OK | os.X_OK):
            self._writing = top
        else:
            self.problem = f"{root} is not writable"

    def _writable(self) -> Path:
        with self._guard:
            if self._writing is None:
                _warn_once(self.problem)
                top = _private_folder() / f"v{FORMAT}"
                top.mkdir(mode=0o700, exist_ok=True)
                self._writing = top
                self._reading.append(top)
            return self._writing

    def _abandon(self, top: Path, error: OSError) -> bool:
        """Write to the private folder from now on; False if that is what just failed."""
        with self._guard:
            if top.parent == _PRIVATE.get(os.getpid()):
                return False
            self.problem = f"{top.parent} cannot be written: {error.strerror or error}"
            if self._writing == top:
                self._writing = None
            return True


_PRIVATE: dict[int, Path] = {}
_WARNED: set[str] = set()


def _private_folder() -> Path:
    process = os.getpid()  # a forked child must not use, nor remove, its parent's folder
    if process not in _PRIVATE:
        folder = Path(tempfile.mkdtemp(prefix="lamina-"))
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


def _distrust(top: Path) -> str:
    """Why code found below ``top`` could be somebody else's, or an empty string."""
    for folder in (top, top.parent):
        found = folder.stat()
        if found.st_uid not in (os.geteuid(), 0):
            return f"{folder} belongs to user {found.st_uid}, not to user {os.geteuid()}"
        shared = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        # Others may add to a sticky folder such as /tmp, but not replace what is in it.
        if shared and not (folder == top.parent and found.st_mode & stat.S_ISVTX):
            return f"{folder} can be written by other users (mode {stat.S_IMODE(found.st_mode):o})"
    return ""


def _sweep(top: Path) -> None:
    """Remove what processes that died left behind. Cheap: one listing of a folder with at most 260 names."""
    try:
        left = [n for n in os.listdir(top) if n.startswith("tmp-")]
        for name in left:
            if time.time() - (top / name).stat().st_mtime < _STALE_SECONDS:
                continue
            if (top / name).is_dir():
                shutil.rmtree(top / name, ignore_errors=True)
            else:
                (top / name).unlink(missing_ok=True)
    except OSError:
        return


def _canonical(content: Mapping[str, Any]) -> str:
    return json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _signed(content: Mapping[str, Any]) -> str:
    return json.dumps({**content, "sha256": digest(_canonical(content).encode())}, indent=1, ensure_ascii=False) + "\n"


def _read_signed(path: Path) -> tuple[dict[str, Any] | None, str]:
    """The JSON object in a file that carries its own SHA-256, or None and what is wrong ("" if there is no file)."""
    try:
        content = json.loads(path.read_bytes())
        claimed = content.pop("sha256")
    except (FileNotFoundError, NotADirectoryError):
        return None, ""
    except OSError as error:
        return None, f"{path.name} cannot be read: {error.strerror or error}"
    except (ValueError, KeyError, AttributeError, TypeError):
        return None, f"{path.name} is not a whole JSON object"
    if claimed != digest(_canonical(content).encode()):
        return None, f"{path.name} was changed after it was written"
    return content, ""


def _load(folder: Path, key: str) -> Entry | Miss:
    content, why = _read_signed(folder / _MANIFEST)
    if content is None:
        if why or folder.is_dir():
            return Miss(key, why or "the entry has no manifest", damaged=True)
        return Miss(key, "not in the cache")
    if content.get("format") != FORMAT or content.get("key") != key:
        return Miss(key, "the manifest belongs to another entry or format", damaged=True)
    for name, expected in content["files"].items():
        try:
            actual = digest((folder / name).read_bytes())
        except OSError as error:
            return Miss(key, f"{name} cannot be read: {error.strerror or error}", damaged=True)
        if actual != expected:
            return Miss(key, f"{name} does not have the SHA-256 in the manifest", damaged=True)
    return Entry(key, folder, content["fields"], content["files"])


def _publish(top: Path, key: str, build: Callable[[Path], Mapping[str, Any]]) -> Entry:
    draft = Path(tempfile.mkdtemp(prefix="tmp-", dir=top))  # mode 0700
    try:
        fields = build(draft)
        files: dict[str, str] = {}
        for path in sorted(draft.iterdir()):
            files[path.name] = digest(path.read_bytes())
            _sync(path)
        manifest = draft / _MANIFEST
        text = _signed({"format": FORMAT, "key": key, "fields": dict(fields), "files": files})
        manifest.write_text(text, encoding="utf-8")
        _sync(manifest)
        _sync(draft)
        place = top / stripe_of(key)
        place.mkdir(mode=0o700, exist_ok=True)
        entry = _move_into_place(draft, Entry(key, place / key, fields, files))
        _sync(place)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return entry


def _move_into_place(draft: Path, entry: Entry) -> Entry:
    """Rename a finished entry to its name; a damaged one in its place is moved away, a good one is kept instead."""
    final = entry.path
    for _ in range(100):
        try:
            os.rename(draft, final)
        except OSError:
            if not final.exists():
                raise
        else:
            return entry
        there = _load(final, entry.key)
        if isinstance(there, Entry):
            shutil.rmtree(draft, ignore_errors=True)
            return there
        trash = Path(tempfile.mkdtemp(prefix="tmp-", dir=final.parent.parent))
        try:
            os.rename(final, trash / "damaged")
        except FileNotFoundError:  # somebody else moved it away
            pass
        finally:
            shutil.rmtree(trash, ignore_errors=True)
    raise OSError(f"{final} is replaced faster than it can be written")


def _write_note(top: Path, name: str, text: str) -> None:
    place = top / "index" / stripe_of(name)
    place.parent.mkdir(mode=0o700, exist_ok=True)
    place.mkdir(mode=0o700, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(prefix="tmp-", dir=top)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.rename(draft, place / f"{name}.json")
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
