from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from lamina.eager_comparison.clock import GpuTimer, HostTimer, Span, watch_backward
from lamina.eager_comparison.contest import Contest, Verdict
from lamina.eager_comparison.turns import Doubt, Turns, entry

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


class Clock:
    """Seconds that only the functions under test let pass."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.calls: list[str] = []

    def now(self) -> float:
        return self.seconds

    def taking(self, name: str, seconds: float, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*inputs: Any) -> Any:
            self.calls.append(name)
            self.seconds += seconds
            return function(*inputs)

        return run

    def slow(self, name: str, forward: float, backward: float) -> Callable[..., Any]:
        """A function of one tensor whose forward and backward let time pass."""
        clock = self

        class Double(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Any:
                clock.seconds += forward
                return x * 2

            @staticmethod
            def backward(ctx: Any, *gradients: Tensor) -> Any:
                clock.seconds += backward
                return gradients[0] * 2

        def run(x: Tensor) -> Any:
            clock.calls.append(name)
            return (Double.apply(x),)

        return run


class Told:
    """What a trial says."""

    def __init__(self) -> None:
        self.doubts: list[Doubt] = []
        self.verdicts: list[Verdict] = []

    def __call__(self, what: Doubt | Verdict, contest: Contest) -> None:
        if isinstance(what, Doubt):
            self.doubts.append(what)
        else:
            self.verdicts.append(what)


def made(
    clock: Clock,
    compiled: Callable[..., Any],
    captured: Callable[..., Any],
    told: Told,
    training: bool = False,
    wanted: bool = True,
) -> tuple[Turns, Callable[..., Any]]:
    turns = Turns(
        compiled,
        captured,
        training=training,
        timer=HostTimer(clock.now, clock.now, lambda: 0),
        contest=Contest(),
        warmup_calls=3,
        estimate=lambda: lambda seconds: Doubt(wanted, "asked for"),
        told=told,
    )
    return turns, entry(turns, "verdict")


def pair(clock: Clock, compiled: float, captured: float) -> tuple[Callable[..., Any], Callable[..., Any]]:
    return (
        clock.taking("compiled", compiled, lambda x: (x + 1,)),
        clock.taking("captured", captured, lambda x: (x + 1,)),
    )


@pytest.mark.parametrize(("captured", "winner"), [(0.5e-3, "captured"), (1.5e-3, "compiled"), (1e-3, "compiled")])
def test_each_call_is_made_once_and_the_faster_way_is_kept(captured: float, winner: str) -> None:
    clock, told = Clock(), Told()
    _, run = made(clock, *pair(clock, 1e-3, captured), told)
    x = torch.ones(3)
    for count in range(1, 300):
        (result,) = run(x)
        assert torch.equal(result, x + 1)
        assert len(clock.calls) == count
    assert clock.calls[:6] == ["compiled"] * 6
    assert clock.calls[6] == "captured"
    assert set(clock.calls[-100:]) == {winner}
    assert [v.other for v in told.verdicts] == [winner == "captured"]
    assert len(told.doubts) == 1
    lost = sum(captured - 1e-3 for name in clock.calls[:100] if name == "captured" and winner == "compiled")
    assert lost <= 0.02 * 100 * 1e-3 * 1.001


def test_afterwards_the_entry_is_the_winner() -> None:
    clock, told = Clock(), Told()
    compiled, captured = pair(clock, 1e-3, 0.5e-3)
    turns, run = made(clock, compiled, captured, told)
    while not told.verdicts:
        run(torch.ones(3))
    (cell,) = (c for c in run.__closure__ or ())
    assert cell.cell_contents is captured
    assert turns.compiled is captured  # nothing holds what was compiled any longer


def test_what_is_not_wanted_is_never_tried() -> None:
    clock, told = Clock(), Told()
    _, run = made(clock, *pair(clock, 1e-3, 0.5e-3), told, wanted=False)
    for _ in range(50):
        run(torch.ones(3))
    assert set(clock.calls) == {"compiled"}
    assert not told.verdicts


def test_an_error_of_eager_ends_it() -> None:
    clock, told = Clock(), Told()

    def refuses(x: Tensor) -> Any:
        raise torch.OutOfMemoryError("no memory")

    _, run = made(clock, pair(clock, 1e-3, 1e-3)[0], refuses, told)
    for _ in range(50):
        (result,) = run(torch.ones(3))
        assert torch.equal(result, torch.full((3,), 2.0))
    assert not told.verdicts[0].other
    assert not told.verdicts[0].sure
    assert "no memory" in told.verdicts[0].reason


def test_nothing_of_what_eager_made_lives_on_after_its_error() -> None:
    clock, told, alive = Clock(), Told(), []

    def refuses(x: Tensor) -> Any:
        made = x * 2
        alive.append(weakref.ref(made))
        raise torch.OutOfMemoryError("no memory")

    def compiled(x: Tensor) -> Any:
        assert not any(one() is not None for one in alive)
        if alive:
            raise IndexError("out of range")
        return (x + 1,)

    _, run = made(clock, clock.taking("compiled", 1e-3, compiled), refuses, told)
    while not told.verdicts and len(clock.calls) < 6:
        run(torch.ones(3))
    with pytest.raises(IndexError) as raised:
        run(torch.ones(3))
    assert raised.value.__context__ is None


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("what", ["estimate", "told", "mark", "watch_backward"])
def test_what_fails_in_comparing_is_no_error_of_the_callers(
    what: str, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*given: Any) -> Any:
        raise RuntimeError("cannot schedule new futures after shutdown")

    clock, told = Clock(), Told()
    ways = clock.slow("compiled", 1e-3, 1e-3), clock.slow("captured", 0.1e-3, 0.1e-3)
    turns, run = made(clock, *ways, told, training=training)
    if what == "mark":
        monkeypatch.setattr(Span, "taken", fails)
    elif what == "watch_backward":
        monkeypatch.setattr("lamina.eager_comparison.turns.watch_backward", fails)
    else:
        setattr(turns, what, fails)
    x = torch.ones(3, requires_grad=training)
    for count in range(1, 60):
        (result,) = run(x)
        assert torch.equal(result, torch.full((3,), 2.0))
        assert len(clock.calls) == count
        if training:
            result.sum().backward()
    if what != "watch_backward" or training:
        assert turns.current != turns.call
    if what in ("estimate", "mark"):
        assert "could not be compared" in told.verdicts[0].reason


def test_an_error_of_the_compiled_way_is_the_callers_and_ends_nothing() -> None:
    clock, told = Clock(), Told()
    fails = True

    def sometimes(x: Tensor) -> Any:
        if fails:
            raise IndexError("out of range")
        return (x + 1,)

    _, run = made(clock, clock.taking("compiled", 1e-3, sometimes), pair(clock, 1e-3, 0.5e-3)[1], told)
    for _ in range(5):
        with pytest.raises(IndexError):
            run(torch.ones(3))
    fails = False
    for _ in range(50):
        run(torch.ones(3))
    assert told.verdicts[0].other


@pytest.mark.parametrize(("forward", "backward", "other"), [(2e-3, 0.1e-3, True), (0.5e-3, 3e-3, False)])
def test_the_backward_counts(forward: float, backward: float, other: bool) -> None:
    clock, told = Clock(), Told()
    compiled, captured = clock.slow("compiled", 2e-3, 1e-3), clock.slow("captured", forward, backward)
    _, run = made(clock, compiled, captured, told, training=True)
    x = torch.ones(3, requires_grad=True)
    for _ in range(300):
        (result,) = run(x)
        clock.seconds += 5e-3  # what the program does between is nobody's
        (gradient,) = torch.autograd.grad(result.sum(), x)
        assert torch.equal(gradient, torch.full((3,), 2.0))
    assert [v.other for v in told.verdicts] == [other]


def test_a_backward_that_never_runs_is_not_waited_for() -> None:
    clock, told = Clock(), Told()
    ways = clock.slow("compiled", 1e-3, 1e-3), clock.slow("captured", 1e-3, 1e-3)
    _, run = made(clock, *ways, told, training=True)
    x = torch.ones(3, requires_grad=True)
    for _ in range(100):
        run(x)
    assert set(clock.calls) == {"compiled"}
    assert not told.verdicts[0].sure


def test_a_checkpoint_gets_the_same_way_twice() -> None:
    clock, told = Clock(), Told()
    ways = clock.slow("compiled", 1e-3, 1e-3), clock.slow("captured", 0.1e-3, 0.1e-3)
    _, run = made(clock, *ways, told, training=True)
    x = torch.ones(3, requires_grad=True)
    for _ in range(30):
        checkpoint(lambda t: run(t)[0], x, use_reentrant=False).sum().backward()
    assert set(clock.calls) == {"compiled"}
    assert "saved tensors" in told.verdicts[0].reason


def test_calls_within_or_beside_a_call_are_the_compiled_ways_and_do_not_count() -> None:
    clock, told = Clock(), Told()
    depth = 0

    def nested(x: Tensor) -> Any:
        nonlocal depth
        if depth < 1:
            depth += 1
            run(x)
            depth -= 1
        clock.seconds += 1e-3
        return (x + 1,)

    compiled = clock.taking("compiled", 0.0, nested)
    captured = clock.taking("captured", 0.0, nested)
    _, run = made(clock, compiled, captured, told)
    for _ in range(100):
        run(torch.ones(3))
    assert not told.verdicts  # no call was alone


def test_threads_share_a_trial() -> None:
    clock, told = Clock(), Told()
    _, run = made(clock, *pair(clock, 1e-3, 0.5e-3), told)
    wrong: list[Any] = []

    def work() -> None:
        for _ in range(400):
            (result,) = run(torch.ones(3))
            if not torch.equal(result, torch.full((3,), 2.0)):
                wrong.append(result)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(clock.calls) == 1600
    assert len(told.verdicts) <= 1


def test_deterministic_algorithms_end_turns_while_they_are_asked_for() -> None:
    clock, told = Clock(), Told()
    _, run = made(clock, *pair(clock, 1e-3, 0.5e-3), told)
    torch.use_deterministic_algorithms(True)
    try:
        for _ in range(50):
            run(torch.ones(3))
    finally:
        torch.use_deterministic_algorithms(False)
    assert set(clock.calls) == {"compiled"}


class Event:
    """An event of a GPU that has reached the first ``reached`` of them."""

    made: ClassVar[list[Event]] = []
    reached = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.made.append(self)
        self.number = len(self.made)

    def record(self, stream: object) -> None:
        assert stream == "the stream of 0"

    def query(self) -> bool:
        return self.number <= Event.reached

    def elapsed_time(self, end: Event) -> float:
        assert end.query()
        return float(end.number - self.number)


def test_times_of_a_gpu_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Event, "made", [])
    monkeypatch.setattr(Event, "reached", 0)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"the stream of {device}")
    clock, told = Clock(), Told()
    turns = Turns(
        *pair(clock, 1e-3, 1e-3),
        training=False,
        timer=GpuTimer(0),
        contest=Contest(),
        warmup_calls=3,
        estimate=lambda: lambda seconds: Doubt(True, "asked for"),
        told=told,
    )
    run = entry(turns, "verdict")
    for _ in range(20):
        run(torch.ones(3))
    assert len(Event.made) == 2  # nothing more is timed while the first time is not there
    assert not turns.contest.usual
    for _ in range(100):
        Event.reached = len(Event.made)
        run(torch.ones(3))
    assert turns.contest.usual[0].seconds == 1e-3
    assert not told.verdicts[0].other


@pytest.mark.parametrize("device", DEVICES)
def test_a_backward_is_marked_from_its_first_node_to_its_last(device: str) -> None:
    timer = HostTimer() if device == "cpu" else GpuTimer(0)
    x = torch.randn(64, 64, device=device, requires_grad=True)
    w = (torch.randn(64, 64, device=device, requires_grad=True) * 2).requires_grad_()
    span = Span(timer, timer.mark())
    y = torch.relu(x @ w)
    z = y.sum(0)
    span.end = timer.mark()
    assert watch_backward([x, w], [y, z], span)
    assert span.first is None
    (z * 2).sum().backward()
    if device == "cuda":
        torch.cuda.synchronize()
    taken = span.taken()
    assert taken is not None
    assert taken.seconds > 0
    assert not watch_backward([x, w], [x, w], Span(timer, timer.mark()))
    assert not watch_backward([x.detach()], [y.detach()], Span(timer, timer.mark()))
