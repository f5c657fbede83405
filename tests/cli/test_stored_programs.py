"""The commands show how a program is compiled whose calls an earlier process has stored."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import python

PROGRAM = """
import torch, lamina

def wave(x):
    return (x.sin() * 2 + x.relu()).sum(-1)

compiled, x = lamina.compile(wave, options={"capture": "own"}), torch.randn(16, 16)
for _ in range(2):
    compiled(x)
print(compiled.stats())
"""


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    folder = tmp_path_factory.mktemp("stored")
    (folder / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "LAMINA_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": os.pathsep.join(sys.path)}
    said = [ran(folder, environment) for _ in range(2)]
    assert "1 graph" in said[0]
    assert "loaded" not in said[0]
    assert "1 stored call loaded" in said[1]
    return folder, environment


def ran(folder: Path, environment: dict[str, str], *words: str) -> str:
    line = [*python(), *(("-m", "lamina") if words else ()), *words, "program.py"]
    done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("command", ["explain", "kernels", "profile"])
def test_a_command_shows_kernels(stored: tuple[Path, dict[str, str]], command: str) -> None:
    found = json.loads(ran(*stored, command, "--json"))
    kernels = found[0]["kernels"] if command == "explain" else found["kernels"] if command == "profile" else found
    assert len(kernels) == 1


def test_why_finds_operations(stored: tuple[Path, dict[str, str]]) -> None:
    folder, environment = stored
    line = [*python(), "-m", "lamina", "why", "--json", "program.py", "sin", "relu"]
    said = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, timeout=200, check=True)
    assert json.loads(said.stdout)[0]["joined"]
