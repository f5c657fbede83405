"""Folders in which compilers work: on a disk with room, and gone, with the compilers in them, when this process is."""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from lamina.runtime.cache_files import is_full
from lamina.runtime.processes import start_process

__all__ = ["DiskFull", "Workspace", "in_workspace", "kill_group", "stop_all"]

_T = TypeVar("_T")
_FULL = ("No space left on device", "Disk quota exceeded")

# Reads the numbers of process groups until its parent says "done" or is no more. `kill` and `rm` may be
# early for a process that is just ending, so the folder is removed until it is gone. A compiler that its parent had no
# time to tell of is known by the folder it works in; once that is gone, none can begin.
_WATCH = """
trap '' HUP INT QUIT TERM
groups=' '
while read -r word; do
  case $word in
    done) exit 0;;
    -*) groups=${groups%% ${word#-} *}' '${groups#* ${word#-} };;
    *) groups="$groups$word ";;
  esac
done
end_all() {
  for process in /proc/[0-9]*; do
    case $(readlink "$process/cwd") in "$1"|"$1 (deleted)") kill -s KILL "${process#/proc/}";; esac
  done
}
for group in $groups; do kill -s KILL -- "-$group"; done
remove() { for attempt in 1 2 3 4 5 6 7 8 9; do rm -rf -- "$1" && break; sleep 0.1; done; }
remove "$1"
end_all "$1"
remove "$1"
"""


class DiskFull(OSError):
    """No disk has room for what compilers write."""


class Workspace:
    """A folder (mode 0700) for compilers; removed at the end of the ``with``, and if this process dies before.

    A small shell process waits for that: a process that is killed cannot clean up after itself.
    """

    def __init__(self, place: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="lamina-build-", dir=place))
        # Compilers have temporary files of their own: they go to the disk that has room.
        self.prefix = () if place == tempfile.gettempdir() else ("/usr/bin/env", f"TMPDIR={self.path}")
        self._guard = threading.Lock()
        self._groups: set[int] = set()
        self._owner = os.getpid()
        self._watch: subprocess.Popen[bytes] | None = None
        with contextlib.suppress(OSError):
            self._watch = start_process(
                ("/bin/sh", "-c", _WATCH, "lamina", str(self.path)),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        with _GUARD:
            _OPEN.add(self)

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, group: int) -> None:
        """Have the process group ``group`` end with this process."""
        with self._guard:
            self._groups.add(group)
            self._tell(f"{group}")

    def remove(self, group: int) -> None:
        """The group has ended."""
        with self._guard:
            self._groups.discard(group)
            self._tell(f"-{group}")

    def full(self) -> bool:
        """Whether the disk has no room left, or no more than a compiler needs for a message."""
        try:
            found = os.statvfs(self.path)
        except OSError:
            return False
        return found.f_bavail * found.f_frsize < 1 << 16 or (found.f_files > 0 and found.f_favail < 4)

    def check(self, message: str) -> None:
        """Raise ``DiskFull`` if that is why a compiler failed with ``message``."""
        if any(words in message for words in _FULL) or self.full():
            raise DiskFull(errno.ENOSPC, f"no space left in {self.path.parent}")

    def close(self) -> None:
        """Remove the folder, after ending what still runs in it."""
        with _GUARD:
            _OPEN.discard(self)
        if os.getpid() != self._owner:
            return
        for group in tuple(self._groups):
            kill_group(group)
        shutil.rmtree(self.path, ignore_errors=True)
        with self._guard:
            self._tell("done")
            watch, self._watch = self._watch, None
        if watch is not None:
            assert watch.stdin is not None
            with contextlib.suppress(OSError):
                watch.stdin.close()
            watch.wait()

    def _tell(self, word: str) -> None:
        if self._watch is not None and self._watch.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                self._watch.stdin.write(word.encode() + b"\n")
                self._watch.stdin.flush()

    def _forked(self) -> None:
        """In a forked child: what is watched for the parent must not wait for the child too."""
        watch, self._watch = self._watch, None
        if watch is not None and watch.stdin is not None:
            with contextlib.suppress(OSError):
                os.close(watch.stdin.fileno())
            watch.returncode = 0  # not this process's to wait for


def kill_group(group: int) -> None:
    """End a compiler with all the processes it has started: its driver runs its passes as children."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def in_workspace(cache_folder: Callable[[], Path], work: Callable[[Workspace], _T]) -> _T:
    """What ``work`` returns, given a workspace in the temporary folder, or on another disk if that one is full.

    Raises ``DiskFull`` where all are, and ``OSError`` where no folder can be made.
    """
    tried: list[str] = []
    problem: OSError | None = None
    for place in _places(cache_folder):
        try:
            with Workspace(place) as workspace:
                return work(workspace)
        except OSError as error:
            if not is_full(error) and not isinstance(error, (PermissionError, FileNotFoundError)):
                raise
            tried.append(place)
            problem = error
    if problem is None or is_full(problem):
        raise DiskFull(errno.ENOSPC, f"the disk is full: no room for a compiler in {', '.join(tried)}")
    raise problem


def _places(cache_folder: Callable[[], Path]) -> Iterator[str]:
    """Folders on different disks, best first."""
    devices: set[int] = set()
    for find in (tempfile.gettempdir, cache_folder, lambda: "/var/tmp", lambda: "/dev/shm"):
        try:
            place = str(find())
            device = os.stat(place).st_dev
        except OSError:
            continue
        if device not in devices:
            devices.add(device)
            yield place


_OPEN: set[Workspace] = set()
"""Folders in which something is being built now."""
_GUARD = threading.Lock()


def stop_all() -> None:
    """End the compilers of this process and remove their folders, whichever thread waits for them."""
    for workspace in tuple(_OPEN):
        workspace.close()


def _after_fork() -> None:
    global _GUARD
    _GUARD = threading.Lock()
    for workspace in tuple(_OPEN):
        workspace._forked()
    _OPEN.clear()


atexit.register(stop_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
