"""Loading shared objects into this process."""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import struct
from pathlib import Path

__all__ = ["load_library"]

_COUNT = itertools.count(1)


def load_library(file: Path | int) -> ctypes.CDLL:
    """Load a shared object; raises ``OSError`` if it cannot be. Works on file systems mounted without execution too.

    ``file`` is a path, or a descriptor of a file that was checked: what a path names may change.
    """
    if isinstance(file, Path):
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return load_library(descriptor)
        finally:
            os.close(descriptor)
    if not _is_whole(file):
        raise OSError(errno.ENOEXEC, "it is not a whole shared object")
    try:
        return ctypes.CDLL(_name_of(file))
    except OSError as error:
        if not hasattr(os, "memfd_create") or "failed to map segment" not in str(error):
            raise
    copy = os.memfd_create("lamina", os.MFD_CLOEXEC)
    try:
        offset = 0
        while part := os.pread(file, 1 << 20, offset):
            offset += os.write(copy, part)
        return ctypes.CDLL(_name_of(copy))
    finally:
        os.close(copy)


def _name_of(descriptor: int) -> str:
    """A path of an open file that was never used before.

    The dynamic linker knows libraries by the paths they were loaded by, and the number of a descriptor comes back as
    soon as it is closed. A slash more, or a dot, makes another path of the same meaning.
    """
    distinct = format(next(_COUNT), "b").replace("0", "/").replace("1", "/.")
    return f"/proc/self/fd{distinct}/{descriptor}"


def _is_whole(descriptor: int) -> bool:
    """Whether all segments of an ELF object are in the file: one that was cut off would be a fault of memory access."""
    size = os.fstat(descriptor).st_size
    head = os.pread(descriptor, 64, 0)
    if len(head) < 64 or head[:4] != b"\x7fELF":
        return False
    if head[4:6] != b"\x02\x01":  # not of 64 bits in little-endian order
        return True
    table, width, count = struct.unpack_from("<Q", head, 0x20)[0], *struct.unpack_from("<HH", head, 0x36)
    if table + width * count > size or width < 0x28:
        return False
    segments = os.pread(descriptor, width * count, table)
    for at in range(0, width * count, width):
        offset, held = struct.unpack_from("<Q", segments, at + 8)[0], struct.unpack_from("<Q", segments, at + 0x20)[0]
        if offset + held > size:
            return False
    return True
