"""The kernels that put masked rows of attention right do what they are specified to do, and compile for a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lamina.masked_rows.kernels import kernels_of
from lamina.masked_rows.operations import IN_PLACE
from lamina.runtime.triton_worker import compile_request
from tests.masked_rows.interpreted import CASES, FILLS


@pytest.fixture(scope="module")
def said() -> dict[tuple[str, str], str]:
    """What the interpreter's process says of each case and fill."""
    env = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-m", "tests.masked_rows.interpreted"]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    lines = (line.split("; ", 2) for line in ended.stdout.splitlines())
    return {(case, fill): what for case, fill, what in lines}


@pytest.mark.sampled(one_in=7)
@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("case", CASES)
def test_kernels_do_what_is_specified(case: str, fill: str, said: dict[tuple[str, str], str]) -> None:
    masked, launched = said[case, fill].split()
    assert (int(masked) > 0) == (fill != "none")
    assert int(launched) == 3


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("features", [8, 64, 128, 256])
@pytest.mark.parametrize("op", [form for form, _ in IN_PLACE.values()])
def test_they_compile(op: str, features: int, tmp_path: Path) -> None:
    (unit,) = kernels_of(op, torch.bfloat16, features)
    about = compile_request(unit.request(90, tmp_path))
    ptx = (tmp_path / "kernel.ptx").read_text()
    assert about["shared"] <= 100 << 10
    assert "mma" in ptx
    assert "ld.global.v4" in ptx or "v4.b32" in ptx  # 16 bytes at a time
