"""Files that are there as a whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from lamina.errors import BadArgument

__all__ = ["write_whole"]


def write_whole(path: str | Path, text: str) -> None:
    """Write a file by way of one beside it: whoever is killed meanwhile leaves what was there before. Folders that are
    not there are made.

    Raises ``BadArgument`` where it cannot be written, as on a full disk.
    """
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8", errors="surrogatepass")
        os.replace(part, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            part.unlink()
        if isinstance(error, OSError):
            raise BadArgument(f"{path} cannot be written: {error.strerror}", remedy="name another file") from error
        raise
