"""Records of a process that is to leave a report: they keep graphs as rewrites leave them, until it ends."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.fx import Graph, GraphModule

from lamina.base.files import graph_copy
from lamina.base.recovery import is_internal, recover
from lamina.base.user_warnings import warn_user
from lamina.errors import BadArgument
from lamina.options import Options
from lamina.record import Record, keep, put_in_place

if TYPE_CHECKING:
    from lamina.ir.loops import LoopProgram
    from lamina.report.brief_graphs import Ends

__all__ = [
    "Recording",
    "check_ending",
    "check_report",
    "everything_reported",
    "kept_record",
    "record_for",
    "report",
    "reported",
    "write_waiting",
]


@dataclass(slots=True, repr=False)
class Recording(Record):
    """A record that keeps each graph as each rewrite that changed it left it, by captured graph.

    Graphs are copied while compiling; their texts are made when somebody asks for them.
    """

    graphs: dict[str, list[tuple[str, Callable[[Ends], str]]]] = field(default_factory=dict)
    fusions: dict[str, list[tuple[str, LoopProgram]]] = field(default_factory=dict)
    """The program of each region as each step of its fusion left it."""
    launches: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """Seconds of some launches of each kernel, by region."""
    _nodes: dict[str, list[tuple[object, ...]]] = field(default_factory=dict)
    """The parts of each graph's nodes as they were: those of a node that a rewrite changed are others."""

    def passed(self, graph: str, place: str, rewrite: str, gm: object) -> None:
        """Keep the graph after ``rewrite``, or before any of a place where there is none."""
        if not isinstance(gm, GraphModule):
            return
        nodes: list[tuple[object, ...]] = [(n, n.target, n.args, n.kwargs) for n in gm.graph.nodes]
        if _same(self._nodes.get(graph), nodes):
            return
        self._nodes[graph] = nodes
        self.graphs.setdefault(graph, []).append((rewrite, partial(_brief_text, graph_copy(gm.graph), gm)))

    def fused(self, region: str, step: str, program: object) -> None:
        """Keep the program, which nothing changes later."""
        if isinstance(program, import_module("lamina.ir.loops").LoopProgram):
            steps = self.fusions.setdefault(region, [])
            if any(name == step for name, _ in steps):  # the region is compiled again
                steps.clear()
            steps.append((step, program))

    def launch_times(self, region: str) -> dict[str, list[float]]:
        """Where the seconds of the region's launches go; those of an earlier version of it do not count."""
        self.launches[region] = {}
        return self.launches[region]


def _brief_text(graph: Graph, owner: GraphModule, ends: Ends) -> str:
    """``brief_text``, whose module, as that of programs of loops, is not loaded where nothing is compiled."""
    text: str = import_module("lamina.report.brief_graphs").brief_text(graph, owner, ends)
    return text


def _same(before: Sequence[tuple[object, ...]] | None, now: Sequence[tuple[object, ...]]) -> bool:
    """Whether two lists of nodes have the very same parts."""
    if before is None or len(before) != len(now):
        return False
    return all(a is b for one, other in zip(before, now, strict=True) for a, b in zip(one, other, strict=True))


def report(record: Record, path: str | Path, **how: Any) -> Path:
    """``write_report`` of ``lamina.report.write``, which is loaded when a report is first asked for."""
    made: Path = import_module("lamina.report.write").write_report(record, path, **how)
    return made


class _Waiting:
    """What is written when the process ends; ``everything`` is where records go for which no option names a file."""

    def __init__(self) -> None:
        self.records: list[tuple[Record, Path]] = []
        self.everything: Path | None = None


_waiting = _Waiting()


@contextmanager
def everything_reported(path: Path) -> Iterator[None]:
    """Inside, each callable of the process that is compiled is reported to ``path``, as the option report says it."""
    before, _waiting.everything = _waiting.everything, path.absolute()
    try:
        yield
    finally:
        _waiting.everything = before


def check_ending(path: Path) -> None:
    """Raise ``BadArgument`` where ``path`` does not say what is to be written."""
    if not path.name.endswith((".html", ".htm", ".json")):
        raise BadArgument(
            f"no report has the ending {path.suffix!r}", remedy="name a file that ends in .html, .json or .trace.json"
        )


def check_report(path: Path) -> Path:
    """``path`` as an absolute one. Raises ``BadArgument`` where no report can be written to it."""
    path = path.absolute()
    check_ending(path)
    folder = next(folder for folder in path.parents if folder.exists())  # those below it are made
    if path.is_dir() or not folder.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise BadArgument(f"the report {path} cannot be written", remedy="name a file in a folder that is yours")
    return path


def record_for(name: str, options: Options) -> Record:
    """The record of a callable; where the option report names a file, it is written when the process ends.

    Raises ``BadArgument`` where it cannot be written.
    """
    path = _path_for(options)
    return Record(name) if path is None else _awaited(Recording(name), path)


def reported(record: Record, options: Options) -> Record:
    """``record``, or where the options name a file for its report, one in its place that is written when the process
    ends: for callables whose record was there before their options were known. Raises ``BadArgument`` as above.
    """
    try:
        path = None if isinstance(record, Recording) else _path_for(options)
        if path is None:
            return record
        made = Recording(record.name, record.stages, record.folder, record.incomplete)
        return _awaited(put_in_place(record, made), path)
    except Exception as error:
        return _unreported(error, record, options)


def _path_for(options: Options) -> Path | None:
    return check_report(Path(options.report)) if options.report else _waiting.everything


def _awaited(record: Record, path: Path) -> Record:
    if not _waiting.records:
        atexit.register(write_waiting)
    _waiting.records.append((record, path))
    return record


def kept_record(name: str, options: Options) -> Record:
    """``record_for`` a callable, which ``lamina.records`` finds; an empty record where that fails."""
    try:
        return keep(record_for(name, options))
    except Exception as error:
        return _unreported(error, Record(name), options)


def _unreported(error: Exception, record: Record, options: Options) -> Record:
    """``record``, where what was to be written of it failed by a fault of ours."""
    if not is_internal(error):
        raise error
    recover(
        error,
        doing="recording it",
        region=record.name,
        instead="it is compiled all the same, and reported nowhere",
        strict=options.strict,
        note=record.noting("", "record"),
        kind="record",
    )
    return record


def write_waiting(told: Callable[[Path], None] = lambda path: None) -> None:
    """Write all reports that are waited for, and call ``told`` with each file. One that fails is a warning."""
    made: dict[Path, int] = {}
    while _waiting.records:
        record, path = _waiting.records.pop(0)
        if not record.stages:
            continue
        number = made[path] = made.get(path, 0) + 1
        own = path if number == 1 else path.with_name(f"{path.stem}-{number}{path.suffix}")
        try:
            report(record, own)
        except Exception as error:
            said = f"lamina cannot write the report {own}: {type(error).__name__}: {error}"
            warn_user(said)
            continue
        told(own)
