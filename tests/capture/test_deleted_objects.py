"""Objects that graphs are guarded by and that are deleted, or are there until Python exits."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import torch

import lamina

_PROGRAM = """
import torch, torch.nn.functional as F, lamina
def function(x): return F.gelu(x)
compiled = lamina.compile(function)
assert compiled(torch.ones(5, 8)).shape == (5, 8)
print("done")
"""


def test_python_exits_after_a_graph_with_a_builtin_function(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    done = subprocess.run([sys.executable, "-W", "ignore", str(program)], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr[-2000:]


def test_a_function_that_is_deleted_ends_the_graphs_of_it() -> None:
    def call(x: torch.Tensor, f: object) -> torch.Tensor:
        return f(x) if f is not None else x  # type: ignore[operator]

    compiled = lamina.compile(call)
    x = torch.ones(3)
    for k in range(3):
        scope: dict[str, object] = {}
        exec(f"def f(x): return x * {k}", scope)
        assert compiled(x, scope["f"]).equal(x * k)
        del scope
        gc.collect()
    assert compiled(x, None) is x
