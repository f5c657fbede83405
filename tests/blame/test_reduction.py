"""A call that differs is reduced to a short file that still differs in the same way."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import lamina
from benchmarks.planted import PLANTED
from lamina.blame.reduction import minify_call
from lamina.blame.scripts import Call
from lamina.cli.app import app

WRONG_EXP = next(p for p in PLANTED if p.name == "joined views")


def several(x: Tensor, w: Tensor, n: int) -> tuple[Tensor, Tensor]:
    y = torch.sin(x @ w) * n
    y[:, 0] = 1.0
    z = (y.exp() + 1).sum(-1)
    return z.cos(), y.tanh().mean(0)


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMINA_CACHE_DIR", str(tmp_path / "cache"))
    torch.compiler.reset()


def test_a_wrong_call_becomes_a_short_file_that_is_wrong_alike(tmp_path: Path) -> None:
    args = (torch.randn(8, 6, requires_grad=True), torch.randn(6, 6), 2)
    with WRONG_EXP.plant():
        made = minify_call(Call(several, args, {}, {}, 1))
        assert made.lines <= 30
        assert made.operations == 1, made.source
        assert ".exp()" in made.source
        assert made.different[0].startswith("rounding: output")
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(made.source, str(tmp_path / "small.py"), "exec"), {"__name__": "__main__"})
    assert "joint rewrite 'join_views'" in out.getvalue()


def test_a_right_call_is_refused() -> None:
    with pytest.raises(lamina.BadArgument, match="gives what it gives in eager"):
        minify_call(Call(torch.relu, (torch.randn(3),), {}, {}, 1))


def test_a_script_is_minified(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, lamina\n"
        "f = lamina.compile(lambda x: (x.sin() * 2).exp() - x)\n"
        "def main():\n"
        "    f(torch.ones(4, 3))\n"
        "main()\n"
    )
    small = tmp_path / "small.py"
    with WRONG_EXP.plant():
        done = CliRunner().invoke(app, ["minify", str(script), "--to", str(small)], catch_exceptions=False)
    assert done.exit_code == 0
    assert small.read_text().count("exp()") == 1
    assert "sin" not in small.read_text()
    with pytest.raises(lamina.BadArgument, match=r"nothing that .*train.py calls differs"):
        CliRunner().invoke(app, ["minify", str(script)], catch_exceptions=False)


@pytest.mark.parametrize("capture", ["dynamo", "own"])
def test_inputs_that_are_read_late_are_no_hindrance(tmp_path: Path, capture: str) -> None:
    script, small = tmp_path / "train.py", tmp_path / "small.py"
    script.write_text(
        "import torch, lamina\n"
        f"f = lamina.compile(lambda x, y, z: (x.sin() * y + z).exp() - x, options={{'capture': {capture!r}}})\n"
        "f(torch.ones(4, 3), torch.ones(3), torch.ones(4, 1))\n"
    )
    with WRONG_EXP.plant():
        done = CliRunner().invoke(app, ["minify", str(script), "--to", str(small)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "exp()" in small.read_text()
    assert "sin" not in small.read_text()
