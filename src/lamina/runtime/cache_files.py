"""Files of the cache, read and written so that nobody else's are: by descriptor, owner and mode checked at each step.

What is loaded from the cache is executed, so no other user may have had a hand in it. A path says nothing lasting:
what it names can be exchanged between a check and a use. A descriptor goes on naming what was checked. Links are not
followed below the root, and nothing but regular files is read: opening a pipe would wait for a writer.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = [
    "FORMAT",
    "MANIFEST",
    "Folder",
    "canonical",
    "clear_away",
    "digest",
    "distrust",
    "is_full",
    "open_file",
    "read_file",
    "read_signed",
    "signed",
    "write_file",
]

FORMAT = 1
"""Number of the layout of cache entries; entries of another number are misses."""
MANIFEST = "manifest.json"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OTHERS = stat.S_IWGRP | stat.S_IWOTH


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


def is_full(error: OSError) -> bool:
    """Whether ``error`` says that a file system has no room left."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def distrust(found: os.stat_result, name: str, sticky: bool = False) -> str:
    """Why another user could have written what ``found`` describes, or "". ``sticky`` allows a folder like /tmp."""
    if found.st_uid not in (os.geteuid(), 0):
        return f"{name} belongs to user {found.st_uid}, not to user {os.geteuid()}"
    # Others may add to a sticky folder, but not replace what is in it.
    if found.st_mode & _OTHERS and not (sticky and found.st_mode & stat.S_ISVTX):
        return f"{name} can be written by other users (mode {stat.S_IMODE(found.st_mode):o})"
    return ""


class Folder:
    """A folder that is held open: ``path`` says where it was found, ``descriptor`` goes on naming it."""

    __slots__ = ("__weakref__", "descriptor", "path")

    def __init__(self, path: Path, descriptor: int = -1) -> None:
        self.path = path
        self.descriptor = os.open(path, _FOLDER) if descriptor < 0 else descriptor

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            os.close(self.descriptor)

    def descriptor_of(self, name: str) -> int:
        """A new descriptor of the folder ``name`` in this one; links are not followed. Raises ``OSError``."""
        return os.open(name, _FOLDER, dir_fd=self.descriptor)

    def gone(self) -> bool:
        """Whether it was removed, or is no longer what its path names."""
        try:
            there = os.stat(self.path)
        except OSError:
            return True
        return not os.path.samestat(there, os.fstat(self.descriptor))

    @contextlib.contextmanager
    def within(self, *names: str) -> Iterator[int]:
        """The descriptor of a folder below this one. Raises ``OSError`` where one on the way is missing or not ours."""
        current = self.descriptor
        try:
            for name in names:
                inner = os.open(name, _FOLDER, dir_fd=current)
                if current != self.descriptor:
                    os.close(current)
                current = inner
                if why := distrust(os.fstat(current), name):
                    raise PermissionError(errno.EPERM, why)
            yield current
        finally:
            if current != self.descriptor:
                os.close(current)

    @contextlib.contextmanager
    def made(self, *names: str) -> Iterator[int]:
        """As ``within``, but folders that are not there are made, and whatever else is in their place is moved away."""
        for depth, name in enumerate(names):
            with self.within(*names[:depth]) as parent:
                for attempt in range(2):
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(name, 0o700, dir_fd=parent)
                    try:
                        with self.within(*names[: depth + 1]):
                            break
                    except FileNotFoundError:
                        raise
                    except OSError:
                        if attempt:
                            raise
                        clear_away(self, parent, name)
        with self.within(*names) as descriptor:
            yield descriptor


def clear_away(top: Folder, parent: int, name: str) -> bool:
    """Remove whatever is called ``name`` in ``parent``, at once for all who look; False if nothing is there."""
    trash = f"tmp-trash-{secrets.token_hex(8)}"
    os.mkdir(trash, 0o700, dir_fd=top.descriptor)
    try:
        with top.within(trash) as away:
            os.rename(name, "removed", src_dir_fd=parent, dst_dir_fd=away)
    except FileNotFoundError:
        return False
    finally:
        shutil.rmtree(top.path / trash, ignore_errors=True)
    return True


@contextlib.contextmanager
def open_file(folder: int, name: str) -> Iterator[tuple[int, os.stat_result]]:
    """A descriptor of a regular file that nobody else could have written. Raises ``OSError``; never waits."""
    descriptor = os.open(name, _FILE, dir_fd=folder)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        if why := distrust(found, name):
            raise PermissionError(errno.EPERM, why)
        yield descriptor, found
    finally:
        os.close(descriptor)


def read_file(folder: int, name: str) -> tuple[bytes, os.stat_result]:
    """The content of a regular file that nobody else could have written, and its facts. Raises ``OSError``."""
    with open_file(folder, name) as (descriptor, found):
        parts = []
        while part := os.read(descriptor, max(found.st_size, 1 << 16)):
            parts.append(part)
    return b"".join(parts), found


def write_file(folder: int, name: str, content: bytes) -> None:
    """Write a new file for nobody but this user, and have it on the disk."""
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)


def canonical(content: Mapping[str, Any]) -> str:
    """The one text of a JSON object that its checksum is taken of."""
    return json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def signed(content: Mapping[str, Any]) -> bytes:
    """A JSON object as readable text, with its own SHA-256 in it."""
    whole = {**content, "sha256": digest(canonical(content).encode())}
    return (json.dumps(whole, indent=1, ensure_ascii=False) + "\n").encode()


def read_signed(text: bytes, name: str) -> dict[str, Any]:
    """The JSON object in a text that carries its own SHA-256. Raises ``ValueError`` that says what is wrong."""
    try:
        content = json.loads(text)
        claimed = content.pop("sha256")
        right = claimed == digest(canonical(content).encode())
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise ValueError(f"{name} is not a whole JSON object") from None
    if not right:
        raise ValueError(f"{name} was changed after it was written")
    return dict(content)
