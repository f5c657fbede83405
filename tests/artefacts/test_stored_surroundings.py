"""What goes around compiled graphs in stored calls: results that lead to others, writes to inputs, grad modes."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lamina
from lamina.artefacts import store
from lamina.artefacts.front import stored_calls
from lamina.capture.frame_reasons import LOADED
from tests.aot import test_dependent_results as dependent

WATCHED = (
    "_copied_to_and_read_by_a_view", "_read_in_a_base_that_is_written_to", "_sine", "_chain", "_detached",
    "_written_between", "_same_object", "_several", "_input_and_result", "_norm_between", "_value_without_gradient",
)  # fmt: skip
"""Programs whose results depend on each other and that are not left to AOTAutograd."""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has loaded no kernel yet: one that comes from another folder of the cache is not stored again."""
    monkeypatch.setattr("lamina.runtime.library._LOADED", {})
    monkeypatch.setattr("lamina.runtime.library._LIBRARIES", {})


def _compiled(target: Any, cache: Path) -> Any:
    return lamina.compile(target, options={"capture": "own", "cache_dir": str(cache), "compare_eager": "off"})


def _loaded(target: Any, cache: Path, call: Callable[[Any], Any]) -> Any:
    """``target`` as another process has it of which ``call`` has stored the calls."""
    compiled = _compiled(target, cache)
    for _ in range(2):
        call(compiled)
    store = stored_calls(compiled)
    assert store is not None
    store.keep()
    assert not store.refused
    return _compiled(target, cache)


def _check_loaded(compiled: Any) -> None:
    decisions = compiled.record.decisions("capture")
    assert {d.reason.code for d in decisions} & {LOADED.number}, decisions


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize("name", WATCHED)
def test_results_that_depend_on_each_other_are_watched_in_stored_calls(name: str, cache: Path) -> None:
    program = getattr(dependent, name)
    compiled = _loaded(program, cache, lambda call: dependent._outcome(call, dependent._unwatched))
    for watch in dependent.WATCHES:
        found = dependent._outcome(compiled, watch)
        torch.testing.assert_close(found, dependent._outcome(program, watch), rtol=1e-3, atol=1e-5)
    _check_loaded(compiled)


def _switched(x: Tensor, y: Tensor) -> Tensor:
    made = x * y
    with torch.no_grad():
        factor = made.sin()
    return made * factor + y


def _apart(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x.sin() * 2, y.cos() + 1


def _one_twice(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    made = (x * y).exp()
    return made, made, x, made.detach()


def _after_nothing(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """As caches of keys and values begin in transformers."""
    return torch.cat([torch.tensor([]), x * y], -1), y.sin() + 2


@pytest.mark.parametrize("program", [_switched, _apart, _one_twice, _after_nothing])
def test_stored_calls_have_eagers_results_and_gradients(program: Callable[..., Any], cache: Path) -> None:
    def outcome(call: Callable[..., Any]) -> list[Any]:
        leaves = [torch.linspace(0.1, 1.0, 12).view(3, 4).requires_grad_() for _ in range(2)]
        results = call(leaves[0].tanh(), leaves[1] * 2)
        results = results if isinstance(results, tuple) else (results,)
        same = [[a is b for b in results] for a in results]
        sum((i + 1) * r.sum() for i, r in enumerate(results) if r.requires_grad).backward()
        return [*results, *(leaf.grad for leaf in leaves), same, [r.requires_grad for r in results]]

    compiled = _loaded(program, cache, outcome)
    torch.testing.assert_close(outcome(compiled), outcome(program))
    _check_loaded(compiled)


def test_the_history_of_one_input_is_not_freed_by_the_result_of_another(cache: Path) -> None:
    def outcome(call: Callable[..., Any]) -> list[Tensor | None]:
        leaves = [torch.linspace(0.1, 1.0, 6).requires_grad_() for _ in range(2)]
        first, second = leaves[0].exp(), leaves[1].exp()
        results = call(first, second)
        results[0].sum().backward()
        (results[1].sum() + second.sum()).backward()
        return [leaf.grad for leaf in leaves]

    compiled = _loaded(_apart, cache, outcome)
    torch.testing.assert_close(outcome(compiled), outcome(_apart))
    _check_loaded(compiled)


def _writes(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2).add_(y)
    y[1:] = x[:-1]
    return (x * y).relu()


@pytest.mark.parametrize("places", [(0, 8), (0, 3), (8, 0), (2, 0)])
def test_stored_calls_that_write_ask_how_their_inputs_share_memory(places: tuple[int, int], cache: Path) -> None:
    def outcome(call: Callable[..., Any], apart: bool = False) -> tuple[str, list[Any]]:
        memory = torch.arange(16.0)
        views = [memory[at : at + 6] for at in ((0, 8) if apart else places)]
        before = [view._version for view in views]
        try:
            result = call(*views)
        except RuntimeError as error:  # eager refuses some
            return str(error), [memory]
        return "", [result, memory, [view._version > b for view, b in zip(views, before, strict=True)]]

    compiled = _loaded(_writes, cache, lambda call: outcome(call, True))
    for apart in (True, False):
        (said, found), (says, wanted) = outcome(compiled, apart), outcome(_writes, apart)
        assert said == says
        torch.testing.assert_close(found, wanted)
        _check_loaded(compiled)


def test_a_stored_training_step_writes_statistics(cache: Path) -> None:
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3))
    x = torch.randn(2, 3, 8, 8)

    def outcome(call: Any, model: nn.Module) -> list[Any]:
        found = []
        for _ in range(2):
            model.zero_grad()
            call(x).square().sum().backward()
            found += [p.grad.clone() for p in model.parameters() if p.grad is not None]
            found += [b.clone() for b in model.buffers()]
        return found

    first, model, other = copy.deepcopy(whole), copy.deepcopy(whole), copy.deepcopy(whole)
    _loaded(first, cache, lambda call: outcome(call, first))
    compiled = _compiled(model, cache)
    torch.testing.assert_close(outcome(compiled, model), outcome(other, other), rtol=1e-3, atol=1e-5)
    _check_loaded(compiled)


def _sized(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    attended = torch.softmax(x @ y.t(), -1) @ y
    return attended.reshape(-1), x.mean(0) + y[-1], x * x.shape[0]


def test_calls_of_other_sizes_are_stored(cache: Path) -> None:
    def call(compiled: Callable[..., Any], size: int) -> Any:
        memory = torch.linspace(-1.0, 1.0, 4 * size + 4)
        return compiled(memory[: 4 * size].view(size, 4), memory.view(size + 1, 4).cos())

    sizes = (5, 7, 9, 1, 2)
    compiled = _loaded(_sized, cache, lambda own: [call(own, size) for size in sizes])
    for size in (9, 1, 5, 2, 7, 9):
        torch.testing.assert_close(call(compiled, size), call(_sized, size))
    torch.testing.assert_close(call(compiled, 12), call(_sized, 12))  # which nobody has asked for before
    decisions = compiled.record.decisions("capture")
    # One stands for all of them; which of those that fit a size of 1 is found first depends on their digests.
    assert 1 <= [d.reason.code for d in decisions].count(LOADED.number) <= 2
    assert not compiled.record.decisions("joint tracing")
    torch.testing.assert_close(call(compiled, 0), call(_sized, 0), equal_nan=True)


def test_a_process_stores_some_of_many_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_KEPT", 2)
    compiled = _compiled(_apart, tmp_path)
    for rank in (1, 2, 3, 4):
        compiled(torch.ones([2] * rank), torch.ones([2] * rank))
    found = stored_calls(compiled)
    assert found is not None
    found.keep()
    assert len(found.own) == 2
    assert [*found.refused] == ["2 of them are stored already"]


def test_static_caches_are_written_to_by_stored_calls(cache: Path) -> None:
    """A write by an index, which is an operator of ATen's among the calls that are made one by one."""

    def program(kept: Tensor, new: Tensor, at: Tensor) -> Tensor:
        kept.index_copy_(1, at, new)
        return torch.softmax(kept, 1) * 2

    def outcome(call: Callable[..., Any]) -> list[Tensor]:
        kept = torch.linspace(0.0, 1.0, 24).view(2, 6, 2)
        return [call(kept, torch.ones(2, 2, 2), torch.tensor([1, 4])), kept]

    compiled = _loaded(program, cache, outcome)
    torch.testing.assert_close(outcome(compiled), outcome(program))
    _check_loaded(compiled)


def test_the_collector_rests_while_a_stored_call_is_loaded(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is loaded stays: walking all objects of a process took a third of the time of a warm start."""
    found, usual = list[bool](), store.Store.found
    compiled = _loaded(_switched, cache, lambda call: call(torch.ones(3), torch.ones(3)))

    def asked(self: store.Store, *given: Any) -> Any:
        found.append(gc.isenabled())
        return usual(self, *given)

    monkeypatch.setattr(store.Store, "found", asked)
    before = gc.isenabled()
    compiled(torch.ones(3), torch.ones(3))
    assert found == [False]
    assert gc.isenabled() == before
    _check_loaded(compiled)
