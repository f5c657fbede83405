from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import lamina
from lamina.cli.app import app
from lamina.errors import BadArgument
from lamina.programs import named_object
from tests.tuner.models import small


def test_the_command_tunes_and_saves_what_load_takes(tmp_path: Path) -> None:
    saved = tmp_path / "tuned.json"
    line = ["tune", "tests.tuner.models:small", "--inputs", "tests.tuner.models:batch", "--budget", "1s"]
    done = CliRunner().invoke(app, [*line, "--journal", str(tmp_path / "j"), "--save", str(saved), "--json"])
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["rows"]
    assert rows[0]["verdict"] == "baseline"
    assert [row["verdict"] for row in rows if row["verdict"] != "unavailable"][-1] == "not tried"
    assert lamina.load(saved, small()).rows[0].verdict == "baseline"


def test_a_name_that_is_not_there_is_said() -> None:
    for name in ("tests.tuner.models", "tests.tuner.models:nothing", "tests.nothing:small"):
        with pytest.raises(BadArgument, match=r"write package\.module:name"):
            named_object(name)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--save", "Is a directory"),
        ("--report", "end in .html"),
        ("--save", "is no folder"),
        ("--journal", "is no folder"),
    ],
)
def test_a_file_that_cannot_be_written_is_said_before_anything_runs(tmp_path: Path, option: str, said: str) -> None:
    (tmp_path / "file.txt").touch()
    name = {
        "Is a directory": tmp_path,
        "end in .html": tmp_path / "file.txt",
        "is no folder": tmp_path / "file.txt" / "x",
    }
    line = ["tune", "tests.tuner.nowhere:small", "--inputs", "tests.tuner.models:batch", option, str(name[said])]
    done = CliRunner().invoke(app, line)
    assert done.exit_code != 0
    assert isinstance(done.exception, BadArgument)
    assert said in str(done.exception)
