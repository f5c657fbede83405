"""Library products by the algorithms that cuBLASLt proposes: values, CUDA graphs, and the choice among them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lamina
from lamina.library_algorithms import algorithm_choice
from lamina.library_algorithms.algorithm_choice import AlgorithmChoice
from lamina.library_algorithms.cublas_lt import ALGORITHMS, Refused
from lamina.library_algorithms.cublas_products import library_product, multiply
from lamina.testing import judge, tensors
from tests.device.test_products import DTYPES, randn


def operands(m: int, k: int, n: int, layout: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    left = randn(k, m, dtype=dtype).t() if layout[0] == "T" else randn(m, k, dtype=dtype)
    right = randn(n, k, dtype=dtype).t() if layout[1] == "T" else randn(k, n, dtype=dtype)
    return randn(n, dtype=dtype), left, right


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("shape", [(1024, 512, 768), (136, 2048, 64)])
def test_all_algorithms(shape: tuple[int, int, int], layout: str, dtype: torch.dtype) -> None:
    bias, left, right = operands(*shape, layout, dtype)
    out = torch.empty(shape[0], shape[2], device="cuda", dtype=dtype)
    ran = 0
    for added in (None, bias):
        exact = left.double() @ right.double() + (0 if added is None else added.double())
        eager = left @ right if added is None else torch.addmm(added, left, right)
        for algorithm in range(ALGORITHMS):
            try:
                multiply(added, left, right, algorithm, out.fill_(math.nan))
            except Refused:  # the library proposes fewer
                break
            ran += 1
            assert not judge(out, eager, exact), algorithm
    assert ran >= 2


@pytest.mark.parametrize("biased", [False, True])
def test_a_cuda_graph(biased: bool) -> None:
    bias, left, right = operands(1024, 512, 768, "NT", torch.bfloat16)
    call = library_product(f"lamina.{'addmm' if biased else 'mm'}_algorithm.default", "y")
    given = (*([bias] if biased else []), left, right, 0)
    out = torch.empty(1024, 768, device="cuda", dtype=torch.bfloat16)
    call(*given, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call(*given, out=out)
    left.mul_(2)
    graph.replay()
    want = torch.addmm(bias, left, right) if biased else left @ right
    torch.testing.assert_close(out, want, rtol=2.0**-7, atol=2.0**-7)


def layers(x: Tensor, w: Tensor, b: Tensor, v: Tensor) -> Tensor:
    return F.linear(F.linear(x, w, b) @ v, w)


def compiled_and_checked(sizes: tuple[int, int, int], folder: Path) -> Any:
    """Two layers and their gradients compiled, compared with eager and float64; the record."""
    rows, inner, columns = sizes
    args = [randn(rows, inner), randn(columns, inner), randn(columns), randn(columns, inner)]
    options = {"strict": True, "verify": True, "cache_dir": str(folder)}
    torch.compiler.reset()
    compiled = lamina.compile(layers, dynamic=False, options=options)
    results = []
    for call, dtype in ((compiled, None), (layers, None), (layers, torch.float64)):
        given = [a.detach().to(dtype or a.dtype).requires_grad_() for a in args]
        outputs = tensors(call(*given))
        results.append([*outputs, *torch.autograd.grad(outputs, given, [torch.ones_like(o) for o in outputs])])
    for number, (ours, eager, exact) in enumerate(zip(*results, strict=True)):
        assert not judge(ours, eager, exact), number
    return compiled.record


def test_a_region_by_other_algorithms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def samplers(self: AlgorithmChoice, question: Any) -> Any:
        return {"torch": lambda samples: [2.0] * samples, "algorithm 1": lambda samples: [1.0] * samples}

    monkeypatch.setattr(AlgorithmChoice, "samplers", samplers)
    monkeypatch.setattr(algorithm_choice, "_LEAST", 0.0)
    decisions = compiled_and_checked((1024, 512, 768), tmp_path).decisions("algorithm")
    assert len(decisions) >= 5
    assert all(d.taken for d in decisions)


def test_a_region_chosen_by_a_clock(tmp_path: Path) -> None:
    decisions = compiled_and_checked((8192, 1024, 4096), tmp_path).decisions("algorithm")
    assert decisions
    for decision in decisions:
        times = dict(decision.facts)
        assert len(times) >= 2, decision
        gain = float(times["torch_us"]) / min(map(float, times.values()))
        assert decision.taken or gain < 1.03, decision
        assert not decision.taken or gain > 1.01, decision
    again = compiled_and_checked((8192, 1024, 4096), tmp_path).decisions("algorithm")
    assert {d.reason.partition(":")[0] for d in again} == {"remembered"}
    assert [d.taken for d in again] == [d.taken for d in decisions]
