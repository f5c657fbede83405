"""Reports as files: a page, its data, or a trace of the time that compiling took."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lamina.base.paths import path_of
from lamina.errors import BadArgument
from lamina.record import Record
from lamina.report.document import SCHEMA, document
from lamina.report.page import page
from lamina.report.recording import check_report
from lamina.report.timeline import chrome_trace

__all__ = ["read_report", "write_report"]


def write_report(record: Record, path: str | Path, *, assembly: bool = True, against: str | Path | None = None) -> Path:
    """Write what ``record`` says to ``path``, and return that: a page (``.html``), the same as data (``.json``), or the
    stages' times for chrome://tracing and Perfetto (``.trace.json``).

    The page is one file that opens without server or network. It holds the source files that were compiled, whole.
    ``assembly``: CPU kernels are compiled once more to show their machine code, a tenth of a second each. ``against``
    is the data of an earlier report that the page compares this one with. Raises ``BadArgument`` for another ending,
    a file that cannot be written, and data that is not there or is no report's.
    """
    path = path_of(path, "the file of the report")
    check_report(path)
    other = None if against is None else read_report(against)
    if path.name.endswith(".trace.json"):
        text = json.dumps(chrome_trace(record))
    elif path.suffix == ".json":
        text = json.dumps(document(record, assembly))
    else:
        text = page(document(record, assembly), other)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    return path


def read_report(path: str | Path) -> dict[str, Any]:
    """The data of a report that was written as ``.json``. Raises ``BadArgument`` for anything else."""
    try:
        found = json.loads(path_of(path, "the report").read_text(encoding="utf-8", errors="surrogatepass"))
    except OSError as error:
        said = f"the report {path} cannot be read: {error.strerror}"
        raise BadArgument(said, remedy="name a file that a report wrote as .json") from None
    except ValueError as error:
        raise BadArgument(f"{path} is no report: {error}", remedy="name a file that a report wrote as .json") from error
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        made = found.get("schema") if isinstance(found, dict) else None
        raise BadArgument(
            f"{path} is no report of this version: its schema is {made}, not {SCHEMA}",
            remedy="write the report again with this version of Lamina",
        )
    return found
