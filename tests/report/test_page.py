from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import lamina
from lamina.cli.app import app
from lamina.errors import BadArgument
from lamina.report.document import document
from lamina.report.page import page
from lamina.report.recording import _Waiting
from lamina.report.write import read_report, write_report
from tests.processes import python
from tests.report.programs import trained

WEB = Path(__file__).parents[2] / "src" / "lamina" / "report" / "web"
HOSTILE = "</script><script>alert(1)</script>\"'`${x}\u2028\u2029<!--"


def data_of(text: str, name: str = "report") -> dict[str, Any]:
    (packed,) = re.findall(rf'<script type="application/octet-stream" id="{name}">([^<]*)</script>', text)
    found: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(packed)))
    return found


def test_a_page_runs_its_one_script_and_loads_nothing() -> None:
    text = page({"name": "model"})
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert len(scripts) == 1
    assert policy.startswith("default-src 'none'; ")
    assert f"script-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy


def test_hostile_names_stay_data() -> None:
    text = page({"name": HOSTILE, "texts": [HOSTILE]})
    assert "alert(1)" not in text.replace("&lt;script&gt;alert(1)", "")
    assert data_of(text) == {"name": HOSTILE, "texts": [HOSTILE]}


def test_the_ending_says_what_is_written(tmp_path: Path) -> None:
    record = trained()
    text = write_report(record, tmp_path / "deep" / "out.html", assembly=False).read_text()
    data = read_report(write_report(record, tmp_path / "out.json", assembly=False))
    assert data_of(text)["texts"] == data["texts"]
    events = json.loads(write_report(record, tmp_path / "out.trace.json").read_text())["traceEvents"]
    assert {event["name"].split()[0] for event in events} >= {"aot", "fuse", "build"}
    assert all(event["dur"] >= 1 and event["ts"] >= 0 for event in events if event["ph"] == "X")
    with pytest.raises(BadArgument, match=r"no report has the ending '\.txt'"):
        write_report(record, tmp_path / "out.txt")


def test_what_is_no_report_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{")
    (tmp_path / "b.json").write_text("[]")
    for name in ("a", "b"):
        with pytest.raises(BadArgument, match="is no report"):
            read_report(tmp_path / f"{name}.json")


def test_compiled_callables_write_reports(tmp_path: Path) -> None:
    module = lamina.compile(torch.nn.Linear(4, 4))
    module(torch.randn(2, 4))
    function = lamina.compile(lambda x: x.sin() + 1)
    function(torch.randn(4))
    for number, compiled in enumerate((module, function)):
        assert read_report(compiled.report(tmp_path / f"{number}.json", assembly=False))["regions"]


def test_the_option_report_keeps_rewrites_and_writes_at_the_end(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import torch, lamina\n"
        "first = lamina.compile(lambda x: (x * 1).t().t() + torch.softmax(x, -1))\n"
        "second = lamina.compile(lambda x: x + 2)\n"
        "first(torch.randn(4, 4)), second(torch.randn(4))\n"
    )
    env = {**os.environ, "LAMINA_REPORT": str(tmp_path / "out.json")}
    subprocess.run([*python(), str(program)], env=env, check=True, timeout=120)
    found = [read_report(tmp_path / name) for name in ("out.json", "out-2.json")]
    assert found[0]["texts"][0]["title"] == "program.py"
    rewritten = [one for one in found[0]["passes"] if one["region"] == "lambda0" and one["before"]]
    assert rewritten
    assert all(one["before"] != one["after"] for one in rewritten)


def test_what_torch_compile_is_given_is_reported_too(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import torch, lamina\n"
        "f = torch.compile(lambda x: (x * 1).t().t() + torch.softmax(x, -1), backend='lamina')\n"
        "for _ in range(3): f(torch.randn(4, 4))\n"
        "assert len(lamina.records()) == 1\n"
    )
    env = {**os.environ, "LAMINA_REPORT": str(tmp_path / "out.json")}
    subprocess.run([*python(), str(program)], env=env, check=True, timeout=120)
    found = read_report(tmp_path / "out.json")
    assert found["texts"][0]["title"] == "program.py"
    assert found["kernels"][0]["runs"] == 2
    assert any(one["before"] for one in found["passes"] if one["region"] == "lambda0")
    assert not (tmp_path / "out-2.json").exists()


@pytest.mark.parametrize("name", ["no/file/out.html", "folder.html", "out.txt"])
@pytest.mark.parametrize("way", ["option", "environment", "command"])
def test_a_report_that_cannot_be_written_is_told_before_anything_runs(
    name: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "no").write_text("a file where a folder is wanted")
    (tmp_path / "folder.html").mkdir()
    path, function = str(tmp_path / name), lambda x: x + 1
    if way == "command":
        done = CliRunner().invoke(app, ["report", "--to", path, "nothing:here"])
        assert isinstance(done.exception, BadArgument)
        assert re.search(r"cannot be written|no report has the ending", str(done.exception))
        return
    if way == "environment":
        monkeypatch.setenv("LAMINA_REPORT", path)
    options = {"report": path} if way == "option" else {}
    with pytest.raises(BadArgument, match=r"cannot be written|no report has the ending"):
        lamina.compile(function, options=options)
    behind = torch.compile(function, backend="lamina", options=options)
    with pytest.raises(BadArgument, match=r"cannot be written|no report has the ending"):
        behind(torch.ones(3))


def test_the_command_runs_a_program_and_says_what_it_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, torch, lamina\n"
        "assert sys.argv[1:] == ['--steps', '2'] and __name__ == '__main__'\n"
        "lamina.compile(lambda x: x.exp() + 2)(torch.randn(4))\n"
    )
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr("lamina.report.recording._waiting", _Waiting())
    done = CliRunner().invoke(app, ["report", "--to", str(tmp_path / "r.json"), str(program), "--steps", "2"])
    assert done.exit_code == 0, done.output
    assert done.output.split() == [str(tmp_path / "r.json")]
    assert read_report(tmp_path / "r.json")["regions"]


def test_two_reports_are_compared(tmp_path: Path) -> None:
    def report(name: str, function: Any) -> str:
        torch.compiler.reset()
        compiled = lamina.compile(function)
        compiled(torch.randn(8, 8))
        return str(write_report(compiled.record, tmp_path / name, assembly=False))

    before = report("a.json", lambda x: x.sin() + 1)
    after = report("b.json", lambda x: x.cos() @ x)
    done = CliRunner().invoke(app, ["diff", before, after, "--json", "--to", str(tmp_path / "c.html")])
    found = json.loads(done.output)
    assert found["totals"]["library calls"] == [0, 1]
    assert len(found["kernels"]["gone"]) == len(found["kernels"]["new"]) == 1
    assert "captured:lambda0" in found["texts"]["changed"]
    text = (tmp_path / "c.html").read_text()
    assert data_of(text) == read_report(after)
    assert data_of(text, "other") == read_report(before)
    assert CliRunner().invoke(app, ["diff", before, before]).output.strip() == "no difference"


def test_the_built_page_is_that_of_its_sources(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None or not (WEB / "node_modules").is_dir():
        pytest.skip("no node, or its packages are not installed: `npm ci` in src/lamina/report/web")
    subprocess.run([node, "build.mjs", "--to", str(tmp_path)], cwd=WEB, check=True, timeout=120)
    for name in ("page.js", "page.css"):
        assert (tmp_path / name).read_text() == (WEB / "dist" / name).read_text(), "`npm run build` is due"


def test_a_report_of_nothing_is_a_page() -> None:
    assert data_of(page(document(lamina.Record("empty"))))["name"] == "empty"
