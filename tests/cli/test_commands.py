from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn
from typer.main import get_command
from typer.testing import CliRunner

from lamina.cli import doctor as doctor_module
from lamina.cli.app import app, main, run_demo
from lamina.cli.demo_models import DEMOS
from lamina.cli.progress import announced
from tests.processes import python

SUBJECTS = ["lamina", "python", "torch", "triton", "compiler", "instructions", "openmp", "gpu", "cache", "verdict"]


def doctor(**environment: str) -> tuple[int, list[str]]:
    done = CliRunner().invoke(app, ["doctor"], env=environment, catch_exceptions=False)
    return done.exit_code, done.stdout.splitlines()


def test_doctor_says_ten_things(tmp_path: Path) -> None:
    status, lines = doctor(LAMINA_CACHE_DIR=str(tmp_path))
    assert [line.split()[1] for line in lines] == SUBJECTS
    assert torch.__version__ in lines[2]
    assert str(tmp_path) in lines[8]
    assert status == 0


def test_doctor_prints_json(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["doctor", "--json"], env={"LAMINA_CACHE_DIR": str(tmp_path)})
    assert [finding["subject"] for finding in json.loads(done.output)] == SUBJECTS


def test_every_command_has_an_example_or_commands_of_its_own() -> None:
    def told(command: Any, name: str) -> list[str]:
        own = getattr(command, "commands", None)
        if own:
            return [text for inner, one in own.items() for text in told(one, inner)]
        return [] if "Example: lamina" in (command.help or "") else [name]

    assert told(get_command(app), "lamina") == []


def test_doctor_says_what_to_do_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    status, lines = doctor()
    assert lines[4].startswith("note compiler")
    assert "-> install g++" in lines[4]
    assert "compiler" in lines[9]
    assert status == 0
    assert "no-such-compiler" in doctor(LAMINA_CXX="no-such-compiler")[1][4]


def test_doctor_quotes_one_line_of_what_is_no_compiler(tmp_path: Path) -> None:
    wordy = tmp_path / "wordy"
    wordy.write_text("#!/bin/sh\necho wordy 1.0\necho License: none\nexit 1\n")
    wordy.chmod(0o755)
    line = doctor(LAMINA_CXX=str(wordy))[1][4]
    assert f"{wordy} --version failed: wordy 1.0 -> install g++" in line
    assert "License" not in line


def test_doctor_counts_the_files_that_stay_while_it_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kernels.so").write_bytes(bytes(1 << 20))
    found = [(str(tmp_path), [], ["removed meanwhile", "kernels.so"])]
    monkeypatch.setattr(os, "walk", lambda folder: found if folder == tmp_path else [])
    line = doctor(LAMINA_CACHE_DIR=str(tmp_path))[1][8]
    assert "1 file, 1.0 MiB" in line


def test_doctor_misses_triton_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(doctor_module, "version", missing)
    assert doctor_module._triton().state == "good"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    found = doctor_module._triton()
    assert found.state == "fair"
    assert "pip install" in found.remedy


def test_doctor_measures_the_cache(tmp_path: Path) -> None:
    (tmp_path / "entry").mkdir()
    (tmp_path / "entry" / "kernel.so").write_bytes(bytes(3 << 20))
    assert "1 file, 3.0 MiB, writable" in doctor(LAMINA_CACHE_DIR=str(tmp_path))[1][8]
    assert "not made yet" in doctor(LAMINA_CACHE_DIR=str(tmp_path / "later"))[1][8]
    assert "switched off" in doctor(LAMINA_CACHE="0")[1][8]
    (tmp_path / "file").write_text("")
    for folder, where in ((tmp_path / "file", "in it"), (tmp_path / "file" / "below", "below it")):
        said = doctor(LAMINA_CACHE_DIR=str(folder))[1][8]
        assert f"{tmp_path / 'file'} is a file, so kernels cannot be kept {where} -> name a folder" in said
    assert "not made yet, read-only" in doctor(LAMINA_CACHE_DIR="/proc/nothing")[1][8]


def test_doctor_refuses_instructions_the_machine_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lamina.cli.doctor.host_isa", lambda: "plain")
    status, lines = doctor(LAMINA_SIMD="avx512")
    assert lines[5].startswith("bad")
    assert status == 1


def test_version_and_unknown_model() -> None:
    assert re.fullmatch(r"lamina (\d+\.\d+\.\d+|unknown.*)\n", CliRunner().invoke(app, ["--version"]).stdout)
    done = CliRunner().invoke(app, ["demo", "--only", "alexnet"])
    assert done.exit_code == 2
    assert "attention" in done.output


def test_the_help_of_the_demo_names_its_models() -> None:
    words = re.sub(r"[\s│]+", " ", CliRunner().invoke(app, ["demo", "--help"], env={"COLUMNS": "100"}).output)
    assert f"({', '.join(demo.name for demo in DEMOS)})" in words


@pytest.mark.parametrize("command", ["demo", "doctor"])
def test_a_wrong_environment_ends_a_command_at_once(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMINA_NUMERICS", "sloppy")
    monkeypatch.setattr(sys, "argv", ["lamina", command])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run([*python(), "-m", "lamina", "--version"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"lamina (\d+\.\d+\.\d+|unknown.*)\n", done.stdout)


@pytest.mark.parametrize(
    "device", ["tpu", pytest.param("cuda", marks=pytest.mark.skipif(torch.cuda.is_available(), reason="is there"))]
)
def test_the_demo_refuses_devices_that_are_not_there(device: str) -> None:
    done = CliRunner().invoke(app, ["demo", "--device", device])
    assert done.exit_code == 2
    assert device in done.output


def test_the_demo_command_compiles_checks_and_exits_with_zero() -> None:
    done = CliRunner().invoke(app, ["demo", "--only", "attention", "--no-torch-compile", "--seconds", "0.05"])
    assert done.exit_code == 0, done.output
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith(" attention by hand")]
    assert [line[3] for line in lines] == ["inference", "training"]
    for line in lines:
        graphs, kernels, library_calls = map(int, line[4:7])
        assert graphs == 1
        assert kernels >= 1
        assert library_calls >= 6  # four projections and the two products of attention
        assert line[-1] == "ok"


def test_a_package_that_is_not_installed_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("lamina.cli.doctor.version", nothing)
    assert CliRunner().invoke(app, ["--version"]).stdout == "lamina unknown (not installed)\n"
    _, lines = doctor()
    assert "unknown" in lines[0]
    assert len(lines) == len(SUBJECTS)


def wrong(model: nn.Module) -> nn.Module:
    class Wrong(nn.Module):
        def forward(self, *args: torch.Tensor) -> torch.Tensor:
            return model(*args) * 1.001

    return Wrong()


def broken(model: nn.Module) -> nn.Module:
    raise NotImplementedError("no kernels today")


def test_the_demo_succeeds_with_a_right_compiler(capsys: pytest.CaptureFixture[str]) -> None:
    status = run_demo(["attention"], lambda model: model, lambda model: model, seconds=0.01)
    out = capsys.readouterr().out
    assert status == 0
    assert out.count("attention by hand") == 2
    assert out.count(" ok") >= 2
    assert "…" not in out


@pytest.mark.parametrize(("compiler", "complaint"), [(wrong, "output 0: error"), (broken, "no kernels today")])
def test_the_demo_fails_with_a_wrong_compiler(
    compiler: object, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status = run_demo(["attention"], compiler, None, seconds=0.01)  # type: ignore[arg-type]
    out = capsys.readouterr().out
    assert status == 1
    assert out.count("failed") == 2
    assert complaint in out


@pytest.mark.parametrize("demo", DEMOS, ids=lambda demo: demo.name)
def test_the_models_run_and_differentiate(demo: object) -> None:
    example = demo.make()  # type: ignore[attr-defined]
    out = example.model(*example.training)
    out.backward(torch.ones_like(out))
    assert all(p.grad is not None for p in example.model.parameters())
    assert example.model.eval()(*example.inference).isfinite().all()


def test_slow_work_announces_itself(capsys: pytest.CaptureFixture[str]) -> None:
    out = ""
    with announced(Console(), "thinking", patience=0.0, every=1000.0):
        while not out:  # the test's own time limit ends it where nothing is ever said
            out = capsys.readouterr().out
    assert re.match(r"thinking: \d+ s so far", out)
    with announced(Console(), "thinking", patience=5.0):
        pass
    assert not capsys.readouterr().out


def test_a_mistake_is_printed_as_it_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["lamina", "explain", "[red]nowhere:x"])
    with pytest.raises(SystemExit):
        main()
    assert "[red]nowhere:x: No module named" in capsys.readouterr().err
