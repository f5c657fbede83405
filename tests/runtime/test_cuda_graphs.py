"""When a region is recorded and replayed, with stand-ins for graphs that run on the CPU."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lamina.base.graph_pair import GraphPair, PairedGraph
from lamina.runtime import cuda_graphs
from lamina.runtime.cuda_graphs import GraphPolicy, GraphRunner, Outcome
from lamina.runtime.graph_budget import GraphBudget, pool_bytes


class Graphs:
    """Graphs that repeat their call on the recorded inputs, into the recorded outputs."""

    def __init__(self) -> None:
        self.current: Graphs.Graph | None = None
        self.made: list[Graphs.Graph] = []
        self.directly = 0
        self.now = 0.0
        self.host_seconds = 0.0
        self.gpu_ms = 0.0
        self.error = ""
        self.returns_inputs = False
        self.kept = 3 << 20
        self.view: torch.dtype | None = None

    class Graph:
        def __init__(self) -> None:
            self.again: Callable[[], None] = lambda: None
            self.replays = 0

        def replay(self) -> None:
            self.replays += 1
            self.again()

    @contextmanager
    def recording(self, graph: Graph, **_: Any) -> Any:
        self.current = graph
        try:
            yield
        finally:
            self.current = None
        self.made.append(graph)

    def program(self, args: list[Any]) -> tuple[torch.Tensor, ...]:
        """Twice the first input, and on demand that itself and its end; adds it to the second."""
        given = list(args)
        args.clear()
        if self.current is None:
            self.directly += 1
            self.now += self.host_seconds
            given[1] += given[0]
            return self.results(given[0] * 2, given[0])
        if self.error:
            raise RuntimeError(self.error)
        out = torch.empty_like(given[0])

        def again() -> None:
            given[1].add_(given[0])
            out.copy_(given[0] * 2)

        self.current.again = again
        return self.results(out, given[0])

    def results(self, out: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if self.view is not None:
            return out, x.view(self.view)
        return (out, x, x[3:]) if self.returns_inputs else (out,)

    def timer(self) -> Any:
        graphs = self

        class Timer:
            def record(self) -> None: ...

            def query(self) -> bool:
                return True

            def elapsed_time(self, other: Any) -> float:
                return graphs.gpu_ms

        return Timer()


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Graphs:
    made = Graphs()
    monkeypatch.setattr(cuda_graphs, "current_stream", lambda device: 1)
    monkeypatch.setattr(cuda_graphs, "is_capturing", lambda: False)
    monkeypatch.setattr(cuda_graphs, "lend_zeros", lambda device, stream: None)
    monkeypatch.setattr(cuda_graphs, "forget_zeros", lambda device, stream: None)
    monkeypatch.setattr(cuda_graphs, "_on_gpu", lambda output: True)
    monkeypatch.setattr(cuda_graphs, "_kept", lambda graph, device: made.kept)
    monkeypatch.setattr(cuda_graphs, "_timer", made.timer)
    monkeypatch.setattr(cuda_graphs, "time", SimpleNamespace(perf_counter=lambda: made.now, sleep=lambda seconds: None))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graphs.Graph)
    monkeypatch.setattr(torch.cuda, "graph", made.recording)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: type("Stream", (), {"cuda_stream": 9})())
    return made


def runner(graphs: Graphs, insist: bool = True, **policy: Any) -> tuple[GraphRunner, list[Outcome]]:
    told: list[Outcome] = []
    return GraphRunner(graphs.program, 0, GraphPolicy(insist, **policy), told.append), told


def run(call: GraphRunner, x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """One call, checked."""
    before = total.clone()
    result, *inputs = call([x, total])
    assert torch.equal(result, x * 2)
    if inputs:
        same, end = inputs
        assert same is x
        assert torch.equal(end, x[3:])
        assert end.data_ptr() == x[3:].data_ptr()
    assert torch.equal(total, before + x)
    return result


@pytest.mark.parametrize("moves", [False, True])
def test_outputs_that_are_inputs_or_lie_in_them_are_the_caller_s(moves: bool, graphs: Graphs) -> None:
    graphs.returns_inputs = True
    call, _ = runner(graphs)
    x, total, kept = torch.randn(8), torch.zeros(8), []
    for _ in range(16):
        x = torch.randn(8) if moves else x.normal_()
        kept.append(x)
        run(call, x, total)
    assert len(graphs.made) == 1
    assert graphs.made[0].replays >= 8


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16])
def test_an_input_seen_as_another_type_is_not_recorded(dtype: torch.dtype, graphs: Graphs) -> None:
    graphs.view = dtype
    call, told = runner(graphs)
    x, total = torch.randn(8), torch.zeros(8)
    for _ in range(8):
        x.normal_()
        out, seen = call([x, total])
        assert torch.equal(out, x * 2)
        assert torch.equal(seen, x.view(dtype))
    assert [o.reason for o in told] == ["an output lies in an input of another type"]


def test_what_a_recording_really_keeps_counts(graphs: Graphs) -> None:
    graphs.host_seconds, graphs.gpu_ms, graphs.kept = 0.002, 2.0, 20 << 20
    shared = budget(100 << 20)
    call, _ = runner(graphs, insist=False, nbytes=3 << 20, budget=shared)
    x, total = torch.randn(8), torch.zeros(8)
    for _ in range(20):
        run(call, x, total)
    assert shared.taken == 20 << 20


def test_what_recordings_may_keep_grows_with_the_program(graphs: Graphs) -> None:
    graphs.host_seconds, graphs.gpu_ms = 0.002, 2.0
    most = 2 << 20
    shared = GraphBudget(lambda: most, lambda: 1 << 40)
    early, told = runner(graphs, insist=False, nbytes=3 << 20, budget=shared)
    x, total = torch.randn(8), torch.zeros(8)
    for _ in range(20):
        run(early, x, total)
    assert [o.reason for o in told] == ["it would keep 3 MiB, and recordings keep 0 of 2 MiB that they may"]
    most = 4 << 20
    later, _ = runner(graphs, insist=False, nbytes=3 << 20, budget=shared)
    for _ in range(20):
        run(later, x, total)
    assert (len(graphs.made), shared.taken) == (1, 3 << 20)


def test_a_collection_while_a_budget_is_asked_gives_shares_back() -> None:
    class Owner:
        def __init__(self) -> None:
            self.itself = self

    def collected(nbytes: int) -> int:
        gc.collect()
        return nbytes

    shared = GraphBudget(lambda: collected(8 << 20), lambda: collected(1 << 40))
    assert not shared.share(Owner()).take(5 << 20)
    assert not shared.share(Owner()).take(5 << 20)  # the first owner is gone by then
    with shared.guard:
        shared.share(Owner()).take(1)
        gc.collect()
    assert shared.taken <= 5 << 20


def test_pools_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def segment(device: int, pool: tuple[int, int], total: int, used: int) -> dict[str, Any]:
        return {"device": device, "segment_pool_id": pool, "total_size": total, "allocated_size": used}

    own = [segment(0, (0, 0), 20, 5), segment(0, (0, 0), 2, 2), segment(0, (0, 3), 20, 1), segment(1, (0, 0), 9, 9)]
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: own)
    assert pool_bytes(0) == {(0, 0): (22, 7), (0, 3): (20, 1)}


def test_a_recording_holds_no_input(graphs: Graphs) -> None:
    graphs.returns_inputs = True
    call, _ = runner(graphs)
    x, total = torch.randn(100_000), torch.zeros(100_000)
    for _ in range(8):
        run(call, x, total)
    assert len(graphs.made) == 1
    graphs.made[0].again = lambda: None  # the stand-in does
    gone = weakref.ref(x)
    del x
    assert gone() is None


def test_addresses_that_come_again_are_recorded_once(graphs: Graphs) -> None:
    call, told = runner(graphs)
    x, total = torch.randn(8), torch.zeros(8)
    for _ in range(10):
        x.normal_()
        run(call, x, total)
    assert len(graphs.made) == 1
    assert graphs.directly + graphs.made[0].replays == 10
    assert graphs.made[0].replays >= 6
    assert [o.reason for o in told] == ["asked for"]


def test_outputs_that_are_held_are_not_overwritten(graphs: Graphs) -> None:
    call, _ = runner(graphs)
    x, total = torch.randn(8), torch.zeros(8)
    held = []
    for _ in range(10):
        x.normal_()
        held.append((run(call, x, total), x.clone()))
    for result, given in held:
        assert torch.equal(result, given * 2)
    assert len(graphs.made) == 2


def test_threads_about_to_let_go_are_let_run(graphs: Graphs, monkeypatch: pytest.MonkeyPatch) -> None:
    call, _ = runner(graphs)
    x, total, held = torch.randn(8), torch.zeros(8), []
    monkeypatch.setattr(cuda_graphs.time, "sleep", lambda seconds: held.clear())
    for _ in range(10):
        held.append(run(call, x, total))
    assert len(graphs.made) == 1


def test_a_view_of_an_output_holds_it(graphs: Graphs) -> None:
    call, _ = runner(graphs)
    x, total = torch.randn(8), torch.zeros(8)
    held = []
    for _ in range(10):
        x.normal_()
        held.append((run(call, x, total)[2:4], x.clone()))
    for part, given in held:
        assert torch.equal(part, given[2:4] * 2)


def test_small_inputs_that_move_are_copied(graphs: Graphs) -> None:
    call, _ = runner(graphs)
    total, kept = torch.zeros(8), []
    for _ in range(20):
        kept.append(torch.randn(8))
        run(call, kept[-1], total)
    assert len(graphs.made) == 1
    assert graphs.made[0].replays >= 8


def test_recordings_made_anew_are_told_once(graphs: Graphs) -> None:
    call, told = runner(graphs)
    x, total, kept = torch.randn(8), torch.zeros(8), []
    for _ in range(6):
        run(call, x, total)
    for _ in range(20):
        kept.append(torch.randn(8))
        run(call, kept[-1], total)
    assert len(graphs.made) == 2
    assert [(o.taken, o.reason) for o in told] == [(True, "asked for")]


def test_large_inputs_that_move_are_never_copied(graphs: Graphs) -> None:
    call, told = runner(graphs)
    total, kept = torch.zeros(100_000), []
    for _ in range(40):
        kept.append(torch.randn(100_000))
        run(call, kept[-1], total)
    assert not graphs.made
    assert [o.taken for o in told] == [False]
    assert "do not come again" in told[0].reason


def test_inputs_that_are_written_are_never_copied(graphs: Graphs) -> None:
    call, told = runner(graphs, written=frozenset({1}))
    x, kept = torch.randn(8), []
    for _ in range(40):
        kept.append(torch.zeros(8))
        run(call, x, kept[-1])
        assert torch.equal(kept[-1], x)
    assert not graphs.made
    assert "do not come again" in told[0].reason


def test_at_most_eight_recordings(graphs: Graphs) -> None:
    call, told = runner(graphs, written=frozenset({0, 1}))
    total, inputs = torch.zeros(8), [torch.randn(8) for _ in range(12)]
    for _ in range(4):
        for x in inputs:
            run(call, x, total)
    assert len(graphs.made) == 8
    assert [(o.taken, o.reason) for o in told] == [
        (True, "asked for"),
        (False, "there are 8 recordings, and none is of the addresses of this call"),
    ]


def test_addresses_that_stop_coming_again_are_told_once(graphs: Graphs) -> None:
    call, told = runner(graphs, written=frozenset({0, 1}))
    x, total, kept = torch.randn(8), torch.zeros(8), []
    for _ in range(6):
        run(call, x, total)
    for _ in range(60):
        kept.append(torch.randn(8))
        run(call, kept[-1], total)
    assert [o.reason for o in told] == ["asked for", "the addresses of its inputs no longer come again"]
    replays = graphs.made[0].replays
    run(call, x, total)
    assert graphs.made[0].replays == replays + 1


def test_outputs_that_are_all_in_use_are_told_once(graphs: Graphs) -> None:
    call, told = runner(graphs)
    x, total = torch.randn(8), torch.zeros(8)
    held = [run(call, x, total) for _ in range(10)]
    assert len(graphs.made) == 2
    assert [o.reason for o in told] == ["asked for", "the outputs of 2 recordings of the same addresses are in use"]
    del held
    run(call, x, total)
    assert len(told) == 2


def test_a_torch_that_cannot_count_uses_is_told_once(graphs: Graphs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "CAN_COUNT_USES", False)
    call, told = runner(graphs)
    x, total = torch.randn(8), torch.zeros(8)
    for _ in range(10):
        run(call, x, total)
    assert not graphs.made
    assert [(o.taken, o.reason) for o in told] == [(False, "this torch does not say who holds an output")]


@pytest.mark.parametrize(("gpu_ms", "taken"), [(2.0, True), (20.0, False)])
def test_unasked_it_takes_a_gpu_that_waits(gpu_ms: float, taken: bool, graphs: Graphs) -> None:
    call, told = runner(graphs, insist=False)
    graphs.host_seconds, graphs.gpu_ms = 0.002, gpu_ms
    x, total = torch.randn(8), torch.zeros(8)
    for _ in range(30):
        run(call, x, total)
    (outcome,) = told
    assert outcome.taken == taken
    assert outcome.direct_us == pytest.approx(2000)
    assert bool(graphs.made) == taken


def budget(limit: int, free: int = 1 << 40) -> GraphBudget:
    return GraphBudget(lambda: limit, lambda: free)


def test_unasked_it_keeps_no_more_than_its_share(graphs: Graphs) -> None:
    graphs.host_seconds, graphs.gpu_ms = 0.002, 2.0
    shared = budget(5 << 20)
    (one, _), (other, told) = (runner(graphs, insist=False, nbytes=3 << 20, budget=shared) for _ in range(2))
    x, total = torch.randn(8), torch.zeros(8)
    for call in (one, other):
        for _ in range(20):
            run(call, x, total)
    assert (len(graphs.made), shared.taken) == (1, 3 << 20)
    assert [o.reason for o in told] == ["it would keep 3 MiB, and recordings keep 3 of 5 MiB that they may"]
    graphs.made.clear()
    del one, call
    assert shared.taken == 0
    for _ in range(50):
        run(other, x, total)
    assert shared.taken == 3 << 20


def test_a_budget_that_refuses_is_asked_ever_more_rarely(graphs: Graphs) -> None:
    graphs.host_seconds, graphs.gpu_ms = 0.002, 2.0
    asked: list[int] = []
    small = GraphBudget(lambda: asked.append(calls) or 1 << 20, lambda: 1 << 40)  # type: ignore[func-returns-value]
    call, told = runner(graphs, insist=False, nbytes=3 << 20, budget=small)
    x, total = torch.randn(8), torch.zeros(8)
    for calls in range(300):
        graphs.host_seconds = 0.002 if calls < 20 else 0.0
        run(call, x, total)
    assert [later - sooner for sooner, later in pairwise(asked)] == [17, 33, 65, 129]
    assert len(told) == 1


def test_what_has_recordings_replays_them_where_no_more_may_be_made(graphs: Graphs) -> None:
    graphs.host_seconds, graphs.gpu_ms = 0.002, 2.0
    call, told = runner(graphs, insist=False, nbytes=3 << 20, budget=budget(5 << 20))
    x, y, total = torch.randn(8), torch.randn(8), torch.zeros(8)
    for _ in range(20):
        run(call, x, total)
    (recording,) = graphs.made
    for _ in range(10):
        run(call, y, total)
    assert graphs.made == [recording]
    assert [o.taken for o in told] == [True, False]
    replays = recording.replays
    run(call, x, total)
    assert recording.replays == replays + 1


def test_unasked_it_leaves_memory_to_the_program(graphs: Graphs) -> None:
    graphs.host_seconds, graphs.gpu_ms = 0.002, 2.0
    call, told = runner(graphs, insist=False, nbytes=3 << 20, budget=budget(5 << 20, free=6 << 20))
    x, total = torch.randn(8), torch.zeros(8)
    for _ in range(20):
        run(call, x, total)
    assert not graphs.made
    assert [o.reason for o in told] == ["it would keep 3 MiB, and little more is free"]


def test_what_stops_gives_its_share_back(graphs: Graphs) -> None:
    graphs.host_seconds, graphs.gpu_ms = 0.002, 2.0
    shared = budget(5 << 20)
    call, _ = runner(graphs, insist=False, nbytes=3 << 20, budget=shared)
    graphs.error = "not while recording"
    x, total = torch.randn(8), torch.zeros(8)
    for _ in range(20):
        run(call, x, total)
    assert shared.taken == 0


@pytest.mark.parametrize("backward_ms", [2.0, 20.0, None])
def test_a_busy_forward_is_recorded_where_its_backward_waits(backward_ms: float | None, graphs: Graphs) -> None:
    pair = GraphPair()
    forward, told = runner(graphs, insist=False, half=PairedGraph(pair, is_backward=False))
    backward, _ = runner(graphs, insist=False, half=PairedGraph(pair, is_backward=True))
    x, y, total = torch.randn(8), torch.randn(8), torch.zeros(8)
    graphs.host_seconds = 0.002
    for _ in range(16 if backward_ms else 120):
        graphs.gpu_ms = 20.0
        run(forward, x, total)
        if backward_ms:
            graphs.gpu_ms = backward_ms
            run(backward, y, total)
    waits = backward_ms == 2.0
    assert pair.backward_waits is (None if backward_ms is None else waits)
    assert [o.taken for o in told] == [waits]
    assert bool(forward.recordings) == waits


def test_unasked_it_stops_where_replays_cost_as_much(graphs: Graphs) -> None:
    call, told = runner(graphs, insist=False)
    x, total = torch.randn(8), torch.zeros(8)
    slow = Graphs.Graph.replay

    def replay(graph: Graphs.Graph) -> None:
        graphs.now += 0.002
        slow(graph)

    Graphs.Graph.replay = replay  # type: ignore[method-assign]
    try:
        for _ in range(30):
            run(call, x, total)
    finally:
        Graphs.Graph.replay = slow  # type: ignore[method-assign]
    assert [o.taken for o in told] == [False]
    assert not call.recordings


def test_what_cannot_be_recorded_runs_directly(graphs: Graphs) -> None:
    graphs.error = "not while recording"
    call, told = runner(graphs)
    x, total = torch.randn(8), torch.zeros(8)
    for _ in range(10):
        run(call, x, total)
    (outcome,) = told
    assert not outcome.taken
    assert "not while recording" in outcome.reason


def test_inside_the_user_s_recording_the_program_itself_runs(graphs: Graphs, monkeypatch: pytest.MonkeyPatch) -> None:
    call, _ = runner(graphs)
    monkeypatch.setattr(cuda_graphs, "is_capturing", lambda: True)
    x, total = torch.randn(8), torch.zeros(8)
    for _ in range(10):
        run(call, x, total)
    assert graphs.directly == 10


def test_errors_of_earlier_calls_come_before_a_replay(graphs: Graphs) -> None:
    wrong: list[str] = []

    def poll() -> None:
        if wrong:
            raise IndexError(wrong.pop())

    call, _ = runner(graphs, poll=poll)
    x, total = torch.randn(8), torch.zeros(8)
    for _ in range(6):
        run(call, x, total)
    wrong.append("index out of range")
    with pytest.raises(IndexError, match="out of range"):
        call([x, total])
    run(call, x, total)
