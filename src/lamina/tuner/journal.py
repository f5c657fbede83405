"""Rows on disk, one line of JSON each, only ever appended: what a killed run had measured is there for the next."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lamina.runtime.locks import Stripe
from lamina.tuner.values import Row

__all__ = ["Journal"]

_VERSION = 1
"""Form of a line; lines of another form are passed over."""
_LASTING = ("baseline", "faster", "tie", "slower", "refused", "failed", "crashed", "hung", "out of memory")
"""Verdicts that a later run takes as they are. What was not there or not tried may be there then."""


class Journal:
    """The rows of a file by key. Several processes may append to one file: a line is written under a lock, at once.

    ``path`` None keeps nothing. A line that is cut short, as by a full disk, is passed over.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def rows(self) -> dict[str, Row]:
        """All rows by key; of two under one key the later."""
        found: dict[str, Row] = {}
        if self.path is None or not self.path.exists():
            return found
        for line in self.path.read_text(encoding="utf-8", errors="replace").splitlines():
            entry = _read(line)
            if entry is not None:
                found[entry[0]] = entry[1]
        return found

    def append(self, key: str, row: Row, facts: Mapping[str, Any]) -> None:
        """Add a row, with facts for who reads the file; verdicts that do not last are not kept."""
        if self.path is None or row.verdict not in _LASTING:
            return
        line = json.dumps({"version": _VERSION, "key": key, "row": row.to_json(), **facts}, sort_keys=True)
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with Stripe(self.path.parent, f"{self.path.name}.lock"):
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                size = os.lseek(descriptor, 0, os.SEEK_END)
                torn = size and os.pread(descriptor, 1, size - 1) != b"\n"
                os.write(descriptor, f"{chr(10) if torn else ''}{line}\n".encode())
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _read(line: str) -> tuple[str, Row] | None:
    try:
        data = json.loads(line)
        if data["version"] != _VERSION:
            return None
        return str(data["key"]), Row.from_json(data["row"])
    except (ValueError, KeyError, TypeError):
        return None
