"""lamina.bisect: planted faults are blamed on the stage, rule, fusion or kernel that has them."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import lamina
from benchmarks.blame import found, named
from benchmarks.planted import PLANTED, Planted
from lamina.blame.found import STAGES
from lamina.blame.memory import overlapping, unshared
from lamina.capture.own.torch_calls import target_of
from lamina.cli.app import app
from lamina.ir.index import as_expr
from lamina.ir.loops import Buffer
from lamina.ir.plan import KernelCall, Place, Plan

SAMPLE = ("n-th application", "shared means", "value saved", "joined nests", "memory", "kernel's code", "run time")


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("planted", [p for p in PLANTED if p.name in SAMPLE], ids=lambda p: p.name)
def test_a_planted_fault_is_named(planted: Planted) -> None:
    result = found(planted)
    assert not result
    assert named(planted, result), str(result)
    assert result.blame is not None
    assert result.blame.stage in STAGES
    assert result.to_json()["blame"]["stage"] == planted.stage
    assert result.seconds < 120


@pytest.mark.slow
@pytest.mark.parametrize("planted", [p for p in PLANTED if p.name not in SAMPLE], ids=lambda p: p.name)
def test_the_others_are_named_as_well(planted: Planted) -> None:
    result = found(planted)
    assert named(planted, result), str(result)


def test_faults_of_all_kinds_are_planted() -> None:
    assert {p.stage for p in PLANTED} >= set(STAGES) - {"capture", "library", "rewrite of loops"}
    assert sum(p.stage in ("captured rewrite", "joint rewrite", "late rewrite", "fusion") for p in PLANTED) >= 20


def test_a_right_program_is_not_blamed_and_is_left_as_it_was() -> None:
    layer = torch.nn.Linear(4, 3)
    before = {name: value.clone() for name, value in layer.state_dict().items()}

    def step(x: Tensor) -> Tensor:
        return layer(x).relu().square().sum()

    result = lamina.bisect(step, torch.randn(5, 4))
    assert result, str(result)
    assert str(result).endswith("nothing differs from eager")
    assert all(torch.equal(before[name], value) for name, value in layer.state_dict().items())
    assert layer.weight.grad is None


def test_a_fault_of_the_own_front_end_is_named_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    def swapped(function: Callable[..., object]) -> tuple[str, object]:
        return ("call_function", torch.cos) if function is torch.sin else target_of(function)

    monkeypatch.setattr("lamina.capture.own.recorder.target_of", swapped)
    result = lamina.bisect(lambda x: torch.sin(x) * 2, torch.randn(5), options={"capture": "own"})
    assert result.blame is not None
    assert result.blame.stage == "capture"


def test_memory_of_two_buffers_that_are_both_needed_is_told() -> None:
    def buffer(name: str) -> Buffer:
        return Buffer(name, "float32", (as_expr(8),), (as_expr(1),))

    def step(name: str, buffers: tuple[str, ...], writes: tuple[str, ...]) -> KernelCall:
        return KernelCall(name, name, buffers, (), writes, ())

    steps = (step("k0", ("a",), ("a",)), step("k1", ("b",), ("b",)), step("k2", ("a", "b", "c"), ("c",)))
    places = tuple(Place(name, "arena", as_expr(0)) for name in "abc")
    plan = Plan("p", (), tuple(map(buffer, "abc")), (), steps, (), places, as_expr(32))
    assert ("a", "b") in overlapping(plan)
    assert not overlapping(unshared(plan))
    assert unshared(plan).arena_bytes == as_expr(192)


SCRIPT = """
import sys
import torch
import lamina
from lamina.extend import rule

wrong = rule(lambda x: x * torch.sigmoid(x), lambda x: torch.nn.functional.silu(x) * {factor}, name="swish")
model = lamina.compile(torch.nn.Linear(4, 4))


@lamina.compile(options={{"rules": (wrong,)}})
def gated(x):
    return x * torch.sigmoid(x) + model(x)


print(gated(torch.ones(2, 4)).shape, sys.argv[1:])
"""


def test_a_script_is_bisected(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(factor=1.01))
    done = CliRunner().invoke(app, ["bisect", "--json", str(script)], catch_exceptions=False)
    assert done.exit_code == 1
    (entry,) = json.loads(done.stdout)
    assert entry["blame"]["stage"] == "captured rewrite"
    assert entry["blame"]["step"] == "swish"
    assert entry["blame"]["place"].startswith("train.py:13")
    assert lamina.compile is import_module("lamina.compile").compile


def test_a_right_script_runs_to_its_end_in_eager(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(factor=1.0))
    done = CliRunner().invoke(app, ["bisect", str(script), "three", "four"], catch_exceptions=False)
    assert done.exit_code == 0
    assert "torch.Size([2, 4]) ['three', 'four']" in done.stdout + capsys.readouterr().out
    assert "call 1 of gated: nothing differs from eager" in done.stdout


def test_what_cannot_be_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(lamina.BadArgument, match="there is no program"):
        CliRunner().invoke(app, ["bisect", str(tmp_path / "none.py")], catch_exceptions=False)
    with pytest.raises(lamina.BadArgument, match="takes arguments"):
        CliRunner().invoke(app, ["bisect", "torch:add"], catch_exceptions=False)
    with pytest.raises(lamina.BadArgument, match="no_such_module"):
        CliRunner().invoke(app, ["bisect", "no_such_module:f"], catch_exceptions=False)
