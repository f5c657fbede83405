"""Each program of docs/clients.md runs as its reader would run it: in a process of its own, with its library.

The libraries are in an environment beside the checkout's (``make clients``), so that they change no other test. Where
that was not made, what can be imported is tested and the others are skipped with the reason; where it was, all run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.source import ROOT

ENVIRONMENT = ROOT / ".venv/clients"
PAGE = (ROOT / "docs/clients.md").read_text(encoding="utf-8")
PROGRAMS = {
    section.partition("\n")[0]: "\n".join(re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE))
    for section in PAGE.split("\n## ")[1:]
}
# A torchvision built for CUDA has no operators beside a torch for CPUs and cannot be imported; timm needs none of them.
WITHOUT_OPERATORS = """
import torch
library = torch.library.Library("torchvision", "FRAGMENT")
for name in ("nms", "qnms") if torch.version.cuda is None else ():
    library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""
# What was compiled, whatever the program itself asserts of it: kernels of Lamina's own, and no region left to ATen.
COMPILED = """
from lamina.stats import stats_of
_all = [stats_of(record) for record in lamina.records()]
assert sum(one.kernels for one in _all) > 0 and not any(one.left_to_aten for one in _all), _all
print("compiled:", sum(one.graphs for one in _all), "graphs")
"""


# What a program needs without importing it: the Trainer of transformers.
NEEDS = {"transformers": "import accelerate\n"}


def interpreter() -> str:
    python = ENVIRONMENT / "bin/python"
    return str(python if python.exists() else sys.executable)


def run(program: str, folder: Path, more: Path | None = None) -> subprocess.CompletedProcess[str]:
    source = folder / "program.py"
    source.write_text(program, encoding="utf-8")
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", ""), str(more or "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [interpreter(), str(source)]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280, check=False
    )


def test_the_page_has_a_program_for_each_library() -> None:
    assert list(PROGRAMS) == ["transformers", "accelerate", "Lightning", "diffusers", "peft", "torchao", "timm"]
    assert all("lamina.compile(" in program and "assert" in program for program in PROGRAMS.values())


@pytest.mark.slow  # .ci/run runs them all the same
@pytest.mark.parametrize("library", PROGRAMS)
def test_the_program_of_the_page_runs(library: str, tmp_path: Path) -> None:
    imports = "\n".join(re.findall(r"^(?:import|from) (?!lamina).*$", PROGRAMS[library], re.MULTILINE))
    imports = NEEDS.get(library, "") + imports
    prelude, more = (WITHOUT_OPERATORS, ENVIRONMENT / "timm") if library == "timm" else ("", None)
    if not (ENVIRONMENT / "ready").exists() and (missing := run(prelude + imports, tmp_path, more)).returncode:
        pytest.skip(f"{library} cannot be imported: {missing.stderr.strip().splitlines()[-1]}")
    done = run(prelude + PROGRAMS[library] + COMPILED, tmp_path, more)
    assert done.returncode == 0, done.stderr[-6000:]
    assert re.search(r"^compiled: [1-9]", done.stdout, re.MULTILINE), done.stdout[-2000:]
