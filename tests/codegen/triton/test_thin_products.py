"""Thin products as kernels for a GPU: results in Triton's interpreter, registers and wide accesses on sm_90."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lamina.base.target import nvidia
from lamina.codegen.triton.emit import emit
from lamina.testing import judge, tensors
from tests.codegen.triton.harness import Interpreter
from tests.codegen.triton.on_cuda import planned_on_cuda
from tests.codegen.triton.test_plans import SMALL, run

triton = pytest.importorskip("triton")

from tests.codegen.triton.compiling import compiled  # noqa: E402

torch.manual_seed(0)
HALF = torch.bfloat16


def gradient_and_rows(g: Tensor, w: Tensor, h: Tensor, i: Tensor, x: Tensor) -> Tensor:
    """A router's gradient beside those of what it chose."""
    return x + h.index_select(0, i).view(x.shape[0], 2, -1).sum(1) + g @ w.to(g.dtype)


CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "few columns": (lambda x, w: x @ w.t(), (torch.randn(90, 300), torch.randn(8, 300))),
    "few columns of narrow rows": (
        lambda x, g: x.to(g.dtype) @ g.t(),
        (torch.randn(141, 256).to(HALF), torch.randn(7, 256)),
    ),
    "few columns, three": (
        lambda x, w, b: torch.addmm(b, x, w),
        (torch.randn(70, 512), torch.randn(512, 3), torch.randn(3)),
    ),
    "few rows": (lambda x, w: x @ w.t(), (torch.randn(6, 320), torch.randn(250, 320))),
    "a gradient": (lambda g, x: g.t() @ x, (torch.randn(2048, 8), torch.randn(2048, 64))),
    "a gradient from narrow rows": (
        lambda g, x: g.t() @ x.to(g.dtype),
        (torch.randn(2048, 8), torch.randn(2048, 128).to(HALF)),
    ),
    "a gradient of sixteen rows": (
        lambda g, x: g.t() @ x.to(g.dtype),
        (torch.randn(1026, 16), torch.randn(1026, 64).to(HALF)),
    ),
    "a gradient of ten rows": (
        lambda g, x: g.t() @ x.to(g.dtype),
        (torch.randn(1026, 10), torch.randn(1026, 64).to(HALF)),
    ),
    "few terms": (lambda g, w: g @ w, (torch.randn(72, 8), torch.randn(8, 1024))),
    "few terms, odd": (lambda g, w: (g @ w).relu(), (torch.randn(333, 7), torch.randn(7, 129))),
    "few terms beside gathers": (
        gradient_and_rows,
        (
            *(torch.randn(72, 8), torch.randn(8, 1024).to(HALF), torch.randn(50, 1024)),
            *(torch.randint(50, (144,)), torch.randn(72, 1024)),
        ),
    ),
}


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("name", CASES)
def test_results(interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for module in ("gpu", "gpu_reductions"):
        monkeypatch.setattr(f"lamina.schedule.{module}.MANY_POINTS", 1)
    function, arguments = CASES[name]
    plan = planned_on_cuda(SMALL, function, *arguments)
    assert plan.library_count == 0
    ours = run(plan, interpreter, arguments)
    eager = tensors(function(*arguments))
    exact = tensors(function(*(a.double() if a.dtype == torch.float32 else a for a in arguments)))
    for mine, theirs, right in zip(ours, eager, exact, strict=True):
        assert not judge(mine, theirs, right)


@pytest.mark.parametrize("columns", [8, 16])
def test_a_norm_joins_the_product_after_it(columns: int) -> None:
    """Rows of a small factor are no windows."""

    def function(x: Tensor, w: Tensor) -> Tensor:
        return (x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()) @ w.t()

    plan = planned_on_cuda(nvidia(), function, torch.empty(512, 1024), torch.empty(columns, 1024))
    assert len(plan.kernels) == 1
    assert plan.library_count == 0


LARGE: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], str]] = {
    "few columns": (lambda x, w: x @ w.t(), (torch.empty(8192, 1024), torch.empty(8, 1024)), "rows"),
    "a gradient": (lambda g, x: g.t() @ x, (torch.empty(8192, 8), torch.empty(8192, 1024)), "columns"),
    "a gradient from narrow rows": (
        lambda g, x: g.t() @ x.to(g.dtype),
        (torch.empty(8192, 8), torch.empty(8192, 1024, dtype=HALF)),
        "columns",
    ),
    "few terms": (
        lambda g, w: (g @ w.to(g.dtype)).to(HALF),
        (torch.empty(8192, 8), torch.empty(8, 1024, dtype=HALF)),
        "pointwise",
    ),
}


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("name", LARGE)
def test_accesses_are_wide_and_registers_suffice(name: str, tmp_path: Path) -> None:
    function, arguments, kind = LARGE[name]
    kernel = planned_on_cuda(nvidia(), function, *arguments).kernels[0]
    assert kernel.schedules[0].kind == kind
    done = compiled(emit(kernel, nvidia()), tmp_path)
    text = done.asm["ptx"]
    assert "ld.global.v4.b32" in text or "cp.async.cg.shared.global" in text
    assert spilled(text, tmp_path) == 0


def spilled(text: str, folder: Path) -> int:
    """Bytes of registers that are spilled to memory."""
    assembler = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
    (folder / "kernel.ptx").write_text(text)
    command = [assembler, "-v", "--gpu-name", "sm_90a", folder / "kernel.ptx", "-o", folder / "kernel.cubin"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return sum(int(n) for n in re.findall(r"(\d+) bytes spill stores", said))
