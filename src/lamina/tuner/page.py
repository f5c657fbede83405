"""The result of tuning as one HTML page that needs no server, no network and no script."""

from __future__ import annotations

import json
import shlex
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from lamina.errors import BadArgument
from lamina.report.page import static_page
from lamina.tuner.charts import pareto_chart, timings_chart
from lamina.tuner.choice import pareto
from lamina.tuner.files import write_whole
from lamina.tuner.table import figures_told
from lamina.tuner.values import Row

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from lamina.tuner.objective import Objective

__all__ = ["PAGES", "reproduction", "tuning_page", "write_tuning_page"]

PAGES = (".html", ".htm")
"""Endings of a page's file."""
_COLUMNS = ("", "candidate", "verdict", "speed", "p50", "p99", "per second", "memory", "error", "build")


def reproduction(row: Row, objective: Objective, command: str = "") -> str:
    """What measures a row again: the command line where ``command``, the one that tuned, is known, else Python."""
    told = json.dumps(row.candidate.to_json(), sort_keys=True)
    if command:
        return f"{command} --no-resume --candidate {shlex.quote(told)}"
    given = () if row.candidate.kind == "eager" else (told,)
    listed = "".join(f"Candidate.from_json(json.loads({text!r})), " for text in given)
    return (
        "import json, lamina; from lamina.tuner.values import Candidate\n"
        f"lamina.tune(model, inputs, objective={str(objective)!r}, candidates=({listed}), modules=False, resume=False)"
    )


def write_tuning_page(path: str | Path, text: str) -> Path:
    """Write a page, and return its path. Raises ``BadArgument`` for another ending than ``.html``."""
    path = Path(path)
    if path.suffix not in PAGES:
        raise BadArgument(f"no page has the ending {path.suffix!r}", remedy="name a file that ends in .html")
    write_whole(path, text)
    return path


def tuning_page(
    rows: tuple[Row, ...],
    chosen: Row,
    objective: Objective,
    environment: Mapping[str, Mapping[str, Any]],
    command: str = "",
) -> str:
    """The page: the choice, a chart of latency and memory, and for each row figures, timings and how to repeat it.

    ``environment``: groups of facts by name.
    """
    speed = chosen.figures.speedup if chosen.figures else "?"
    cards = {"chosen": chosen.candidate.name, "speed": str(speed), "objective": str(objective), "rows": str(len(rows))}
    best = {id(row) for row in pareto(rows)}
    return static_page(
        f"{chosen.candidate.name} · Lamina tuning",
        "\n".join(
            [
                '<section class="page"><h1>Tuned model</h1><div class="cards">',
                *(
                    f'<div class="card"><span class="value">{escape(value)}</span>'
                    f'<span class="label">{name}</span></div>'
                    for name, value in cards.items()
                ),
                "</div><h2>Latency and memory</h2>",
                '<p class="faint">The line joins the rows that no other beats in latency, memory and error.</p>',
                pareto_chart(rows, chosen),
                '<h2>Rows</h2><table class="wide"><tr>',
                *(f"<th>{name}</th>" for name in _COLUMNS),
                "</tr>",
                *(_row(row, ("*" if row is chosen else "") + ("P" if id(row) in best else "")) for row in rows),
                "</table>",
                '<p class="faint">* chosen; P: no other row beats it. Speeds are medians of paired rounds with their '
                "99.5 % interval.</p>",
                "<h2>Timings</h2>",
                '<p class="faint">Seconds per call in each round, from 0: eager grey, the candidate coloured.</p>',
                *(_timings(row) for row in rows if row.figures is not None),
                "<h2>To measure a row again</h2>",
                *(
                    f"<h3>{escape(row.candidate.name)}</h3><pre>{escape(reproduction(row, objective, command))}</pre>"
                    for row in rows
                ),
                "<h2>Environment</h2>",
                *(_facts(name, facts) for name, facts in environment.items()),
                "</section>",
            ]
        ),
    )


def _row(row: Row, marks: str) -> str:
    kind = {"faster": "yes", "refused": "no", "failed": "no", "crashed": "no"}.get(row.verdict, "")
    cells = [marks, row.candidate.name]
    text = "".join(f"<td>{escape(cell)}</td>" for cell in cells) + f'<td class="{kind}">{row.verdict}</td>'
    text += "".join(f'<td class="number">{escape(cell)}</td>' for cell in figures_told(row.figures))
    more = "\n".join(filter(None, (row.reason, *row.log)))
    below = f'<tr class="more"><td colspan="{len(_COLUMNS)}"><pre>{escape(more)}</pre></td></tr>' if more else ""
    return f"<tr>{text}</tr>{below}"


def _timings(row: Row) -> str:
    figures = row.figures
    assert figures is not None
    raw = " ".join(f"{seconds * 1e6:.1f}" for seconds in figures.timings)
    eager = " ".join(f"{seconds * 1e6:.1f}" for seconds in figures.baseline_timings)
    return (
        f"<h3>{escape(row.candidate.name)}: {figures.samples} rounds, noise {figures.noise:.1%}</h3>"
        f"{timings_chart(figures)}<details><summary>microseconds</summary>"
        f"<pre>candidate {raw}\neager {eager}</pre></details>"
    )


def _facts(name: str, facts: Mapping[str, Any]) -> str:
    lines = "".join(f"<tr><td>{escape(str(k))}</td><td>{escape(str(v))}</td></tr>" for k, v in facts.items())
    return f"<h3>{escape(name)}</h3><table>{lines}</table>"
