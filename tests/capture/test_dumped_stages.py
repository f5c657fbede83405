"""Dumped stages are files that read back to equal values, compile and run."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lamina
from lamina.aot.partition import Partition
from lamina.base.files import files, graph_text, read_graph, text_of
from lamina.capture.dynamo import Captured
from lamina.capture.events.torch_private import Guards
from lamina.codegen.host import HostProgram
from lamina.ir.loops import LoopProgram
from lamina.ir.loops_print import read_program
from lamina.ir.plan import Plan
from lamina.ir.plan_print import read_plan
from lamina.record import Record, Stage
from lamina.runtime.build import BuildResult
from lamina.runtime.kernel_files import read_kernels
from lamina.runtime.toolchain import find_compiler
from lamina.schedule.fuse import Fused
from tests.processes import python


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(16, 16), nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.norm(self.linear(x))).softmax(-1) * float("inf")


@pytest.fixture(scope="module")
def dumped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Record, Path]:
    """A training step's stages, and the folder that they were written to when each graph was compiled."""
    torch.compiler.reset()
    folder = tmp_path_factory.mktemp("stages")
    compiled = lamina.compile(Model(), options={"dump_dir": str(folder), "compare_eager": "off"})
    for size in (4, 6):
        compiled(torch.randn(size, 16)).sum().backward()
    return compiled.record, folder


def one(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


@pytest.mark.by_dynamo("asks for Dynamo's stages")
def test_every_region_has_a_folder_with_its_stages_and_decisions(dumped: tuple[Record, Path]) -> None:
    _, folder = dumped
    regions = sorted(p.name.partition("_")[2] for p in folder.iterdir())
    assert [r for r in regions if "Model0" in r] == ["Model0", "Model0_backward", "Model0_forward"]
    for stage in ("joint.py", "partition_forward.py", "partition_backward.py"):
        assert "def forward(self" in one(folder, f"*_Model0/*_{stage}").read_text()
    for region in ("forward", "backward"):
        there = one(folder, f"*_Model0_{region}")
        kinds = [re.sub(r"^\d+_", "", p.name) for p in sorted(there.iterdir()) if p.name != "decisions.txt"]
        assert kinds[:6] == ["graph.py", "lower.py", "fuse.py", "plan.py", "host.py", "codegen"]
        assert re.search(r"^fuse: ", (there / "decisions.txt").read_text(), re.MULTILINE)
    assert "# File: " in one(folder, "*_capture/00_capture.py").read_text()  # the user's lines


@pytest.mark.by_dynamo("asks for Dynamo's stages")
def test_every_stage_reads_back_to_an_equal_value(dumped: tuple[Record, Path]) -> None:
    record, folder = dumped
    regions: dict[str, list[Stage]] = {}
    for stage in record.stages:
        regions.setdefault(stage.region or "capture", []).append(stage)
    read: Counter[str] = Counter()
    for place, (region, stages) in enumerate(regions.items()):
        for number, stage in enumerate(s for s in stages if s.value is not None):
            start = folder / f"{place:03d}_{region}" / f"{number:02d}_{stage.name}"
            if not isinstance(stage.value, REPORTS):
                reads_back(stage.value, start)
                read[stage.name] += 1
    names = {"capture", "joint", "partition", "graph", "lower", "fuse", "plan", "host", "codegen"}
    assert names == set(read)
    assert all(count >= 2 for count in read.values())  # of the forward and of the backward, or of two graphs


REPORTS = (BuildResult, Guards)
"""Values that hold machine code, or say what happened: no text gives them back."""


def reads_back(value: object, start: Path) -> None:
    """Hold a value against what is read of the files that begin with ``start``, and against what printing it gives."""
    if isinstance(value, Partition):
        for half, gm in (("forward", value.forward), ("backward", value.backward)):
            reads_back(gm, start.with_name(f"{start.name}_{half}"))
        return
    if isinstance(value, list):
        assert read_kernels(start) == sorted(value, key=lambda unit: unit.name)
        return
    text = start.with_name(f"{start.name}.py").read_text()
    if isinstance(value, LoopProgram):
        assert read_program(text) == read_program(str(value)) == value
    elif isinstance(value, Fused):
        assert read_program(text) == read_program(str(value)) == value.program
    elif isinstance(value, Plan):
        assert read_plan(text) == read_plan(str(value)) == value
    elif isinstance(value, HostProgram):
        assert str(value) == value.text
        assert value.text in text  # between kernels and inputs to run it with
    else:
        gm = value.gm if isinstance(value, Captured) else value
        assert isinstance(gm, torch.fx.GraphModule), f"nothing reads a {type(value).__name__}"
        assert read_graph(text).python_code("self").src == _plainly(gm)


def _plainly(gm: torch.fx.GraphModule) -> str:
    """The graph's code as that of a graph traced anew from its text: without types."""
    return read_graph(graph_text(gm)).python_code("self").src


def test_a_graph_that_is_read_computes_the_same(dumped: tuple[Record, Path]) -> None:
    record, folder = dumped
    (gm,) = [s.value for s in record.stages if (s.region, s.name) == ("Model0_forward", "graph")]
    assert isinstance(gm, torch.fx.GraphModule)
    inputs = [torch.randn(tuple(n.meta["val"].shape)) for n in gm.graph.find_nodes(op="placeholder")]
    read = runpy.run_path(str(one(folder, "*_Model0_forward/*_graph.py")))["GraphModule"]()
    for ours, theirs in zip(read(*inputs), gm(*inputs), strict=True):
        torch.testing.assert_close(ours, theirs, equal_nan=True)


def test_kernels_compile_and_the_host_program_runs_alone(dumped: tuple[Record, Path]) -> None:
    _, folder = dumped
    host = one(folder, "*_Model0_forward/*_host.py")
    ran = subprocess.run([*python(), str(host)], capture_output=True, text=True, check=True)
    times = ran.stdout[ran.stdout.index("kernel  ") :].splitlines()
    assert re.search(r"of a copy's [\d.]+ GB/s$", times[0])
    assert times[1:]
    assert all(re.fullmatch(r"\w+ +[\d.]+ +[\d.]+ +[\d.]+  \d+ %", line) for line in times[1:])
    assert ran.stdout.count("tensor(") >= 2
    file = one(folder, "*_Model0_forward/*_codegen").glob("*.cpp")
    path = next(file)
    assert path.read_text().splitlines()[1].startswith("// c++ -std=c++17 -O3")
    compiler = find_compiler()
    assert compiler is not None
    flags = ("-std=c++17", "-O0", "-march=native", "-fopenmp", "-fsyntax-only", "-w")
    subprocess.run([compiler.path, *flags, str(path)], check=True)


def test_a_stage_prints_what_is_dumped(dumped: tuple[Record, Path]) -> None:
    record, folder = dumped
    stages = {stage.name: stage for stage in record.stages if stage.region == "Model0_backward"}
    assert str(stages["plan"]) == one(folder, "*_Model0_backward/*_plan.py").read_text()
    kernels = sorted(one(folder, "*_Model0_backward/*_codegen").glob("*.cpp"))
    assert kernels
    assert all(file.read_text() in str(stages["codegen"]) for file in kernels)
    assert not str(stages["wait"])


def test_a_file_that_holds_no_kernel_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.cpp").write_text("int main() {}\n")
    with pytest.raises(lamina.BadArgument, match=r"a\.cpp holds no kernel"):
        read_kernels(tmp_path)


def test_a_value_that_cannot_be_written_loses_no_other(tmp_path: Path) -> None:
    class Broken:
        def files(self) -> dict[str, str]:
            raise RuntimeError("no text")

    record = Record()
    record.add("region", "first", 0.0, Broken())
    record.add("region", "second one", 0.0, "said")
    record.dump(tmp_path)
    assert "RuntimeError: no text" in (tmp_path / "000_region" / "00_first.txt").read_text()
    assert (tmp_path / "000_region" / "01_second_one.txt").read_text() == "'said'"


def test_parts_with_names_lie_in_a_folder() -> None:
    found = files({"one": "a", "two": torch.fx.symbolic_trace(nn.ReLU())})
    assert list(found) == ["/one.txt", "/two.py"]
    assert "# one.txt\n'a'\n" in text_of({"one": "a", "two": 2})


def test_a_backward_whose_stages_cannot_be_written_runs(tmp_path: Path) -> None:
    torch.compiler.reset()
    x = torch.randn(3, requires_grad=True)
    out = lamina.compile(lambda x: x.sin(), options={"dump_dir": str(tmp_path / "stages")})(x)
    shutil.rmtree(tmp_path / "stages")
    (tmp_path / "stages").touch()
    with pytest.warns(lamina.LaminaWarning, match="cannot write the stages of lambda0_backward"):
        out.sum().backward()
    torch.testing.assert_close(x.grad, x.detach().cos())
