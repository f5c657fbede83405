"""Torch's messages of many lines: none beside what Lamina says of the same, all where somebody asks for them.

Each in a process of its own: what torch says of an operation depends on what was traced in the process before.
"""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.processes import python

PROGRAM = """
import torch
import lamina

def product(x, w):
    return x.sin() @ w

for make in ({makers}):
    torch.compiler.reset()
    try:
        make(product)(torch.randn(3, 4), torch.randn(5, 6))
    except Exception as error:
        assert "cannot be multiplied" in str(error) or "reduction dim" in str(error), error
    else:
        raise AssertionError("nothing was raised")
"""
OURS = 'lamina.compile, lambda f: torch.compile(f, backend="lamina")'
EAGER = 'lambda f: lamina.compile(f) and torch.compile(f, backend="eager"),'


@pytest.mark.parametrize(
    ("makers", "logs", "told"),
    [(OURS, "", False), (OURS, "dynamo", True), (EAGER, "", True)],
    ids=["Lamina's", "asked for", "another backend's"],
)
def test_a_call_that_eager_refuses(makers: str, logs: str, told: bool) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TORCH_LOGS"}
    done = subprocess.run(
        [*python(), "-c", PROGRAM.format(makers=makers)],
        env={**environment, **({"TORCH_LOGS": logs} if logs else {})},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert ("failed while attempting to run meta" in done.stderr) == told, done.stderr[-2000:]
