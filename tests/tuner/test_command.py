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
    assert rows[-1]["verdict"] == "not tried"
    assert lamina.load(saved, small()).rows[0].verdict == "baseline"


def test_a_name_that_is_not_there_is_said() -> None:
    for name in ("tests.tuner.models", "tests.tuner.models:nothing", "tests.nothing:small"):
        with pytest.raises(BadArgument, match=r"write package\.module:name"):
            named_object(name)
