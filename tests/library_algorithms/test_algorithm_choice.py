"""The library's algorithms for products chosen by a made-up clock, and run through a stand-in for the library."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from lamina.backends import cuda
from lamina.base.target import Target
from lamina.codegen.host_cuda import emit_cuda_host
from lamina.ir.loops import LibraryCall
from lamina.ir.plan import Plan
from lamina.ir.plan_interp import run_plan
from lamina.ir.plan_verify import verify_plan
from lamina.library_algorithms import algorithm_choice, clock
from lamina.library_algorithms.algorithm_choice import AlgorithmChoice
from lamina.library_algorithms.cublas_lt import ALGORITHMS, Refused
from lamina.lower.to_loops import lower
from lamina.options import Options
from lamina.runtime.cache import Cache
from lamina.schedule.fuse import fuse
from lamina.schedule.memo import Memo
from lamina.schedule.plan import make_plan
from lamina.tuning.values import Policy, policy_of
from tests.codegen.test_host_cuda import machine, on_gpu
from tests.library_algorithms.test_cublas_lt import built, fake
from tests.library_algorithms.test_cublas_products import library
from tests.lower.torch_private import traced
from tests.tuning.plans import TARGET, gpu_plan

assert built  # fixtures
assert fake
assert library
assert machine

DEFAULT = policy_of("default")
SMALL = replace(TARGET, processors=1)
"""A GPU on which small products take long."""


def clocked(figures: Mapping[str, float]) -> Callable[..., Any]:
    """Samplers of candidates that take so many microseconds; others the library does not propose."""
    asked: list[Any] = []

    def sampler(label: str) -> Callable[[int], Sequence[float]]:
        def sample(samples: int) -> Sequence[float]:
            if label not in figures:
                raise Refused("cuBLASLt has no such algorithm")
            return [figures[label]] * samples

        return sample

    def samplers(self: AlgorithmChoice, question: Any) -> Mapping[str, Any]:
        asked.append(question)
        assert type(torch.empty(1)) is Tensor
        return {label: sampler(label) for label in ("torch", *(f"algorithm {k}" for k in range(ALGORITHMS)))}

    samplers.asked = asked  # type: ignore[attr-defined]
    return samplers


@pytest.fixture
def choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., AlgorithmChoice]:
    """A choice whose clock says ``figures``."""
    for module in (algorithm_choice, clock):
        monkeypatch.setattr(module, "loaded", lambda device: SimpleNamespace(version=130100))
    monkeypatch.setattr(clock, "is_capturing", lambda: False)

    def make(figures: Mapping[str, float], target: Target = TARGET, policy: Policy = DEFAULT) -> AlgorithmChoice:
        monkeypatch.setattr(AlgorithmChoice, "samplers", clocked(figures))
        return AlgorithmChoice(0, target, Cache(tmp_path), policy)

    return make


Make = Callable[..., AlgorithmChoice]
FASTER = {"torch": 100.0, "algorithm 0": 100.0, "algorithm 1": 90.0}


def half(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16)


def large(function: Callable[..., Any] = torch.mm, n: int = 2304) -> Plan:
    return gpu_plan(function, half(n, n), half(n, n))


def calls(plan: Plan) -> list[tuple[str, tuple[Any, ...]]]:
    """Operation and last argument of each library call."""
    return [(s.op, s.args[-1]) for s in plan.steps if isinstance(s, LibraryCall)]


def asked() -> list[Any]:
    return AlgorithmChoice.samplers.asked  # type: ignore[attr-defined, no-any-return]


def test_the_fastest_algorithm_is_taken(choice: Make) -> None:
    chooser = choice(FASTER)
    plan = chooser(large())
    verify_plan(plan)
    assert calls(plan) == [("lamina.mm_algorithm.default", 1)]
    (decision,) = chooser.decisions
    assert (decision.kind, decision.taken) == ("algorithm", True)
    assert "11% before the best guess" in decision.reason
    assert dict(decision.facts) == {"torch_us": 100.0, "algorithm 0_us": 100.0, "algorithm 1_us": 90.0}


@pytest.mark.parametrize("best", [98.5, 100.0, 130.0])
def test_what_is_not_clearly_faster_leaves_torchs_call(choice: Make, best: float) -> None:
    chooser, before = choice({"torch": 100.0, "algorithm 3": best}), large()
    assert chooser(before) is before
    assert [d.taken for d in chooser.decisions] == [False]


def test_equal_products_are_asked_once_and_by_layout(choice: Make) -> None:
    def several(a: Tensor, b: Tensor) -> Any:
        first = a @ b
        return first @ b, first @ b.t(), torch.addmm(b[0], first, a)

    chooser = choice(FASTER)
    plan = chooser(large(several))
    verify_plan(plan)
    assert [op for op, _ in calls(plan)] == ["lamina.mm_algorithm.default"] * 3 + ["lamina.addmm_algorithm.default"]
    assert len(asked()) == len(chooser.decisions) == 3
    assert [len(d.subject) for d in chooser.decisions] == [2, 1, 1]
    assert chooser(plan) is plan


@pytest.mark.parametrize(
    ("function", "shapes", "dtype"),
    [
        (torch.mm, [(2304, 2304), (2304, 2304)], torch.float32),
        (torch.mm, [(512, 512), (512, 512)], torch.bfloat16),
        (torch.bmm, [(2, 2304, 2304), (2, 2304, 2304)], torch.bfloat16),
        (torch.addmm, [(2304, 2304), (2304, 2304), (2304, 2304)], torch.bfloat16),
        (torch.addmm, [(1,), (2304, 2304), (2304, 2304)], torch.bfloat16),
        (lambda x, w: x[:, 1:] @ w, [(2304, 2305), (2304, 2304)], torch.bfloat16),
    ],
    ids=["type", "small", "batched", "matrix added", "number added", "address"],
)
def test_what_is_not_asked(choice: Make, function: Any, shapes: Any, dtype: torch.dtype) -> None:
    before = gpu_plan(function, *(torch.zeros(s, dtype=dtype) for s in shapes))
    chooser = choice(FASTER)
    assert chooser(before) is before
    assert not chooser.decisions
    assert not asked()


def test_sizes_that_change_are_not_asked(choice: Make) -> None:
    program = on_gpu(lower(traced(torch.mm, [half(2304, 2304), half(2304, 2304)], symbolic=True), "test"))
    before = make_plan(fuse(program), TARGET)
    assert choice(FASTER)(before) is before


def test_a_thorough_mode_asks_of_smaller_products(choice: Make) -> None:
    before = large(n=1792)
    assert choice(FASTER)(before) is before
    assert choice(FASTER, policy=policy_of("max-autotune"))(before) is not before


def test_choices_are_kept(choice: Make) -> None:
    plan = choice(FASTER)(large())
    chooser = choice({"torch": 1.0})
    assert chooser(large()) == plan
    assert not asked()
    assert chooser.decisions[0].reason.startswith("remembered")
    assert choice({"torch": 1.0}, replace(TARGET, name="NVIDIA H200"))(large()) == large()
    assert len(asked()) == 1


def test_another_version_of_the_library_is_another_question(choice: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    choice(FASTER)(large())
    for module in (algorithm_choice, clock):
        monkeypatch.setattr(module, "loaded", lambda device: SimpleNamespace(version=130200))
    assert choice({"torch": 1.0})(large()) == large()
    assert len(asked()) == 1


def test_time_over_keeps_torchs_call_for_this_region_only(choice: Make) -> None:
    chooser = choice(FASTER, policy=replace(DEFAULT, seconds=0.0))
    assert chooser(large()) == large()
    assert "measuring were over" in chooser.decisions[0].reason
    assert choice(FASTER)(large()) != large()


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        (torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", False),
        (torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction", False),
        (torch.backends.cuda.matmul, "allow_fp16_accumulation", True),
    ],
    ids=["bf16", "fp16", "accumulation"],
)
def test_restricted_products_keep_torchs_call(choice: Make, module: Any, name: str, value: bool) -> None:
    chooser = choice(FASTER)
    setattr(module, name, value)
    try:
        assert chooser(large()) == large()
    finally:
        setattr(module, name, not value)
    assert "restricted" in chooser.decisions[0].reason
    assert choice(FASTER)(large()) != large()


def test_deterministic_algorithms_keep_torchs_call(choice: Make) -> None:
    chooser = choice(FASTER)
    torch.use_deterministic_algorithms(True)
    try:
        assert chooser(large()) == large()
    finally:
        torch.use_deterministic_algorithms(False)
    assert "deterministic" in chooser.decisions[0].reason


def test_a_stream_that_records_a_graph_is_not_used(choice: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    chooser = choice(FASTER)
    monkeypatch.setattr(clock, "is_capturing", lambda: True)
    assert chooser(large()) == large()
    assert "recording a CUDA graph" in chooser.decisions[0].reason


def test_a_torch_without_the_library(choice: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(device: int) -> Any:
        raise Refused("libcublasLt is not loaded")

    chooser = choice(FASTER)
    for module in (algorithm_choice, clock):
        monkeypatch.setattr(module, "loaded", refuse)
    assert chooser(large()) == large()
    assert "not loaded" in chooser.decisions[0].reason


def test_operands_are_real_where_torch_traces(choice: Make) -> None:
    """As AOTAutograd does around the compiler."""
    with FakeTensorMode():
        assert choice(FASTER)(large()) != large()


def test_memory_that_is_lacking_keeps_torchs_call(choice: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: AlgorithmChoice, question: Any) -> Any:
        raise torch.OutOfMemoryError("9 MiB are free")

    chooser = choice(FASTER)
    monkeypatch.setattr(AlgorithmChoice, "samplers", full)
    assert chooser(large()) == large()
    assert "9 MiB are free" in chooser.decisions[0].reason


@pytest.mark.parametrize("numerics", ["fast", "eager"])
def test_the_backend_asks_unless_bits_must_be_eagers(choice: Make, numerics: str) -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return torch.mm(x, w)

    n = 2304
    fused = fuse(on_gpu(lower(traced(function, [half(n, n), half(n, n)]), "test")))
    chooser = choice(FASTER)
    backend = object.__new__(cuda.CudaBackend)
    backend.options, backend.policy, backend.target = Options(numerics=numerics), DEFAULT, TARGET
    backend.device, backend.cache = 0, chooser.cache
    memo = Memo()
    tuning = backend.tuning(backend.planned(fused, memo), fused, chooser, memo)
    chosen = numerics == "fast"
    assert (calls(tuning.plan) == [("lamina.mm_algorithm.default", 1)]) is chosen
    assert (tuning.meanwhile == large(function)) is not chosen
    assert len(chooser.decisions) == chosen


def test_results_through_the_whole_path(choice: Make, machine: Any, library: Any) -> None:
    def function(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return torch.mm(torch.addmm(b, x, w.t()), w)

    torch.manual_seed(0)
    x, w, b = (torch.randn(s).to(torch.bfloat16) for s in ((512, 256), (384, 256), (384,)))
    chooser = choice(FASTER, SMALL, policy_of("max-autotune"))
    plan = chooser(gpu_plan(function, x, w, b, target=SMALL))
    verify_plan(plan)
    assert [op.split(".")[1] for op, _ in calls(plan)] == ["addmm_algorithm", "mm_algorithm"]
    want = torch.addmm(b.double(), x.double(), w.double().t()).to(torch.bfloat16).double() @ w.double()
    (interpreted,) = run_plan(plan, [x, w, b])
    host = emit_cuda_host(plan, {}, 0)
    before = library.fake_matmuls()
    (got,) = machine.load(host)([x, w, b])
    assert library.fake_matmuls() == before + 2
    assert library.fake_algorithm() == 2  # of three that the library proposes, the first is not usable
    scale = want.abs().max()
    assert (interpreted - want).abs().max() < 0.02 * scale
    assert (got - want).abs().max() < 0.02 * scale
