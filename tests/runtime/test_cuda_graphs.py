"""When a region is recorded and replayed, with stand-ins for graphs that run on the CPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch

from lamina.runtime import cuda_graphs
from lamina.runtime.cuda_graphs import GraphPolicy, GraphRunner, Outcome


class Graphs:
    """Graphs that repeat their call on the recorded inputs, into the recorded outputs."""

    def __init__(self) -> None:
        self.current: Graphs.Graph | None = None
        self.made: list[Graphs.Graph] = []
        self.directly = 0
        self.host_seconds = 0.0
        self.gpu_ms = 0.0
        self.error = ""

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
        """Twice the first input; adds it to the second."""
        given = list(args)
        args.clear()
        if self.current is None:
            self.directly += 1
            time.sleep(self.host_seconds)
            given[1] += given[0]
            return (given[0] * 2,)
        if self.error:
            raise RuntimeError(self.error)
        out = torch.empty_like(given[0])

        def again() -> None:
            given[1].add_(given[0])
            out.copy_(given[0] * 2)

        self.current.again = again
        return (out,)

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
    monkeypatch.setattr(cuda_graphs, "_refusal", lambda outputs, inputs: "")
    monkeypatch.setattr(cuda_graphs, "_timer", made.timer)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graphs.Graph)
    monkeypatch.setattr(torch.cuda, "graph", made.recording)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: type("Stream", (), {"cuda_stream": 9})())
    return made


def runner(graphs: Graphs, insist: bool = True, **policy: Any) -> tuple[GraphRunner, list[Outcome]]:
    told: list[Outcome] = []
    return GraphRunner(graphs.program, 0, GraphPolicy(insist, **policy), told.append), told


def run(call: GraphRunner, x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """One call, checked."""
    before = total.clone()
    (result,) = call([x, total])
    assert torch.equal(result, x * 2)
    assert torch.equal(total, before + x)
    return result


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
    assert outcome.direct_us >= 2000
    assert bool(graphs.made) == taken


def test_unasked_it_stops_where_replays_cost_as_much(graphs: Graphs) -> None:
    call, told = runner(graphs, insist=False)
    x, total = torch.randn(8), torch.zeros(8)
    slow = Graphs.Graph.replay

    def replay(graph: Graphs.Graph) -> None:
        time.sleep(0.002)
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
