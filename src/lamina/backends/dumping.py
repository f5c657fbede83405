"""The option dump_dir: the stages of a function, written whenever one of its graphs was compiled."""

from __future__ import annotations

import threading
from pathlib import Path

from lamina.aot.region import Region
from lamina.base.user_warnings import warn_user
from lamina.errors import BadArgument
from lamina.options import Options
from lamina.record import Record

__all__ = ["dump_backward", "dump_graph"]

_DUMPED: dict[Path, int] = {}
"""How many functions dump to a folder that the option dump_dir named."""
_GUARD = threading.Lock()


def dump_graph(record: Record, options: Options) -> None:
    """Write the stages so far where the options say. Raises ``BadArgument`` where that cannot be written."""
    if not options.dump_dir:
        return
    record.folder = record.folder or _own_folder(Path(options.dump_dir))
    try:
        with record.harmless("dump", besides=OSError):
            record.dump(record.folder)
    except OSError as refusal:
        what = f"the option dump_dir is {options.dump_dir!r}, which cannot be written: {refusal.strerror}"
        raise BadArgument(what, remedy="name a folder that can be made and written") from refusal


def dump_backward(record: Record, region: Region) -> None:
    """Write the stages again after those of a backward, which come when those of its graph were written."""
    if region.kind != "backward" or record.folder is None:
        return
    try:
        with record.harmless("dump", besides=OSError):
            record.dump(record.folder)
    except OSError as refusal:
        said = f"lamina cannot write the stages of {region.name} to {record.folder}: {refusal.strerror}"
        warn_user(said)


def _own_folder(folder: Path) -> Path:
    """``folder`` for the first function of the process that dumps there; its folders function2, .. for others."""
    with _GUARD:
        number = _DUMPED[folder] = _DUMPED.get(folder, 0) + 1
    return folder if number == 1 else folder / f"function{number}"
