"""Tuning imports no backend that is not tried, neither in the user's process nor in those of candidates."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from lamina.tuner.building import build
from lamina.tuner.values import Candidate
from tests.processes import python
from tests.tuner.models import batch

ROOT = Path(__file__).parents[2]
BACKENDS = ("openvino", "onnxruntime", "torchao", "torch_tensorrt", "ray", "torch._inductor.compile_fx")
"""With what makes kernels of torch.compile; Lamina itself takes parts of the rest of torch's compiler."""

PROGRAM = """
import json, sys
import torch
import lamina
from lamina.tuner.values import Candidate
from tests.tuner.models import batch, small
from tests.tuner.test_imports import there

if __name__ == "__main__":
    kind = sys.argv[1]
    spy = Candidate("spy", "import", {"target": f"tests.tuner.test_imports:of_{kind.replace('.', '_')}"})
    others = () if kind == "eager" else (Candidate(kind, kind),)
    result = lamina.tune(small(), batch(), candidates=(spy, *others), modules=False, journal=False, seconds=0.1)
    print(json.dumps([[row.verdict for row in result.rows], there(), result.rows[1].reason.partition(": ")[2]]))
"""


def there() -> list[str]:
    """The backends that this process has imported."""
    return [name for name in BACKENDS if name in sys.modules]


def spy(model: Callable[..., Any], kind: str) -> Callable[..., Any]:
    """A candidate whose row says what its process has imported once one of another kind is built there and called."""
    built = build(Candidate(kind, kind), model)
    with torch.no_grad():
        built.call(batch())
    raise ValueError(json.dumps(there()))


of_eager, of_lamina, of_torch_compile = (partial(spy, kind=kind) for kind in ("eager", "lamina", "torch.compile"))


@pytest.mark.parametrize(("kind", "expected"), [("eager", []), ("lamina", []), ("torch.compile", [BACKENDS[-1]])])
def test_no_backend_is_imported_that_is_not_tried(kind: str, expected: list[str], tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    line = [*python(), str(script), kind]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    verdicts, ours, theirs = json.loads(done.stdout.splitlines()[-1])
    assert verdicts[:2] == ["baseline", "failed"]
    assert set(ours) <= set(expected)
    assert theirs.endswith(json.dumps(expected))
