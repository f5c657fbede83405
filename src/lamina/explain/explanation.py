"""The explanation of a compiled callable: at most 40 lines for people, or JSON."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from textwrap import wrap
from typing import Any

from lamina.base.tables import Console
from lamina.record import Record
from lamina.stats import stats_of
from lamina.summary import (
    Advice,
    Work,
    advice,
    graph_summaries,
    library_work,
    unapplied_rules,
    user_kernels,
)

__all__ = ["Explanation"]

_MOST_LINES = 40
"""Lines of text that are read at a glance."""
_WIDTH = 118
"""Characters of a line, for a terminal of 120 columns."""


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """What Lamina made of a callable. As text it has at most 40 lines, in colour on a terminal (``NO_COLOR`` unset)."""

    record: Record

    def text(self) -> str:
        """The explanation without colours."""
        return "\n".join(_lines(self.record))

    def __str__(self) -> str:
        return self.text() if Console(file=sys.stdout).color_system is None else _coloured(self.text())

    __repr__ = __str__

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values: figures, advice, graphs, kernels, library calls and every decision."""
        record = self.record
        return {
            "name": record.name,
            "stats": stats_of(record).as_dict(),
            "advice": [asdict(one) for one in advice(record)],
            "rules_not_applied": [one.as_dict() for one in unapplied_rules(record)],
            "graphs": [asdict(one) for one in graph_summaries(record)],
            "kernels": [asdict(one) for one in user_kernels(record)],
            "library_calls": [asdict(one) for one in library_work(record)],
            "decisions": [
                {"region": stage.region, "stage": stage.name, **decision.as_dict()}
                for stage in record.stages
                for decision in stage.decisions
            ],
        }

    def to_json(self, indent: int | None = None) -> str:
        """``to_dict`` as JSON."""
        return json.dumps(self.to_dict(), indent=indent, default=str)


def _lines(record: Record) -> list[str]:
    stats = stats_of(record)
    lines = [f"{record.name}: {stats}".replace("\n", "\n  ").split("\n"), _seconds(stats.seconds)]
    parts = [
        *lines,
        _advised(advice(record)),
        _section("Rules of yours that were not applied", _rules(record), 8),
        _section("Graphs", [_graph(g) for g in graph_summaries(record)], 4),
        _section("Kernels, by bytes moved", [_work(w) for w in user_kernels(record)], 8),
        _section("Library calls", [_work(w) for w in library_work(record)], 4),
    ]
    return [_cut(line) for part in parts for line in part][:_MOST_LINES]


def _seconds(seconds: dict[str, float]) -> list[str]:
    beside = sum(value for name, value in seconds.items() if name.startswith("build"))
    waited = ((name, value) for name, value in seconds.items() if not name.startswith("build"))
    largest = sorted(waited, key=lambda item: -item[1])[:6]
    named = [f"{name} {value:.2f}" for name, value in largest if value >= 0.005]
    built = [f"build {beside:.2f} beside the other stages"] if beside >= 0.005 else []
    while True:
        said = "; ".join((*([", ".join(named)] if named else []), *built))
        if len(line := f"  seconds: {said}") <= _WIDTH or not named:
            return [line] if said else []
        named.pop()


def _advised(found: Sequence[Advice]) -> list[str]:
    if not found:
        return ["Change first: nothing"]
    lines = ["Change first"]
    for number, one in enumerate(found[:5], 1):
        times = f" x {one.count}" if one.count > 1 else ""
        lines.append(_cut(f"{number:3} {_lines_of(one)}{times}  {_plain(one.what)}", f" [{one.code}]"))
        lines.append(_cut(f"      do: {_plain(one.remedy)}"))
    if len(found) > 5:
        lines.append(f"    and {len(found) - 5} more: .to_json(), or LAMINA_LOGS=perf_hints")
    return lines


def _cut(text: str, end: str = "", width: int = _WIDTH) -> str:
    """``text`` with ``end`` in one line; what is cut off is told by dots."""
    width -= len(end)
    return f"{text if len(text) <= width else f'{text[: width - 3]}...'}{end}"


def _rules(record: Record) -> list[str]:
    """For each rule that was not applied why, and what to do, in as many lines as that takes."""
    lines: list[str] = []
    for one in unapplied_rules(record):
        lines += wrap(f"{_plain(one.reason)} [{one.code}]", _WIDTH, initial_indent="    ", subsequent_indent="    ")
        lines += wrap(_plain(one.remedy), _WIDTH, initial_indent="      do: ", subsequent_indent="      ")
    return lines


def _section(title: str, rows: Sequence[str], most: int) -> list[str]:
    if not rows:
        return []
    rest = [f"    and {len(rows) - most} more"] if len(rows) > most else []
    return [title, *rows[:most], *rest]


def _graph(graph: Any) -> str:
    return (
        f"    {graph.region:28} {_count(graph.launches, 'kernel')} {_count(graph.library_calls, 'library call')} "
        f"{_bytes(graph.nbytes):>10} moved"
    )


def _count(number: int, what: str) -> str:
    return f"{number:4} {what if number == 1 else f'{what}s':{len(what) + 1}}"


def _work(work: Work) -> str:
    lines = "; ".join(_short(place) for place in work.places[:2])
    more = f" +{len(work.places) - 2}" if len(work.places) > 2 else ""
    times = f"x {work.count}"
    name = re.sub(r"_[0-9a-f]{8,}$", "", work.name)
    return f"    {times:>5}  {_bytes(work.nbytes):>9} {work.share:4.0%}  {_cut(name, width=34):34}  {lines}{more}"


def _lines_of(one: Advice) -> str:
    said = ", ".join(_short(place) for place in one.places[:2])
    return (f"{said} ..." if len(one.places) > 2 else said) or "all of it"


def _bytes(number: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024 or unit == "GiB":
            break
        number /= 1024
    return f"{number:.0f} B" if unit == "B" else f"{number:.1f} {unit}"


def _short(place: str) -> str:
    """A place without its folders."""
    path, _, rest = place.partition(" ")
    return f"{path.rsplit('/', 1)[-1]} {rest}".rstrip()


def _plain(text: str) -> str:
    return " ".join(text.split())


_BOLD, _YELLOW, _GREEN, _DIM, _END = "\x1b[1m", "\x1b[33m", "\x1b[32m", "\x1b[2m", "\x1b[0m"


def _coloured(text: str) -> str:
    return "\n".join(_coloured_lines(text.splitlines()))


def _coloured_lines(lines: Iterable[str]) -> Iterator[str]:
    for number, line in enumerate(lines):
        if number == 0 or not line.startswith(" "):
            yield f"{_BOLD}{line}{_END}"
        elif line.startswith("      do: "):
            yield f"{_GREEN}{line}{_END}"
        elif line[:3].strip().isdigit():
            yield f"{_YELLOW}{line}{_END}"
        elif "    and " in line[:8]:
            yield f"{_DIM}{line}{_END}"
        else:
            yield line
