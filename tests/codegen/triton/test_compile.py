"""Generated kernels compile for sm_90 on a machine without a GPU, with 16-byte accesses where rows allow them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from lamina.base.target import cpu, nvidia
from lamina.ir.plan import GpuSchedule
from lamina.lower.to_loops import lower
from lamina.schedule.fuse import fuse
from lamina.schedule.plan import make_plan
from tests.codegen.test_nests import RECIPES, norm, norm_backward, pointwise, scans, softmax, transposed
from tests.codegen.triton.harness import case

triton = pytest.importorskip("triton")

from lamina.codegen.triton.emit import emit  # noqa: E402
from tests.codegen.triton.compiling import compiled  # noqa: E402
from tests.codegen.triton.test_kernels import NAMES  # noqa: E402

WIDE: dict[str, Callable[[], Any]] = {
    "rows": lambda: softmax(64, 4096, 1, "bfloat16"),
    "loops": lambda: softmax(64, 65536, 1, "bfloat16"),
    "odd_rows": lambda: softmax(64, 50257, 1, "bfloat16"),
    "norm": lambda: norm(64, 8192, "bfloat16"),
    "mixed": lambda: norm_backward(512, 4096, "bfloat16"),
    "columns": lambda: softmax(4096, 512, 0, "bfloat16"),
    "pointwise": lambda: pointwise((512, 1024), (1024, 1), "bfloat16"),
    "transposed": lambda: transposed(1024, 1024, "bfloat16"),
    "scan": lambda: scans(64, 8192, 1, "sum", False),
}


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize("kind", WIDE)
def test_wide_accesses(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    body, buffers, _, _ = WIDE[kind]()
    made = case(kind, [body.nest()], buffers, nvidia())
    text = compiled(made.source, tmp_path).asm["ptx"]
    assert "ld.global.v4.b32" in text or "cp.async" in text
    assert "st.global.v4.b32" in text
    assert ".local .align" not in text, "registers are spilled to memory"


@pytest.mark.sampled(one_in=8)
@pytest.mark.parametrize("name", NAMES)
def test_compiles(name: str, tmp_path: Path) -> None:
    spec, _, _ = RECIPES[name](name, cpu("plain", 1))
    made = case(name, spec.nests, list(spec.buffers.values()), nvidia())
    done = compiled(made.source, tmp_path)
    assert done.asm["cubin"]
    assert done.metadata.shared <= nvidia().shared_bytes


def test_compiles_without_alignment(tmp_path: Path) -> None:
    body, buffers, _, _ = softmax(64, 4096, 1, "bfloat16")
    made = case("anywhere", [body.nest()], buffers, nvidia())
    assert "ld.global.v4.b32" not in compiled(made.source, tmp_path, aligned=False).asm["ptx"]


@pytest.mark.parametrize("kind", ["rows", "places", "large"])
def test_rows_that_begin_anywhere(kind: str, tmp_path: Path) -> None:
    """Their first element takes 64 bits where it is loaded or far: what a loop carries keeps its type."""

    def function(x: torch.Tensor, y: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        rows = x.index_select(0, places) if kind == "places" else x
        return (rows.exp() * y).amax(1)

    rows, width = (10_000 if kind == "large" else 63), 477_695
    with FakeTensorMode():
        x, y = (torch.empty(rows, width, dtype=torch.bfloat16) for _ in range(2))
        graph = make_fx(function)(x, y, torch.empty(rows, dtype=torch.int64))
    graph.graph.eliminate_dead_code()
    program = lower(graph, "program")
    buffers = tuple(replace(b, device="cuda:0") for b in program.buffers)
    target = nvidia()
    plan = make_plan(fuse(replace(program, buffers=buffers)), target)
    assert any(isinstance(s, GpuSchedule) and s.peel for k in plan.kernels for s in k.schedules)
    for kernel in plan.kernels:
        assert compiled(emit(kernel, target), tmp_path).asm["cubin"]
