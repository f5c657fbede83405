"""The commands that run a program and ask its records; one process, as each of its own costs seconds."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from lamina.cli.app import app
from lamina.errors import BadArgument

PROGRAM = """
import torch
import lamina


@lamina.compile
def function(x):
    y = (x @ x.T).softmax(-1)
    torch._dynamo.graph_break()
    return (y * 2).cumsum(0) @ y


def main():
    function(torch.randn(4, 8))
    return function(torch.randn(6, 8))


if __name__ == "__main__":
    main()
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    torch.compiler.reset()
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "explained_program.py"
    path.write_text(PROGRAM)
    return path


def asked(*words: str) -> Any:
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout) if "--json" in words else done.stdout


def test_explain(program: Path) -> None:
    lines = asked("explain", str(program)).splitlines()
    assert lines[0].startswith("function: ")
    assert f"{program.name}:9" in lines[4]
    assert len(lines) <= 41


def test_explain_of_a_function(program: Path) -> None:
    sys.path.insert(0, str(program.parent))
    [found] = asked("explain", "--json", "explained_program:main")
    assert found["stats"]["breaks"] == 1
    del sys.modules["explained_program"]


def test_kernels(program: Path) -> None:
    rows = asked("kernels", "--json", str(program))
    assert any(f"{program.name}:8 softmax" in place or "_softmax" in place for row in rows for place in row["places"])
    assert {row["kind"] for row in rows} == {"kernel", "library call"}
    assert "library call aten.mm" in asked("kernels", str(program))


@pytest.mark.filterwarnings("ignore:lamina compiled nothing")
def test_a_program_without_kernels_is_told_so(program: Path) -> None:
    program.write_text("import lamina, torch\nlamina.compile(lambda x: x)(torch.ones(3))\n")
    assert "lamina explain says why" in asked("kernels", str(program))
    assert asked("kernels", "--json", str(program)) == []


@pytest.mark.by_dynamo("asks for the text of Dynamo's guards")
def test_guards_and_recompiles(program: Path) -> None:
    rows = asked("guards", "--json", str(program))
    assert any("check_tensor" in guard for row in rows for guard in row["raw"])
    whats = [guard["what"] for row in rows for guard in row["guards"]]
    assert any(what.startswith("x is a Tensor of float32 on cpu, sizes [") for what in whats), whats
    assert not any(mark in what for what in whats for mark in ("check_tensor", "___", "L["))
    torch.compiler.reset()
    found = asked("recompiles", "--json", str(program))
    assert {row["code"] for row in found} >= {"LM1101"}
    torch.compiler.reset()
    assert "do: compile with dynamic=True" in asked("recompiles", str(program))


OWN = """
import torch, lamina

scale = 2.0


def own(x, n=1, *, more=None):
    x = x * scale + n
    return x.relu() if more is None else x + more["a"]


compiled = lamina.compile(own, options={"capture": "own"})
for size in (3, 4):
    compiled(torch.ones(size, 2))
compiled(torch.ones(3, 2, dtype=torch.double))
compiled(torch.ones(3, 2), more={"a": 1.5})
"""


def test_guards_and_recompiles_of_the_own_front_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMINA_CACHE_DIR", str(tmp_path / "one"))
    path = tmp_path / "own_program.py"
    path.write_text(OWN)
    rows = asked("guards", "--json", str(path))
    assert len(rows) == 4
    assert {row["function"] for row in rows} == {f"own ({path}:7)"}
    assert all(row["raw"] for row in rows)
    whats = [[guard["what"] for guard in row["guards"]] for row in rows]
    assert "x is a tensor of float32 on cpu, sizes [3, 2], strides [2, 1], offset 0, without gradient" in whats[0]
    assert all("scale is 2.0" in row for row in whats)
    assert "more['a'] is 1.5" in whats[3]
    [where] = {guard["line"] for guard in rows[0]["guards"] if guard["what"] == "scale is 2.0"}
    assert where == f"{path}:8"
    text = asked("guards", str(path))
    assert "and " in text
    assert "about classes and functions" in text
    assert "__code__" not in text
    assert "__code__" in asked("guards", "--all", str(path))
    monkeypatch.setenv("LAMINA_CACHE_DIR", str(tmp_path / "another"))  # the calls are stored in the first one
    found = {row["code"]: row for row in asked("recompiles", "--json", str(path))}
    assert found["LM1133"]["reason"] == "size 0 of x was 3 and is 4"
    assert found["LM1103"]["reason"] == "dtype of x was float32 and is float64"
    assert found["LM1131"]["reason"] == (
        "the call gives 1 argument by position and more by name, the one before 1 argument by position"
    )
    facts = dict(found["LM1133"]["facts"])
    assert (facts["old"], facts["new"], facts["called at"]) == ("3", "4", f"{path}:14")
    assert all(row["remedy"] for row in found.values())


def test_why(program: Path) -> None:
    rows = asked("why", "--json", str(program), "softmax", "mm")
    assert rows
    assert all(row["code"].startswith("LM") and not row["joined"] for row in rows)
    torch.compiler.reset()
    rows = asked("why", "--json", str(program), "softmax", "MatMul")  # the program's word for mm
    assert any("mm" in row["first"] + row["second"] for row in rows)
    torch.compiler.reset()
    done = CliRunner().invoke(app, ["why", str(program), "softmax", "convolution"])
    assert isinstance(done.exception, BadArgument)
    assert "there is no kernel, call or line of 'convolution'" in str(done.exception)
    assert "lamina kernels" in str(done.exception)


def test_what_cannot_be_run(tmp_path: Path) -> None:
    empty = tmp_path / "empty.py"
    empty.write_text("")
    done = CliRunner().invoke(app, ["explain", "--json", str(empty)])
    assert (done.exit_code, done.stdout) == (1, "[]\n")
    assert f"nothing was compiled in {empty}\n  do: " in done.stderr
    done = CliRunner().invoke(app, ["explain", str(tmp_path / "none.py")])
    assert "there is no program" in str(done.exception)


@pytest.mark.parametrize("command", ["explain", "kernels", "guards", "recompiles", "why"])
def test_help_has_an_example_and_json(command: str) -> None:
    text = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "120"}).output
    assert f"Example: lamina {command} " in text
    assert "--json" in text
