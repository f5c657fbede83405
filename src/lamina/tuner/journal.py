"""Rows on disk, one line of JSON each, only ever appended: what a killed run had measured is there for the next."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lamina.base.user_warnings import warn_user
from lamina.errors import BadArgument
from lamina.runtime.locks import Patience, Stripe
from lamina.tuner.values import Row

__all__ = ["Journal"]

_VERSION = 1
"""Form of a line; lines of another form are passed over."""
_LASTING = ("baseline", "faster", "tie", "slower", "refused", "failed", "crashed", "hung", "out of memory")
"""Verdicts that a later run takes as they are. What was not there or not tried may be there then."""
_BEGINS = '{"device"'
"""How each line begins, so that one that was cut short can be told from a file of something else."""
_ANOTHER = "name another file, or one that is not there yet"


class Journal:
    """The rows of a file by key. Several processes may append to one file: a line is written under a lock, at once.

    ``path`` None keeps nothing. Lines that are cut short, as by a kill, are passed over; those that are damaged or of
    another form with a warning. ``rows`` raises ``BadArgument`` for a file that is no journal.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._read = 0  # bytes
        self._told = False

    def rows(self) -> dict[str, Row]:
        """The rows by key that were added since this was last asked for; of two under one key the later."""
        found: dict[str, Row] = {}
        if self.path is None:
            return found
        first = self._read == 0
        lines, rest = self._added(self.path)
        unread = []
        for line in lines:
            entry = _entry(line)
            if entry is None:
                unread.append(line)
            else:
                found[entry[0]] = entry[1]
        others = [line for line in unread if _is_of_another_form(line)]
        if first and not found and not others:
            strange = [line for line in (*unread, *filter(None, [rest])) if not line.startswith(_BEGINS[: len(line)])]
            if strange:
                raise BadArgument(f"{self.path} is no journal: it begins with {strange[0][:40]!r}", remedy=_ANOTHER)
        torn = [line for line in unread if line.startswith(_BEGINS) and not line.endswith("}")]
        self._warn(len(unread) - len(others) - len(torn), "cannot be read")
        self._warn(len(others), "were written by another version of Lamina")
        return found

    def _added(self, path: Path) -> tuple[list[str], str]:
        """The lines that were added, and what there is of one that has no end: another process may be at it."""
        if not path.exists() and not path.is_symlink():
            return [], ""
        if not path.is_file():
            raise BadArgument(f"the journal {path} is no file", remedy=_ANOTHER)
        try:
            with path.open("rb") as file:
                file.seek(self._read)
                data = file.read()
        except OSError as error:
            raise BadArgument(f"the journal {path} cannot be read: {error.strerror}", remedy=_ANOTHER) from error
        end = data.rfind(b"\n") + 1
        self._read += end
        lines = data[:end].decode(errors="replace").split("\n")
        return [line for line in lines if line.strip()], data[end:].decode(errors="replace")

    def append(self, key: str, row: Row, facts: Mapping[str, Any]) -> None:
        """Add a row, with facts for who reads the file; verdicts that do not last are not kept.

        A file that cannot be written is said once: the run goes on, and a later one measures again.
        """
        if self.path is None or row.verdict not in _LASTING:
            return
        line = json.dumps({"version": _VERSION, "key": key, "row": row.to_json(), **facts}, sort_keys=True)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with Stripe(self.path.parent, f"{self.path.name}.lock"):
                descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
                try:
                    _write(descriptor, line)
                finally:
                    os.close(descriptor)
        except OSError as error:
            if not self._told:
                self._told = True
                text = f"the journal {self.path} cannot be written: {error.strerror}; rows are not kept"
                warn_user(text, "name another file with journal=")

    def turn(self, subject: str, seconds: float) -> Stripe | None:
        """A lock to hold while a candidate of a subject is measured: runs on one journal share the work, and do not
        disturb each other's timings. It is waited for that long at most. None without a file.
        """
        if self.path is None:
            return None
        name = hashlib.sha256(f"{self.path.absolute()} {subject}".encode()).hexdigest()[:2]
        return Stripe(self.path.parent, f"{self.path.name}.{name}.lock", Patience(most=seconds))

    def _warn(self, count: int, what: str) -> None:
        if count:
            text = f"{count} lines of the journal {self.path} {what}; what they were of is measured again"
            warn_user(text, "delete the file to be rid of this warning")


def _write(descriptor: int, line: str) -> None:
    size = os.lseek(descriptor, 0, os.SEEK_END)
    torn = size and os.pread(descriptor, 1, size - 1) != b"\n"
    data = f"{chr(10) if torn else ''}{line}\n".encode()
    while data:
        data = data[os.write(descriptor, data) :]
    os.fsync(descriptor)


def _entry(line: str) -> tuple[str, Row] | None:
    try:
        data = json.loads(line)
        if data["version"] != _VERSION:
            return None
        row = Row.from_json(data["row"])
        return None if row.flaw() else (str(data["key"]), row)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _is_of_another_form(line: str) -> bool:
    try:
        data = json.loads(line)
        return isinstance(data["version"], int) and data["version"] != _VERSION and "key" in data and "row" in data
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
