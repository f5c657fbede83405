"""The page of a result: it loads nothing, shows all rows, and says how to measure each again."""

from __future__ import annotations

import json
import re
import shlex
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from lamina.cli.app import app
from lamina.errors import BadArgument
from lamina.tuner.objective import parse_objective
from lamina.tuner.page import reproduction, tuning_page, write_tuning_page
from lamina.tuner.table import SPENT, rows_table, table_text
from lamina.tuner.values import EAGER, Candidate, Figures, Interval, Row

HOSTILE = "</pre><script>alert(1)</script>\"'&<"
FIGURES = Figures(
    0.01, 0.02, 0.01, 0.01, Interval(2.0, 1.9, 2.1), 0.005, 3, 800.0, 5e6, 3.0, 0.1, 0.0, None, (0.01, 0.02), (0.02,)
)
ROWS = (
    Row(EAGER, "baseline", "", FIGURES),
    Row(Candidate(HOSTILE, "import", {"target": HOSTILE}), "faster", "", FIGURES),
    Row(Candidate("wrong", "import"), "crashed", HOSTILE, None, (HOSTILE,)),
)
OBJECTIVE = parse_objective("latency, error<=1e-3")


def test_a_page_loads_nothing_and_shows_texts_as_texts() -> None:
    text = tuning_page(ROWS, ROWS[1], OBJECTIVE, {"device": {"processor": HOSTILE}})
    assert "<script" not in text
    assert "default-src 'none'" in text
    assert not re.search(r"(src|href)=|url\((?!data:)|@import", text)
    assert text.count("&lt;script&gt;") >= 5
    charts = re.findall(r"<svg.*?</svg>", text)
    assert len(charts) == 3
    for chart in charts:
        ElementTree.fromstring(chart)
    assert charts[0].count("<circle") == 2
    assert charts[1].count("<circle") == 3
    assert "20000.0" in text


def test_a_row_without_memory_is_charted_by_its_error() -> None:
    rows = tuple(Row(EAGER, "baseline", "", Figures.from_json({**vars_of(FIGURES), "peak_memory": None})) for _ in "a")
    assert "largest error" in tuning_page(rows, rows[0], OBJECTIVE, {})


def vars_of(figures: Figures) -> dict[str, object]:
    found = Row(EAGER, "baseline", "", figures).to_json()["figures"]
    assert isinstance(found, dict)
    return found


def test_what_measures_a_row_again_is_a_line_that_can_be_run() -> None:
    line = reproduction(ROWS[1], OBJECTIVE, "lamina tune a:b --inputs a:c")
    given = shlex.split(line)
    assert Candidate.from_json(json.loads(given[-1])) == ROWS[1].candidate
    asked = {}

    class Tuner:
        @staticmethod
        def tune(*args: object, **named: object) -> None:
            asked.update(named)

    program = reproduction(ROWS[1], OBJECTIVE).replace("import json, lamina;", "import json;")
    exec(program, {"lamina": Tuner, "model": None, "inputs": None})
    assert asked == {
        "objective": "latency, error<=0.001",
        "candidates": (ROWS[1].candidate,),
        "modules": False,
        "resume": False,
    }


def test_a_page_ends_in_html(tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match=r"ends in \.html"):
        write_tuning_page(tmp_path / "page.pdf", "")


def test_the_command_writes_a_page_whose_lines_it_takes(tmp_path: Path) -> None:
    page = tmp_path / "tuned.html"
    candidate = json.dumps(Candidate("mine", "import", {"target": "tests.tuner.planted:constant"}).to_json())
    line = ["tune", "tests.tuner.models:small", "--inputs", "tests.tuner.models:batch", "--candidate", candidate]
    done = CliRunner().invoke(app, [*line, "--journal", str(tmp_path / "j"), "--report", str(page), "--json"])
    assert done.exit_code == 0, done.output
    assert [row["verdict"] for row in json.loads(done.stdout)["rows"]] == ["baseline", "refused"]
    told = re.findall(r"<pre>(lamina tune .*?)</pre>", page.read_text(encoding="utf-8"))
    assert len(told) == 2
    again = [*shlex.split(unescape(told[1]))[1:], "--journal", str(tmp_path / "k"), "--json"]
    done = CliRunner().invoke(app, again)
    assert done.exit_code == 0, done.output
    assert [row["verdict"] for row in json.loads(done.stdout)["rows"]] == ["baseline", "refused"]
    wrong = CliRunner().invoke(app, [*line[:-1], "fast"])
    assert wrong.exit_code != 0


def test_what_the_budget_was_spent_for_is_one_row() -> None:
    spent = tuple(Row(Candidate(f"c{k}", "import"), "not tried", SPENT) for k in range(5))
    other = Row(Candidate("d", "import"), "not tried", f"{SPENT}: no answer")
    table = rows_table((ROWS[0], *spent[:2], other), ROWS[0], "t")
    assert table.row_count == 4
    table = rows_table((ROWS[0], *spent, other), ROWS[0], "t")
    assert table.row_count == 3
    assert "c0 and 4 more" in table_text(table)
