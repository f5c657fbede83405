"""Programs of a report run one region or kernel by itself, and say what it computes."""

from __future__ import annotations

import os
import re
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx import symbolic_trace

import lamina
from lamina.base.target import nvidia
from lamina.codegen.triton.emit import emit
from lamina.ir.plan import KernelCall
from lamina.ir.work import Sizes
from lamina.report.assembly import Assembler
from lamina.report.document import document
from lamina.report.reproducers import kernel_program, region_program
from lamina.schedule.plan import make_plan
from tests.processes import python
from tests.report.programs import trained


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return document(trained(), assembly=False)


def run(folder: Path, program: dict[str, str], text: str, **env: str) -> list[str]:
    file = folder / "program.py"
    file.write_text(program["before"] + text + program["after"])
    done = subprocess.run(
        [*python(), str(file)], env={**os.environ, **env}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def text_of(report: dict[str, Any], key: str) -> str:
    return str(next(text["text"] for text in report["texts"] if text["key"] == key))


def test_a_region_is_compiled_and_compared(report: dict[str, Any], tmp_path: Path) -> None:
    assert report["faults"] == []
    region = report["regions"][0]
    lines = run(tmp_path, region["program"], text_of(report, f"forward:{region['name']}"))
    assert len(lines) > 10
    for line in lines:
        most, apart = map(float, re.findall(r"up to (\S+), at most (\S+) apart", line)[0])
        assert apart <= 1e-4 * max(most, 1.0), line


@pytest.mark.skipif(bool(Assembler().why), reason="no C++ compiler")
def test_a_kernel_is_built_and_launched(report: dict[str, Any], tmp_path: Path) -> None:
    kernel = next(one for one in report["kernels"] if one["name"].startswith("gelu"))
    code, time, *written = run(tmp_path, kernel["program"], text_of(report, f"kernel:{kernel['name']}"))
    assert code == "code 0"
    assert re.fullmatch(r"\d+\.\d us", time)
    assert len(written) == 1
    assert " is written: [" in written[0]


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_a_kernel_for_gpus_runs_in_the_interpreter_where_there_is_none(tmp_path: Path) -> None:
    target = nvidia()
    plan = make_plan(next(stage.value for stage in trained().stages if stage.name == "fuse"), target)
    call = next(s for s in plan.steps if isinstance(s, KernelCall) and s.kernel.startswith("gelu"))
    source = emit(next(kernel for kernel in plan.kernels if kernel.name == call.kernel), target)
    program = kernel_program(source, call, plan.buffer_map(), Sizes(plan, None))
    assert program is not None
    (written,) = run(tmp_path, program, source.text.rstrip("\n"), TRITON_INTERPRET="1")
    assert " is written: [" in written


def test_a_region_that_draws_numbers_draws_them_again(tmp_path: Path) -> None:
    torch.compiler.reset()
    compiled = lamina.compile(lambda x: torch.nn.functional.dropout(x * 2, 0.5))
    compiled(torch.randn(8, 64))
    found = document(compiled.record, assembly=False)
    (region,) = found["regions"]
    lines = run(tmp_path, region["program"], text_of(found, f"{region['kind']}:{region['name']}"))
    assert lines
    assert all(line.endswith("at most 0 apart") for line in lines)
    compiled(torch.randn(8, 64, requires_grad=True)).sum().backward()
    found = document(compiled.record, assembly=False)
    backward = found["regions"][-1]
    assert "philox_uniform" in text_of(found, f"backward:{backward['name']}")
    assert backward["program"] is None


def test_attributes_and_graphs_within_are_made_too(tmp_path: Path) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos(), (x,))

    compiled = lamina.compile(function)
    compiled(torch.randn(8))
    found = document(compiled.record, assembly=False)
    assert found["faults"] == []
    made = [region for region in found["regions"] if region["program"]]
    assert made
    for region in made:
        run(tmp_path, region["program"], text_of(found, f"{region['kind']}:{region['name']}"))


def test_what_cannot_be_told_has_no_program() -> None:
    class Held(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x + 1

    gm = symbolic_trace(Held())
    next(iter(gm.graph.nodes)).meta["val"] = object()
    assert region_program(gm) is None
