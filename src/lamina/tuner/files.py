"""Files that are there as a whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["write_whole"]


def write_whole(path: str | Path, text: str) -> None:
    """Write a file by way of one beside it: whoever is killed meanwhile leaves what was there before. Folders that are
    not there are made.

    Raises ``OSError`` as writing does.
    """
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.getpid()}")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, target)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
