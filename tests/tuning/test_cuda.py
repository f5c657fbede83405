"""A region's kernels tuned with stand-ins for the compiler, the driver and the clock."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.fx import Graph, GraphModule

from lamina.backends import cuda_region
from lamina.base import recovery
from lamina.base.target import Target
from lamina.codegen.host_cuda import CudaHost
from lamina.errors import StageFailed
from lamina.ir.plan import Block, GpuSchedule, Kernel, Plan
from lamina.ir.plan_verify import verify_plan
from lamina.options import Options
from lamina.record import Record
from lamina.runtime.cache import Cache
from lamina.runtime.cuda_driver import CudaKernel
from lamina.runtime.triton_build import Cubin, TritonBuild, TritonUnit
from lamina.runtime.triton_pool import TooMuchShared, TritonError
from lamina.tuning.cuda import RegionTuning
from lamina.tuning.cuda_trials import Trials, triton_unit
from lamina.tuning.measure import Sampler
from lamina.tuning.search import schedule_from_json, schedule_to_json
from lamina.tuning.values import Policy, policy_of
from tests.tuning.plans import TARGET, gpu_plan

SEARCHING = policy_of("max-autotune-no-cudagraphs")
ALL = replace(SEARCHING, searching=0.0)
"""All candidates, without a search among others."""
DEFAULT = replace(policy_of("default"), searching=0.0, probed=float("inf"))


def norm(x: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)).softmax(-1)


def plan_of(rows: int = 4096) -> Plan:
    return gpu_plan(norm, torch.zeros(rows, 1024, dtype=torch.bfloat16))


@dataclass
class FakeDriver:
    """Loads anything; what it is told to refuse, it refuses."""

    refused: str = "nothing"
    shared_bytes: int = 1 << 20

    def load(self, cubin: Cubin, device: int) -> CudaKernel:
        if cubin.function == self.refused:
            raise TritonError("it has too many threads")
        if cubin.shared > self.shared_bytes:
            raise TooMuchShared(f"it needs {cubin.shared} bytes")
        return CudaKernel(cubin.function, lambda *given: 0, 40, 0)


class FakeBench:
    """Candidate number k takes ``times[k]`` microseconds."""

    times: Sequence[float] = ()
    opened = 0

    def __init__(self, *about: Any) -> None:
        FakeBench.opened += 1

    def sampler(self, program: Callable[..., Any]) -> Sampler:
        launched = [n for n in program.__code__.co_names if n.startswith("k_")]
        number = int(launched[0].rpartition("_")[2])
        return lambda samples: [self.times[number]] * samples


def built(tuning: RegionTuning, errors: Mapping[int, str] | None = None) -> TritonBuild:
    """Every unit compiled but those in ``errors``."""
    failed = {u.name: TritonError(errors[k]) for k, u in enumerate(tuning.units) if errors and k in errors}
    cubins = {
        u.name: Cubin(u.name, u.function, b"", u.types, 0, 32 * u.warps, 2)
        for u in tuning.units
        if u.name not in failed
    }
    return TritonBuild(cubins, failed, 0, len(cubins), 0.1)


@pytest.fixture(autouse=True)
def bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RegionTuning, "bench", FakeBench)
    monkeypatch.setattr("lamina.tuning.cuda.is_capturing", lambda: False)
    FakeBench.opened = 0


@pytest.fixture
def tuning(tmp_path: Path) -> Callable[..., RegionTuning]:
    def make(plan: Plan | None = None, target: Target = TARGET, policy: Policy = ALL) -> RegionTuning:
        return RegionTuning(plan or plan_of(), target, 0, Cache(tmp_path), policy)

    return make


def times(fastest: int, count: int = 8) -> list[float]:
    return [500.0 + k if k != fastest else 100.0 for k in range(count)]


def only(plan: Plan) -> Kernel:
    (kernel,) = plan.kernels
    return kernel


Make = Callable[..., RegionTuning]


def test_the_plan_gets_the_winners_schedule(tuning: Make) -> None:
    work = tuning()
    (task,) = [o.task for o in work.open]
    assert 2 < len(task.candidates) <= 8
    FakeBench.times = times(2)
    plan = work.finish(built(work), FakeDriver())
    assert only(plan).schedules == (task.candidates[2].value,)
    assert only(plan).name == only(plan_of()).name
    verify_plan(plan)
    (decision,) = work.tuned.decisions
    assert decision.kind == "tune"
    assert decision.taken
    assert dict(decision.facts)["winner"] == task.candidates[2].label
    assert task.candidates[2].label in work.tuned.text()


def test_a_second_compilation_has_nothing_to_time(tuning: Make) -> None:
    first = tuning()
    FakeBench.times = times(1)
    plan = first.finish(built(first), FakeDriver())
    second = tuning()
    assert not second.open
    assert not second.units
    assert second.plan == plan
    assert second.tuned.decisions[0].reason.startswith("remembered")
    assert FakeBench.opened == 1


def test_another_gpu_and_another_size_are_other_questions(tuning: Make) -> None:
    first = tuning()
    FakeBench.times = times(1)
    first.finish(built(first), FakeDriver())
    assert tuning(target=replace(TARGET, name="NVIDIA H200")).open
    assert tuning(target=replace(TARGET, processors=66)).open
    assert tuning(plan_of(rows=64 * 4096)).open


def test_candidates_that_do_not_compile_or_load_drop_out_alone(tuning: Make) -> None:
    work = tuning()
    FakeBench.times = times(0)
    refused = work.open[0].trials[2].host.launches[0].source.name
    plan = work.finish(built(work, {0: "it does not compile"}), FakeDriver(refused))
    assert only(plan).schedules != only(plan_of()).schedules
    facts = dict(work.tuned.decisions[0].facts)
    labels = [c.label for c in work.choices[only(plan).name].task.candidates]
    assert facts[labels[0]] == "it does not compile"
    assert facts[labels[2]] == "it has too many threads"


def test_memory_that_is_lacking_leaves_it_to_the_model(tuning: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*about: Any) -> Any:
        raise torch.OutOfMemoryError("9 MiB are free")

    monkeypatch.setattr(RegionTuning, "bench", staticmethod(full))
    work = tuning()
    plan = work.finish(built(work), FakeDriver())
    assert plan == plan_of()
    assert "9 MiB are free" in work.tuned.decisions[0].reason


def test_a_stream_that_records_a_graph_is_not_used(tuning: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lamina.tuning.cuda.is_capturing", lambda: True)
    work = tuning()
    assert work.finish(built(work), FakeDriver()) == plan_of()
    assert "recording a CUDA graph" in work.tuned.decisions[0].reason
    assert FakeBench.opened == 0


def test_time_over_leaves_the_rest_to_the_model(tuning: Make) -> None:
    work = tuning(policy=replace(ALL, seconds=0.0))
    assert work.finish(built(work), FakeDriver()) == plan_of()
    assert "measuring were over" in work.tuned.decisions[0].reason


def test_the_default_mode_leaves_small_kernels_alone(tuning: Make) -> None:
    work = tuning(policy=DEFAULT)
    assert not work.open
    assert "too little to gain" in work.tuned.decisions[0].reason


def test_deterministic_algorithms_are_never_timed(tuning: Make) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        work = tuning()
    finally:
        torch.use_deterministic_algorithms(False)
    assert not work.open
    assert "deterministic" in work.tuned.decisions[0].reason


def test_nests_of_one_form_share_a_choice(tuning: Make) -> None:
    plan = gpu_plan(lambda *tensors: tuple(t.sigmoid() for t in tensors), *(torch.zeros(1 << n) for n in (16, 17, 20)))
    work = tuning(plan)
    assert len(work.open[0].task.candidates) > 2
    FakeBench.times = times(1)
    kernel = only(work.finish(built(work), FakeDriver()))
    assert kernel.schedules == (kernel.schedules[0],) * 3
    assert kernel.schedules != only(plan).schedules


def test_a_thorough_choice_serves_the_default_mode(tuning: Make) -> None:
    large = plan_of(rows=64 * 4096)
    work = tuning(large)
    FakeBench.times = times(6)
    plan = work.finish(built(work), FakeDriver())
    later = tuning(large, policy=DEFAULT)
    assert later.plan == plan
    assert not later.open


@pytest.mark.parametrize("shape", [(0, 16), (4, 0), (1, 1), (1,)])
def test_tensors_of_no_or_one_element(tuning: Make, shape: tuple[int, ...]) -> None:
    def function(x: Tensor) -> Tensor:
        return (x + 1).sum(-1)

    work = tuning(gpu_plan(function, torch.zeros(shape)))
    FakeBench.times = times(0)
    plan = work.finish(built(work), FakeDriver())
    verify_plan(plan)
    assert len(work.tuned.decisions) == len(plan.kernels)


def region(tuning: RegionTuning, **options: Any) -> Callable[[], Any]:
    """Loads the region that is tuned, as its first call does."""
    made = Options(mode="max-autotune-no-cudagraphs", **options)
    stub: Any = SimpleNamespace(options=made, device=0, target=TARGET, driver=FakeDriver(), built=all_built)
    work = cuda_region.CudaRegion(stub, tuning.plan, Record(), GraphModule({}, empty_graph(tuning.plan)))
    work.generate()
    host = work.host(True)
    trying, building = (done(all_built("", units)) for units in (tuning.units, units_of(host)))
    return lambda: (work.tuned(tuning, trying, host, building), work.plan, work.record)


def empty_graph(plan: Plan) -> Graph:
    """A graph with the plan's inputs that computes nothing."""
    graph = Graph()
    for number in range(len(plan.inputs)):
        graph.placeholder(f"input{number}")
    graph.output(())
    return graph


def units_of(host: CudaHost) -> list[TritonUnit]:
    return [triton_unit(launch) for launch in host.launches]


def all_built(name: str, units: Sequence[TritonUnit]) -> TritonBuild:
    return TritonBuild(
        {u.name: Cubin(u.name, u.function, b"", u.types, 0, 32 * u.warps, 2) for u in units}, {}, 0, 0, 0.1
    )


def done(value: TritonBuild) -> Future[TritonBuild]:
    future: Future[TritonBuild] = Future()
    future.set_result(value)
    return future


@pytest.mark.parametrize(("held", "strict"), [(2, True), (1, True), (0, True), (0, False)])
def test_a_kernel_reads_as_far_ahead_as_shared_memory_holds(
    held: int, strict: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each stage is 1000 bytes here; with room for none the region is left to ATen, or fails where that is unwanted."""

    def build(name: str, units: Sequence[TritonUnit]) -> TritonBuild:
        cubins = {u.name: Cubin(u.name, u.function, b"", u.types, 1000 * u.stages, 32 * u.warps, 2) for u in units}
        return TritonBuild(cubins, {}, 0, 0, 0.1)

    plan = plan_of()
    deep = replace(only(plan), schedules=tuple(replace(s, stages=3) for s in only(plan).schedules))
    options = Options(strict=strict)
    driver = FakeDriver(shared_bytes=1000 * held)
    stub: Any = SimpleNamespace(options=options, device=0, target=TARGET, driver=driver, built=build)
    work = cuda_region.CudaRegion(stub, replace(plan, kernels=(deep,)), Record(), GraphModule({}, empty_graph(plan)))
    work.generate()
    monkeypatch.setattr("lamina.backends.caches._warned", set())
    told: AbstractContextManager[Any] = nullcontext()
    if held == 0 and strict:
        told = pytest.raises(StageFailed, match=r"building test failed: .* it needs 1000 bytes")
    elif held == 0:
        told = pytest.warns(UserWarning, match="no kernel has machine code")
    with told:
        work.load(work.host(True))
    assert [s.stages for s in only(work.plan).schedules] == [max(held, 1)]  # type: ignore[union-attr]
    assert len(work.record.decisions("schedule")) == 3 - max(held, 1)
    assert bool(work.reasons) == (held == 0)


def test_threads_that_call_at_once_share_one_tuning(tuning: Make) -> None:
    FakeBench.times = times(1)
    load = region(tuning(), strict=True)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: load(), range(8)))
    assert len({id(program) for program, _, _ in found}) == 1
    _, plan, record = found[0]
    assert only(plan).schedules != only(plan_of()).schedules
    assert [d.taken for d in record.decisions("tune")] == [True]
    assert FakeBench.opened == 1


def test_a_tuner_that_fails_leaves_the_models_schedules(tuning: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: RegionTuning, *about: Any) -> Any:
        raise KeyError("no such thing")

    monkeypatch.setattr(RegionTuning, "finish", broken)
    monkeypatch.setattr(recovery, "_told", set())
    with pytest.warns(UserWarning, match=r"timing schedules failed: KeyError: 'no such thing'; .* has not timed"):
        program, plan, record = region(tuning())()
    assert callable(program)
    assert plan == plan_of()
    assert [d.taken for d in record.decisions("tune")] == [False]
    with pytest.raises(StageFailed, match="timing schedules failed") as caught:
        region(tuning(), strict=True)()
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize(
    ("mode", "reasons"), [("default", 1), ("reduce-overhead", 1), ("max-autotune-no-cudagraphs", 0)]
)
def test_calls_with_inputs_at_odd_addresses_say_why_they_are_not_recorded(mode: str, reasons: int) -> None:
    plan = plan_of()
    stub: Any = SimpleNamespace(
        options=Options(mode=mode), device=0, target=TARGET, driver=FakeDriver(), built=all_built
    )
    work = cuda_region.CudaRegion(stub, plan, Record(), GraphModule({}, empty_graph(plan)))
    work.generate()
    work.load(work.host(aligned=False), aligned=False)
    told = work.record.decisions("graph")
    assert [d.taken for d in told] == [False] * reasons
    assert all("does not begin at a multiple of 16 bytes" in d.reason for d in told)


class Ideal:
    """Stands in for the GPU: a schedule takes ``floor`` microseconds, more with every step from the one ``wanted``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, wanted: GpuSchedule, floor: float = 1.0) -> None:
        self.wanted, self.floor = wanted, floor
        self.schedules: dict[str, GpuSchedule] = {}
        self.rounds: list[int] = []
        made = Trials.made

        def noted(trials: Trials, kernel: Kernel, call: Any, candidates: Sequence[Any], first: int) -> Any:
            self.schedules |= {f"{kernel.name}_{k}": c.value for k, c in enumerate(candidates, first)}
            return made(trials, kernel, call, candidates, first)

        monkeypatch.setattr(Trials, "made", noted)
        monkeypatch.setattr(RegionTuning, "bench", lambda *about: self)

    def microseconds(self, schedule: GpuSchedule) -> float:
        pairs = [(schedule.warps, self.wanted.warps)]
        pairs += [(a.size, b.size) for a, b in zip(schedule.blocks, self.wanted.blocks, strict=True)]
        return self.floor * 2.0 ** sum(abs(math.log2(a / b)) for a, b in pairs)

    def sampler(self, program: Callable[..., Any]) -> Sampler:
        (name,) = {n for n in program.__code__.co_names if n.startswith("k_")}
        took = self.microseconds(self.schedules[name.removeprefix("k_")])
        return lambda samples: [took] * samples

    def build(self, units: Sequence[TritonUnit], seconds: float) -> TritonBuild:
        self.rounds.append(len(units))
        return all_built("", units)


def columns() -> Plan:
    """One kernel that sums columns: a loop beside a fast axis."""
    return gpu_plan(lambda x: x.exp().sum(1), torch.zeros(2048, 300, 128))


def changed(schedule: GpuSchedule, warps: int, **sizes: int) -> GpuSchedule:
    """With other warps, and other sizes for blocks of more than one point by their role."""
    blocks = tuple(replace(b, size=sizes.get(b.role, b.size) if b.size > 1 else 1) for b in schedule.blocks)
    return replace(schedule, warps=warps, blocks=blocks)


def gpu_sizes(schedule: GpuSchedule) -> list[int]:
    return [b.size for b in schedule.blocks]


@pytest.mark.parametrize("policy", [SEARCHING, policy_of("default")])
def test_a_kernel_far_slower_than_its_work_is_searched_and_remembered(
    tuning: Make, monkeypatch: pytest.MonkeyPatch, policy: Policy
) -> None:
    plan = columns()
    (schedule,) = only(plan).schedules
    assert isinstance(schedule, GpuSchedule)
    wanted = changed(schedule, 2 * schedule.warps, loop=256, grid=4)
    assert gpu_sizes(schedule) != gpu_sizes(wanted)
    gpu = Ideal(monkeypatch, wanted, floor=90.0)
    work = tuning(plan, policy=policy)
    assert work.open
    found = only(work.finish(built(work), FakeDriver(), gpu.build)).schedules[0]
    assert isinstance(found, GpuSchedule)
    assert gpu.microseconds(found) < 0.2 * gpu.microseconds(schedule)
    assert [b.role for b in found.blocks] == [b.role for b in schedule.blocks]
    assert max(gpu.rounds) <= 48 + 24
    (decision,) = work.tuned.decisions
    assert decision.taken
    assert "found by a search" in decision.reason
    later = tuning(plan, policy=policy)
    assert not later.open
    assert only(later.plan).schedules == (found,)
    assert later.tuned.decisions[0].reason.startswith("remembered")


def test_a_kernel_that_is_as_fast_as_its_work_is_not_searched(tuning: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = columns()
    (schedule,) = only(plan).schedules
    assert isinstance(schedule, GpuSchedule)
    gpu = Ideal(monkeypatch, schedule, floor=150.0)
    work = tuning(plan, policy=policy_of("default"))
    after = work.finish(built(work), FakeDriver(), gpu.build)
    assert after == plan
    assert gpu.rounds == []
    assert not work.tuned.decisions[0].taken


def test_a_search_that_nothing_can_be_compiled_for_keeps_what_there_is(
    tuning: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = columns()
    (schedule,) = only(plan).schedules
    assert isinstance(schedule, GpuSchedule)
    gpu = Ideal(monkeypatch, changed(schedule, 32), floor=500.0)

    def build(units: Sequence[TritonUnit], seconds: float) -> TritonBuild:
        return TritonBuild({}, {u.name: TritonError("it is not ready") for u in units}, 0, 0, seconds)

    work = tuning(plan, policy=replace(policy_of("default"), least=1e9))
    assert [len(o.task.candidates) for o in work.open] == [1]
    assert work.finish(built(work), FakeDriver(), build) == plan
    (decision,) = work.tuned.decisions
    assert "too little to gain" in decision.reason
    assert "it is not ready" in str(decision.facts)
    assert gpu.rounds == []


def test_a_search_that_time_ends_goes_on_in_the_next_process(tuning: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = columns()
    (schedule,) = only(plan).schedules
    assert isinstance(schedule, GpuSchedule)
    wanted = changed(schedule, 1, loop=256, grid=16)
    gpu, now = Ideal(monkeypatch, wanted, floor=90.0), [0.0]
    monkeypatch.setattr("lamina.tuning.cuda_search.time", SimpleNamespace(perf_counter=lambda: now[0]))

    def build(units: Sequence[TritonUnit], seconds: float) -> TritonBuild:
        now[0] += 3.0  # of the four
        return gpu.build(units, seconds)

    found: list[GpuSchedule] = [schedule]
    for _ in range(12):
        work = tuning(plan, policy=policy_of("default"))
        if not work.open:
            break
        (best,) = only(work.finish(built(work), FakeDriver(), build)).schedules
        assert isinstance(best, GpuSchedule)
        found.append(best)
    assert not work.open, "a search ends"
    assert 2 < len(found) < 12
    times = [gpu.microseconds(s) for s in found]
    assert times == sorted(times, reverse=True), "what was found is not lost"
    assert times[-1] < 0.2 * times[0]
    assert only(work.plan).schedules == (found[-1],)


@pytest.mark.parametrize("late", [True, False])
def test_schedules_that_were_not_ready_in_time_are_not_taken_for_slower(
    tuning: Make, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """Those that no compiler takes are, and the search ends."""
    plan, now = columns(), [0.0]
    (schedule,) = only(plan).schedules
    assert isinstance(schedule, GpuSchedule)
    Ideal(monkeypatch, changed(schedule, 1, loop=256), floor=500.0)  # no candidate is nearer
    monkeypatch.setattr("lamina.tuning.cuda_search.time", SimpleNamespace(perf_counter=lambda: now[0]))

    def build(units: Sequence[TritonUnit], seconds: float) -> TritonBuild:
        now[0] += seconds if late else 0.0
        return TritonBuild({}, {u.name: TritonError("it is not ready") for u in units}, 0, 0, seconds)

    work = tuning(plan, policy=policy_of("default"))
    assert work.finish(built(work), FakeDriver(), build) == plan
    assert bool(tuning(plan, policy=policy_of("default")).open) == late


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_schedules_in_notes_are_read_as_they_were(data: st.DataObject) -> None:
    blocks = data.draw(
        st.lists(
            st.builds(
                Block,
                st.lists(st.sampled_from("abcd"), min_size=1, max_size=2).map(tuple),
                st.sampled_from((1, 8, 64)),
                st.sampled_from(("grid", "loop", "whole")),
            ),
            max_size=3,
        ).map(tuple)
    )
    bits = st.booleans()
    schedule = GpuSchedule(
        data.draw(st.sampled_from(("rows", "scan"))),
        blocks,
        warps=data.draw(st.sampled_from((1, 8))),
        stages=data.draw(st.integers(1, 4)),
        online=data.draw(bits),
        peel=data.draw(st.sampled_from((0, 16))),
        approximate=data.draw(bits),
        evict_first=data.draw(bits),
        last_block=data.draw(bits),
    )
    assert schedule_from_json(json.loads(json.dumps(schedule_to_json(schedule)))) == schedule


@pytest.mark.parametrize("content", [None, 3, {}, {"kind": "rows", "blocks": [[1]]}, {"kind": "rows"}])
def test_a_note_that_holds_no_schedule_gives_none(content: object) -> None:
    assert schedule_from_json(content) is None


def test_every_field_of_a_schedule_is_noted() -> None:
    (schedule,) = only(plan_of()).schedules
    assert isinstance(schedule, GpuSchedule)
    assert set(schedule_to_json(schedule)) == {f.name for f in fields(GpuSchedule)}
