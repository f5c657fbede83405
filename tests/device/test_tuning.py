"""Schedules chosen by measurement on a GPU: right values, nothing of the user's touched, winners kept on disk."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lamina
from lamina.base.decision import Decision
from lamina.testing import judge

MODE = "max-autotune-no-cudagraphs"

pytestmark = pytest.mark.usefixtures("fresh")


def options(folder: Path) -> dict[str, Any]:
    return {"strict": True, "cache_dir": str(folder)}


def randn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(len(shape))
    return torch.randn(shape, generator=generator, device="cuda").to(dtype)


def tuned(compiled: Any) -> list[Decision]:
    found: list[Decision] = compiled.record.decisions("tune")
    return found


def sources(compiled: Any) -> list[str]:
    return [decision.reason.partition(":")[0] for decision in tuned(compiled)]


def figures(decision: Decision) -> dict[str, float]:
    return {name: float(value) for name, value in decision.facts if not isinstance(value, str)}


def softmax_rows(x: Tensor) -> Tensor:
    return x.softmax(-1)


def test_candidates_are_timed_and_the_result_is_right(tmp_path: Path) -> None:
    x = randn(2048, 4096)
    compiled = lamina.compile(softmax_rows, dynamic=False, mode=MODE, options=options(tmp_path))
    assert not judge(compiled(x), softmax_rows(x), softmax_rows(x.double()))
    (decision,) = tuned(compiled)
    assert decision.reason.startswith("measured")
    found = figures(decision)
    assert found["bound_us"] < 1000
    assert 0 < found["share"] < 1.5
    assert any(name.startswith("rows ") and us > 0 for name, us in found.items())


def test_winners_are_kept_for_the_next_compilation(tmp_path: Path) -> None:
    x = randn(512, 2048)
    first = lamina.compile(softmax_rows, dynamic=False, mode=MODE, options=options(tmp_path))
    first(x)
    torch.compiler.reset()
    second = lamina.compile(softmax_rows, dynamic=False, mode=MODE, options=options(tmp_path))
    second(x)
    assert sources(first) == ["measured"]
    assert sources(second) == ["remembered"]
    assert dict(tuned(first)[0].facts)["winner"] == dict(tuned(second)[0].facts)["winner"]


CHILD = """
import json, sys, torch, lamina
def function(x): return torch.nn.functional.gelu(x.float().cumsum(-1)).sum(-1)
options = {"strict": True, "cache_dir": sys.argv[1]}
compiled = lamina.compile(function, dynamic=False, mode="max-autotune-no-cudagraphs", options=options)
x = torch.randn(512, 1024, device="cuda", generator=torch.Generator("cuda").manual_seed(3))
result = compiled(x)
assert torch.allclose(result, function(x), rtol=1e-3, atol=1e-2)
print(json.dumps([d.reason for d in compiled.record.decisions("tune")]))
"""


def test_processes_that_tune_at_once_agree_and_a_later_one_times_nothing(tmp_path: Path) -> None:
    command = (sys.executable, "-c", CHILD, str(tmp_path))
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for process in both:
        process.communicate()
    assert [process.returncode for process in both] == [0, 0]
    later = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    reasons = json.loads(later.stdout.splitlines()[-1])
    assert reasons
    assert all(reason.startswith("remembered") for reason in reasons)


def test_tensors_written_in_place_are_written_once(tmp_path: Path) -> None:
    def update(x: Tensor, y: Tensor) -> Tensor:
        x.add_(y)
        return x * 2

    x, y = torch.zeros(1 << 20, device="cuda"), torch.ones(1 << 20, device="cuda")
    compiled = lamina.compile(update, dynamic=False, mode=MODE, options=options(tmp_path))
    result = compiled(x, y)
    assert "measured" in sources(compiled)
    assert bool((x == 1).all())
    assert bool((result == 2).all())


def test_random_numbers_go_on_where_they_were(tmp_path: Path) -> None:
    x = randn(1024, 1024)
    torch.cuda.manual_seed(5)
    before = torch.cuda.get_rng_state()
    compiled = lamina.compile(softmax_rows, dynamic=False, mode=MODE, options=options(tmp_path))
    compiled(x)
    assert torch.equal(before, torch.cuda.get_rng_state())


def test_indices_sums_at_colliding_places_and_checks(tmp_path: Path) -> None:
    table = randn(1000, 256, dtype=torch.float32).requires_grad_()
    ids = torch.randint(1000, (4096,), device="cuda")
    compiled = lamina.compile(F.embedding, dynamic=False, mode=MODE, options=options(tmp_path))
    (gradient,) = torch.autograd.grad(compiled(ids, table).sum(), table)
    (expected,) = torch.autograd.grad(F.embedding(ids, table).sum(), table)
    torch.testing.assert_close(gradient, expected)


def test_split_sums_leave_their_counters_zero(tmp_path: Path) -> None:
    def function(x: Tensor) -> Tensor:
        return (x * x).sum()

    x = randn(1 << 22, dtype=torch.float32)
    compiled = lamina.compile(function, dynamic=False, mode=MODE, options=options(tmp_path))
    for _ in range(3):
        torch.testing.assert_close(compiled(x), function(x.double()).float(), rtol=1e-5, atol=0)


def test_graphs_and_side_streams(tmp_path: Path) -> None:
    def function(x: Tensor) -> Tensor:
        return (x.softmax(-1) @ x).softmax(-1).sum(0)

    x = randn(512, 512, dtype=torch.float32)
    compiled = lamina.compile(function, dynamic=False, mode="max-autotune", options=options(tmp_path))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = [compiled(x).clone() for _ in range(5)]
    stream.synchronize()
    for result in found:
        torch.testing.assert_close(result, function(x), rtol=1e-2, atol=1e-2)
    assert set(sources(compiled)) <= {"measured", "model"}


def test_deterministic_algorithms_leave_it_to_the_model(tmp_path: Path) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        compiled = lamina.compile(softmax_rows, dynamic=False, mode=MODE, options=options(tmp_path))
        compiled(randn(256, 512))
    finally:
        torch.use_deterministic_algorithms(False)
    assert sources(compiled) == ["model"]
