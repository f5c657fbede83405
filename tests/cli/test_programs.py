"""Programs that commands run: however they end, what was compiled in them is told, and output in JSON is alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lamina.cli.app import app
from lamina.errors import BadArgument
from tests.processes import python

PROGRAM = """
import os, sys
import torch, lamina

print("printed")
os.system("echo printed by a shell")


@lamina.compile
def f(x):
    return torch.softmax(x * 2, -1)


def fail():
    raise ValueError("the user's mistake")


f(torch.randn(4, 5))
if "--fail" in sys.argv:
    fail()
if "--exit" in sys.argv:
    sys.exit(3)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    (tmp_path / "bad.py").write_text("x = (\n", encoding="utf-8")
    (tmp_path / "functions.py").write_text("def takes(x):\n    return x\n", encoding="utf-8")
    return tmp_path


def lamina(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*python(), "-m", "lamina", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("command", ["explain", "profile", "bisect"])
def test_json_stands_alone_on_standard_output(folder: Path, command: str) -> None:
    done = lamina(folder, command, "--json", "program.py")
    assert done.returncode == 0, done.stderr
    json.loads(done.stdout)
    assert "printed\n" in done.stderr
    assert "printed by a shell" in done.stderr


def test_a_program_that_raises_loses_nothing_of_what_was_compiled(folder: Path) -> None:
    done = lamina(folder, "kernels", "program.py", "--fail")
    assert done.returncode == 1
    assert "softmax" in done.stdout
    lines = done.stderr[done.stderr.index("Traceback") :].splitlines()
    assert lines[1].startswith('  File "program.py", line ')
    assert lines[-1] == "ValueError: the user's mistake"
    assert not any("runpy" in line or "/lamina/" in line for line in lines)


def test_the_status_is_that_of_the_program(folder: Path) -> None:
    done = lamina(folder, "report", "--to", "r.json", "program.py", "--exit")
    assert done.returncode == 3
    assert "r.json" in done.stdout
    assert (folder / "r.json").is_file()


def test_options_behind_the_program_are_said_to_be_its_own(folder: Path) -> None:
    done = lamina(folder, "kernels", "program.py", "--json")
    assert "--json is given to program.py; for lamina kernels write it before program.py" in done.stderr


@pytest.mark.parametrize(
    ("command", "target", "what"),
    [
        ("explain", "missing.py", "there is no program"),
        ("profile", "missing.py", "there is no program"),
        ("explain", "--nope", "lamina explain has no option --nope"),
        ("bisect", "--nope", "lamina bisect has no option --nope"),
        ("report", ".", "is a folder"),
        ("minify", "bad.py", "is no Python"),
        ("guards", "nomodule:f", "No module named"),
        ("bisect", "functions:takes", "takes arguments"),
        ("kernels", "functions:nothing", "has no attribute"),
    ],
)
def test_what_cannot_be_run_is_told_in_one_way(
    folder: Path, command: str, target: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.delitem(sys.modules, "functions", raising=False)
    done = CliRunner().invoke(app, [command, target])
    assert isinstance(done.exception, BadArgument)
    assert what in done.exception.what
    assert done.exception.remedy


def test_a_report_that_cannot_be_written_is_told_before_the_program_runs(folder: Path) -> None:
    done = lamina(folder, "report", "--to", "program.py/r.html", "program.py")
    assert done.returncode == 2
    assert "cannot be written" in done.stderr
    assert "printed" not in done.stdout


def test_files_that_cannot_be_written_are_told_before_anything_runs(folder: Path) -> None:
    data = folder / "data.json"
    data.write_text("{}")
    for words in (
        ("report", "--to", str(folder), "program.py"),
        ("minify", "--to", str(folder), "program.py"),
        ("minify", "--to", str(data / "below.py"), "program.py"),
        ("bisect", "--to", str(data), "program.py"),
        ("fuzz", "--to", str(data), "--programs", "1"),
    ):
        done = CliRunner().invoke(app, list(words))
        assert isinstance(done.exception, BadArgument), (words, done.output)
        assert done.exception.remedy
        assert "printed" not in done.stdout


def test_a_page_of_two_reports_that_cannot_be_written(folder: Path) -> None:
    first, second = (str(folder / name) for name in ("one.json", "one.json"))
    for name in {first, second}:
        assert lamina(folder, "report", "--to", name, "program.py").returncode == 0
    done = CliRunner().invoke(app, ["diff", first, second, "--to", str(folder)])
    assert isinstance(done.exception, BadArgument)
    assert "cannot be written" in done.exception.what


@pytest.mark.parametrize("command", ["profile", "report", "bisect", "recompiles"])
def test_a_program_that_compiles_nothing(folder: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "empty.py").write_text("print('nothing')\n")
    done = CliRunner().invoke(app, [command, "empty.py"])
    assert done.exit_code == 1
    assert "nothing was compiled in empty.py\n  do: " in done.stderr
