"""What is kept of parameters and buffers is computed anew when one of them changes, and only then."""

from __future__ import annotations

import copy
import gc
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lamina
from lamina.extend import Backend, Passes

from .compiled import calls, check, decisions, folds, frozen

X = torch.randn(4, 16)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


class Model(nn.Module):
    """A parameter and a buffer with something to compute of each."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(16, 16))
        self.register_buffer("b", torch.randn(16))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.w * 2 + 1, torch.exp(self.b))


def test_it_is_computed_once() -> None:
    model = Model()
    compiled = frozen(model)
    check(compiled, model, X)
    check(compiled, model, torch.randn(4, 16))
    assert folds(compiled) == 1
    (decision,) = decisions(compiled, "freeze")
    assert decision.taken
    assert decision.facts == (("values", 2), ("bytes", 16 * 16 * 4 + 16 * 4))


def _step(model: Model, optimizer: Callable[[Any], torch.optim.Optimizer]) -> None:
    model(X).sum().backward()
    optimizer(model.parameters()).step()


def _written(model: Model) -> None:
    with torch.no_grad():
        model.b.mul_(2)


def _new_data(model: Model) -> None:
    model.w.data = torch.randn(16, 16)


def _there_and_back(model: Model) -> None:
    """Other values, which may well come to lie where the old ones did."""
    model.double()
    model.w.data.mul_(3)
    model.float()


def _loaded(model: Model) -> None:
    model.load_state_dict({k: torch.randn_like(v) for k, v in model.state_dict().items()})


def _assigned(model: Model) -> None:
    model.load_state_dict({k: torch.randn_like(v) for k, v in model.state_dict().items()}, assign=True)


def _other_parameter(model: Model) -> None:
    model.w = nn.Parameter(torch.randn(16, 16))


def _initialised(model: Model) -> None:
    nn.init.normal_(model.w)


CHANGES: dict[str, Callable[[Model], None]] = {
    "sgd": lambda m: _step(m, lambda p: torch.optim.SGD(p, 0.1)),
    "fused adamw": lambda m: _step(m, lambda p: torch.optim.AdamW(p, 0.1, fused=True)),
    "fused sgd": lambda m: _step(m, lambda p: torch.optim.SGD(p, 0.1, fused=True)),
    "foreach adamw": lambda m: _step(m, lambda p: torch.optim.AdamW(p, 0.1, foreach=True)),
    "in place": _written,
    "another storage": _new_data,
    "there and back": _there_and_back,
    "load_state_dict": _loaded,
    "load_state_dict with assign": _assigned,
    "another parameter": _other_parameter,
    "init": _initialised,
}


@pytest.mark.sampled(one_in=6)
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(change: str) -> None:
    model = Model()
    compiled = frozen(model)
    check(compiled, model, X)
    CHANGES[change](model)
    check(compiled, model, X)
    assert folds(compiled) == 2


def test_what_torch_does_not_count_is_seen_after_thaw() -> None:
    model, other = Model(), Model()
    compiled = frozen(model)
    check(compiled, model, X)
    model.w.data.mul_(3)
    with torch.no_grad():
        assert not torch.allclose(compiled(X), model(X))
    assert lamina.thaw(other) == 0
    assert lamina.thaw(model) == 2
    check(compiled, model, X)
    assert lamina.thaw() >= 2


def test_thaw_takes_modules_that_have_no_memory_yet_and_nothing_else() -> None:
    model = Model()
    compiled = frozen(model)
    check(compiled, model, X)
    assert lamina.thaw(nn.Sequential(model, nn.LazyLinear(3))) == 2
    for wrong in ("model", model.forward, list(model.parameters())):
        with pytest.raises(lamina.BadArgument, match=f"thaw was given a {type(wrong).__name__}"):
            lamina.thaw(wrong)  # type: ignore[arg-type]


def test_an_optimizer_step_can_be_compiled_beside_it() -> None:
    model = Model()
    compiled = frozen(model)
    check(compiled, model, X)
    optimizer = torch.optim.AdamW(model.parameters(), 0.1, fused=True)
    model(X).sum().backward()
    step = torch.compile(optimizer.step, backend="eager")
    for _ in range(2):
        step()
        check(compiled, model, X)
    assert folds(compiled) == 3


def test_modules_that_share_a_graph_keep_their_own_results() -> None:
    models = [Model() for _ in range(3)]
    compiled = [frozen(model) for model in models]
    for _ in range(2):
        for one, model in zip(compiled, models, strict=True):
            check(one, model, X)
    assert sum(folds(one) for one in compiled) == 3


def test_kept_results_go_with_the_parameters() -> None:
    model = Model()
    compiled = frozen(copy.deepcopy(model))
    with torch.no_grad():
        compiled(X)
    assert lamina.thaw(compiled) == 2
    with torch.no_grad():
        compiled(X)
    with torch.no_grad():
        compiled.w.data = torch.zeros(16, 16)  # the old memory is free: nothing computed from it is kept
    gc.collect()
    assert lamina.thaw() == 0


def test_running_statistics_that_eager_updates_are_seen() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16)).eval()
    compiled = frozen(model)
    check(compiled, model, X)
    version = model[1].running_mean._version
    model.train()
    with torch.no_grad():
        model(torch.randn(64, 16) * 3 + 5)
    model.eval()
    assert model[1].running_mean._version == version  # why versions alone do not do
    check(compiled, model, X)
    assert folds(compiled) == 2


def test_training_between_evaluations() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    compiled = frozen(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(3):
        model.train()
        for _ in range(2):
            optimizer.zero_grad()
            compiled(torch.randn(32, 16)).square().mean().backward()
            optimizer.step()
        model.eval()
        check(compiled, model, X, factor=10)
    assert folds(compiled) == 3


def test_gradients_are_left_alone_with_a_reason() -> None:
    model = Model()
    compiled, twin = frozen(model), copy.deepcopy(model)
    compiled(X).sum().backward()
    twin(X).sum().backward()
    torch.testing.assert_close(model.w.grad, twin.w.grad)
    (decision,) = decisions(compiled, "freeze")
    assert not decision.taken
    assert "no_grad" in decision.reason


def test_nothing_changes_without_the_option() -> None:
    compiled = lamina.compile(Model(), backend=calls)
    with torch.no_grad():
        compiled(X)
    assert decisions(compiled, "freeze") == []


def test_parameters_made_in_inference_mode_are_never_kept() -> None:
    with torch.inference_mode():
        model = Model()
        compiled = frozen(model)
        with pytest.warns(UserWarning, match="have no version"):
            compiled(X)
        model.w.mul_(3)
        torch.testing.assert_close(compiled(X), model(X))


def test_inference_mode_with_ordinary_parameters() -> None:
    model = Model()
    compiled = frozen(model)
    with torch.inference_mode():
        torch.testing.assert_close(compiled(X), model(X))
    check(compiled, model, X)
    with torch.no_grad():
        model.w.mul_(2)
    with torch.inference_mode():
        torch.testing.assert_close(compiled(X), model(X))


class Cache(nn.Module):
    """A buffer that the graph writes to is no constant; what it returns is the caller's."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(16, 16))
        self.register_buffer("seen", torch.zeros(16))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        doubled = self.w @ self.w
        total = x @ (self.seen.exp()[:, None] * self.w)
        self.seen.add_(1)
        return total, doubled, (self.w @ self.w.T)[0]


def test_written_buffers_and_returned_values() -> None:
    model, twin = Cache(), Cache()
    twin.load_state_dict(model.state_dict())
    compiled = frozen(model)
    with torch.no_grad():
        for _ in range(3):
            ours, eager = compiled(X), twin(X)
            torch.testing.assert_close(ours, eager)
            ours[1].zero_()
            ours[2].zero_()


def test_a_buffer_that_changes_at_every_call_is_said() -> None:
    model = Model()
    compiled = frozen(model)

    def changing() -> None:
        for _ in range(20):
            model.b.add_(1)
            compiled(X)

    with torch.no_grad(), pytest.warns(UserWarning, match="change at every call"):
        changing()


def test_graph_breaks_fold_by_themselves() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Model(), Model()

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            torch._dynamo.graph_break()
            return self.second(x)

    model = Broken()
    compiled = lamina.compile(model, backend=calls, options={"freeze": True})
    check(compiled, model, X, factor=100)
    with torch.no_grad():
        model.second.w.zero_()
    check(compiled, model, X, factor=100)
    assert folds(compiled) == 3


def test_threads() -> None:
    model = Model()
    compiled = frozen(model)
    check(compiled, model, X)
    with torch.no_grad():
        model.w.mul_(2)
        wanted = model(X)
    wrong: list[Tensor] = []

    def call() -> None:
        with torch.no_grad():
            for _ in range(20):
                result = compiled(X)
                if not torch.allclose(result, wanted, rtol=1e-5, atol=1e-5):
                    wrong.append(result)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert folds(compiled) == 2


def test_weights_cast_by_autocast_are_kept() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16))
    compiled = frozen(model)

    def both() -> tuple[Tensor, Tensor]:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            return compiled(X), model(X)

    torch.testing.assert_close(*both(), rtol=2e-2, atol=2e-2)
    (decision,) = decisions(compiled, "freeze")
    assert dict(decision.facts)["values"] == 4
    with torch.no_grad():
        model[0].weight.mul_(-1)
    torch.testing.assert_close(*both(), rtol=2e-2, atol=2e-2)
    assert folds(compiled) == 2


def test_backends_of_captured_graphs_say_that_nothing_is_kept() -> None:
    backend = Backend("as captured", lambda gm, inputs: gm.forward, graph="torch")
    compiled = lamina.compile(Model(), backend=backend, options={"freeze": True})
    with torch.no_grad():
        compiled(X)
    (decision,) = decisions(compiled, "freeze")
    assert not decision.taken
    assert "as captured" in decision.reason


def test_passes_of_ones_own_run_before_the_cut() -> None:
    seen: list[int] = []

    def counted(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
        seen.append(len(gm.graph.find_nodes(op="call_function", target=torch.ops.aten.exp.default)))
        return gm

    model = Model()
    compiled = frozen(model, passes=Passes(lowered=counted))
    check(compiled, model, X)
    assert seen == [1]


def test_kernels_read_kept_results() -> None:
    model = Model()
    compiled = lamina.compile(model, options={"freeze": True, "strict": True})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(compiled, model, X)
        with torch.no_grad():
            model.w.mul_(2)
        check(compiled, model, X)
    assert folds(compiled) == 2
