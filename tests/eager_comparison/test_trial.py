from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import lamina
from lamina.eager_comparison import trial as module
from lamina.eager_comparison.clock import HostTimer
from lamina.eager_comparison.turns import Doubt, Turns
from lamina.eager_comparison.wanted import Estimate, Subject, estimate_of

CALLS = 80


class Clock:
    """Seconds: eager's calls take ``eager``, compiled ones ``compiled``, backwards nothing."""

    def __init__(self, eager: float, compiled: float = 1e-3) -> None:
        self.seconds, self.eager, self.compiled = 0.0, eager, compiled
        self.by_eager = 0

    def captured(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*inputs: Any) -> Any:
            self.by_eager += 1
            self.seconds += self.eager
            return function(*inputs)

        return run

    def turns(self, compiled: Callable[..., Any], captured: Callable[..., Any], **more: Any) -> Turns:
        def run(*inputs: Any) -> Any:
            self.seconds += self.compiled
            return compiled(*inputs)

        return Turns(run, captured, **more)


class AtOnce:
    """Threads that are done when they are asked."""

    def submit(self, function: Callable[..., Any], *given: Any) -> None:
        function(*given)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Clock]:
    """Graphs are all in doubt, and eager is five times as fast as compiled graphs."""
    torch.compiler.reset()
    made = Clock(0.2e-3)
    forward_of = module.forward_of
    monkeypatch.setattr(module, "HostTimer", lambda: HostTimer(lambda: made.seconds, lambda: made.seconds, lambda: 0))
    monkeypatch.setattr(module, "Turns", made.turns)
    monkeypatch.setattr(module, "forward_of", lambda gm: made.captured(forward_of(gm)))
    monkeypatch.setattr(module, "estimate_of", doubted)
    monkeypatch.setattr(module, "build_threads", AtOnce)
    monkeypatch.setenv("LAMINA_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("LAMINA_COMPARE_EAGER", "cpu")
    yield made
    torch.compiler.reset()


class Doubted(Estimate):
    """Of what has kernels, in doubt whatever it costs."""

    def doubt(self, seconds: float) -> Doubt:
        found = super().doubt(seconds)
        return Doubt(not self.refused, found.reason, found.facts)


def doubted(*given: Any) -> Estimate:
    found = estimate_of(*given)
    return Doubted(**{f.name: getattr(found, f.name) for f in fields(found)})


def decided(compiled: Any) -> list[tuple[str, bool]]:
    return [(d.kind, d.taken) for d in compiled.record.decisions() if d.kind in ("turns", "eager")]


def reasons(compiled: Any) -> str:
    return "; ".join(d.reason for d in compiled.record.decisions("turns"))


def norm(x: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-5)


def test_the_faster_way_runs_and_a_decision_says_so(clock: Clock) -> None:
    compiled = lamina.compile(norm)
    x = torch.randn(8, 32)
    for _ in range(CALLS):
        torch.testing.assert_close(compiled(x), norm(x))
    assert decided(compiled) == [("turns", True), ("eager", True)]
    verdict = compiled.record.decisions("eager")[-1]
    facts = dict(verdict.facts)
    assert 0 < facts["eager_us"] < facts["compiled_us"]
    assert facts["pairs"] == 6
    assert "eager is faster" in verdict.reason
    assert clock.by_eager > CALLS / 2


def test_the_slower_way_is_dropped(clock: Clock) -> None:
    clock.eager = 1.5e-3
    compiled = lamina.compile(norm)
    x = torch.randn(8, 32)
    for _ in range(400):
        compiled(x)
    assert decided(compiled) == [("turns", True), ("eager", False)]
    before = clock.by_eager
    for _ in range(20):
        compiled(x)
    assert clock.by_eager == before <= 6


def test_what_was_found_holds_in_later_compilations_without_kernels(clock: Clock) -> None:
    x = torch.randn(8, 32)
    for _ in range(CALLS):
        lamina.compile(norm)(x)
    torch.compiler.reset()
    first = lamina.compile(norm)
    for _ in range(CALLS):
        first(x)
    torch.compiler.reset()
    again = lamina.compile(norm)
    for _ in range(5):
        torch.testing.assert_close(again(x), norm(x))
    assert decided(again) == [("eager", True)]
    assert "found before" in again.record.decisions("eager")[0].reason
    assert not [s for s in again.record.stages if s.name == "plan"]
    other = lamina.compile(norm)
    other(torch.randn(9, 32))
    assert ("eager", True) not in decided(other)


def test_a_note_that_is_no_answer_is_no_answer(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.Cache, "note", lambda self, name: {"eager": "yes"})
    compiled = lamina.compile(norm)
    compiled(torch.randn(8, 32))
    assert [s for s in compiled.record.stages if s.name == "plan"]


def test_the_ways_differ_in_nothing_but_rounding(clock: Clock) -> None:
    base = torch.randn(6, 10)

    def several(x: Tensor, y: Tensor) -> Any:
        part = x[:, 1:5]
        turned = (x * y).t()
        return part, turned, x.to(torch.float64).sum(0), (x > 0), x, turned.argmax(-1), (x + 1).detach()

    compiled = lamina.compile(several)
    y = torch.randn(6, 10, requires_grad=True)
    for _ in range(CALLS):
        expected, found = several(base, y), compiled(base, y)
        for eager, ours in zip(expected, found, strict=True):
            torch.testing.assert_close(ours, eager)
            assert ours.stride() == eager.stride()
            assert ours.dtype == eager.dtype
            assert ours.requires_grad == eager.requires_grad
            assert ours._version == eager._version
            assert (ours._base is base) == (eager._base is base)
        assert found[4] is base
        found[1].sum().backward()
    assert decided(compiled) == [("turns", True), ("eager", True)]
    assert y.grad is not None
    torch.testing.assert_close(y.grad, base * CALLS, rtol=1e-4, atol=1e-4)


def test_results_without_gradients_are_views_of_inputs_or_of_nothing(clock: Clock) -> None:
    compiled = lamina.compile(lambda x: ((x * 2).view(4, 15), x[1:]))
    x = torch.randn(6, 10)
    with torch.no_grad():
        for _ in range(CALLS):
            doubled, part = compiled(x)
            assert doubled._base is None
            assert part._base is x
    assert ("eager", True) in decided(compiled)


def test_gradients_are_right_at_every_call(clock: Clock) -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32))
    compiled = lamina.compile(model)
    x = torch.randn(4, 16)
    model(x).square().sum().backward()
    expected = [p.grad for p in model.parameters()]
    for _ in range(CALLS):
        model.zero_grad()
        compiled(x).square().sum().backward()
        for parameter, gradient in zip(model.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, gradient, rtol=1e-3, atol=1e-4)
    assert ("turns", True) in decided(compiled)
    assert clock.by_eager > 0


@torch.library.custom_op("turns::noted", mutates_args=())
def noted(x: Tensor) -> Tensor:
    """An operation of the user's, which may do anything besides."""
    return x + 1


noted.register_fake(torch.empty_like)


def switched(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = x * 2
    return y + x


NORMS = {mode: nn.BatchNorm1d(32).train(mode == "training") for mode in ("training", "inference")}
CASES: dict[str, tuple[Callable[..., Any], dict[str, Any], str]] = {
    "random": (lambda x: F.dropout(x, 0.5) * 2, {}, "random"),
    "written input": (lambda x: x.add_(1) * 2, {}, "writes"),
    "statistics": (NORMS["training"], {}, "writes"),
    "the user's operation": (lambda x: noted(x) * 2, {}, "only computes"),
    "one of several views": (lambda x: (x * 2).chunk(2)[0], {}, "several views"),
    "results in one memory": (lambda x: ((y := x * 2), y.t()), {}, "share memory"),
    "a switch": (switched, {}, "only computes"),
    "numerics": (norm, {"numerics": "eager"}, "numerics"),
    "strict": (norm, {"strict": True}, "strict"),
    "verify": (norm, {"verify": True}, "verify"),
    "freeze": (norm, {"freeze": True}, "freeze"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_not_the_same_both_ways_is_never_run_by_eager(clock: Clock, case: str) -> None:
    function, options, reason = CASES[case]
    compiled = lamina.compile(function, options=options)
    for _ in range(CALLS):
        compiled(torch.ones(8, 32))
    assert clock.by_eager == 0
    assert reason in reasons(compiled)


def test_norms_that_only_read_their_statistics_are_compared(clock: Clock) -> None:
    compiled = lamina.compile(NORMS["inference"])
    with torch.no_grad():
        for _ in range(CALLS):
            compiled(torch.ones(8, 32))
    assert clock.by_eager > 0


def test_sizes_that_change_and_deterministic_algorithms_leave_graphs_compiled(clock: Clock) -> None:
    changing = lamina.compile(norm, dynamic=True)
    for count in range(CALLS):
        changing(torch.randn(4 + count % 7, 32))
    torch.use_deterministic_algorithms(True)
    try:
        fixed = lamina.compile(norm)
        for _ in range(CALLS):
            fixed(torch.ones(8, 32))
    finally:
        torch.use_deterministic_algorithms(False)
    assert clock.by_eager == 0
    assert "deterministic" in reasons(fixed)


def test_the_option_turns_it_off(clock: Clock) -> None:
    compiled = lamina.compile(norm, options={"compare_eager": "off"})
    for _ in range(CALLS):
        compiled(torch.ones(8, 32))
    assert clock.by_eager == 0
    assert decided(compiled) == []


def test_a_failure_of_the_estimates_leaves_the_graph_compiled(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: Any) -> Estimate:
        raise ZeroDivisionError

    monkeypatch.setattr(module, "estimate_of", fails)
    compiled = lamina.compile(norm)
    for _ in range(CALLS):
        compiled(torch.ones(8, 32))
    assert clock.by_eager == 0
    assert "not known" in reasons(compiled)


def many(x: Tensor) -> Tensor:
    return ((x + 1) * x - 2 * x).relu() * x + 3


@pytest.mark.parametrize(("function", "sure"), [(many, True), (norm, False)])
def test_estimates_are_sure_of_what_saves_much_and_runs_as_expected(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], sure: bool
) -> None:
    seen: list[Estimate] = []
    monkeypatch.setattr(module, "estimate_of", lambda *given: seen.append(estimate_of(*given)) or seen[-1])
    compiled = lamina.compile(function)
    for _ in range(5):
        compiled(torch.randn(512, 512))
    (estimate,) = seen
    as_expected = estimate.ours / estimate.speed
    assert not estimate.doubt(as_expected).wanted
    assert ("sure" in estimate.doubt(as_expected).reason) == sure
    assert estimate.doubt(5 * as_expected).wanted
    assert estimate.doubt(5 * as_expected).seconds == estimate.theirs / estimate.speed
    assert estimate_of(Subject(0, 0.0, 0, 0, torch.device("cpu"), False), []).refused


class Increased(TorchFunctionMode):
    """A mode that changes what a function computes."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result + 1 if getattr(func, "__name__", "") == "mul" else result


@pytest.mark.by_dynamo("a function mode keeps the own front end from interpreting", "False")
@pytest.mark.filterwarnings("ignore::lamina.errors.LaminaWarning")
@pytest.mark.parametrize("failing", [False, True])
def test_what_a_function_mode_does_is_done_once_either_way(
    clock: Clock, failing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.mul(x, 2).tanh()

    def fails(*given: Any, **more: Any) -> Any:
        raise RuntimeError("an error of the compiler's")

    if failing:
        monkeypatch.setattr(import_module("lamina.compile"), "compile_captured", fails)
    compiled = lamina.compile(function, dynamic=False)
    x = torch.randn(4, 8)
    with Increased():
        for _ in range(CALLS):
            torch.testing.assert_close(compiled(x), function(x))
    torch.testing.assert_close(compiled(x), function(x))
    assert failing or clock.by_eager


def test_a_failed_assertion_is_one_either_way(clock: Clock) -> None:
    def function(x: Tensor) -> Tensor:
        assert (x < 100).all(), "too large"
        return (x * 2).tanh()

    compiled = lamina.compile(function, dynamic=False)
    x = torch.randn(4, 8)
    for _ in range(CALLS):
        compiled(x)
    assert decided(compiled)[-1] == ("eager", True)
    with pytest.raises(AssertionError, match="too large"):
        compiled(x + 1000)
