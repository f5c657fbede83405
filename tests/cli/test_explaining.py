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


def test_guards_and_recompiles(program: Path) -> None:
    rows = asked("guards", "--json", str(program))
    assert any("check_tensor" in guard for row in rows for guard in row["guards"])
    torch.compiler.reset()
    found = asked("recompiles", "--json", str(program))
    assert {row["code"] for row in found} >= {"LM1101"}
    torch.compiler.reset()
    assert "do: compile with dynamic=True" in asked("recompiles", str(program))


def test_why(program: Path) -> None:
    rows = asked("why", "--json", str(program), "softmax", "mm")
    assert rows
    assert all(row["code"].startswith("LM") and not row["joined"] for row in rows)
    torch.compiler.reset()
    done = CliRunner().invoke(app, ["why", str(program), "softmax", "convolution"])
    assert done.exit_code == 1
    assert "there is no kernel, call or line of 'convolution'" in done.output


def test_what_cannot_be_run(tmp_path: Path) -> None:
    empty = tmp_path / "empty.py"
    empty.write_text("")
    assert CliRunner().invoke(app, ["explain", str(empty)]).exit_code == 1
    done = CliRunner().invoke(app, ["explain", str(tmp_path / "none.py")])
    assert "there is no program" in str(done.exception)


@pytest.mark.parametrize("command", ["explain", "kernels", "guards", "recompiles", "why"])
def test_help_has_an_example_and_json(command: str) -> None:
    text = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "120"}).output
    assert f"Example: lamina {command} " in text
    assert "--json" in text
