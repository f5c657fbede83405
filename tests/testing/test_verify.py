"""lamina.verify: a program, compiled, against eager in everything it leaves behind; what differs is found and named."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lamina
from lamina.extend import rule
from lamina.testing import torch_private
from tests.testing.test_first_call import line_of
from tests.testing.wrong_kernels import wrong_code


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Wrong kernels are kept from other tests."""
    monkeypatch.setenv("LAMINA_CACHE_DIR", str(tmp_path / "cache"))
    torch.compiler.reset()
    torch.manual_seed(0)
    yield
    torch.compiler.reset()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.drop = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        self.calls += 1
        y = self.drop(self.norm(self.linear(x)).relu())
        return {"y": y * scale, "row": x[0]}


def mutating(x: Tensor, rows: list[Tensor]) -> tuple[Tensor, Tensor]:
    x[1:].mul_(2)
    rows[0].sub_(x[0])
    return x.t(), rows[0].cos()


def raising(x: Tensor, i: int) -> Tensor:
    return x.exp()[i]


def step_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[Tensor], Tensor]:
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(x)["y"].square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


class Recording(Block):
    record = "a name that compiled functions have"


def _less_by_one(run: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: [t - 1 for t in run(*args)]


def values(report: Any) -> set[str]:
    return {v.name for v in report.values}


def test_a_module_in_training_is_as_in_eager_and_is_left_as_it_was() -> None:
    model, x = Block(), torch.randn(8, 6, requires_grad=True)
    model.linear.bias.grad = torch.ones(6)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    identities = {k: (id(v), v.data_ptr(), v.dtype) for k, v in (*model.named_parameters(), *model.named_buffers())}
    state = torch.get_rng_state()
    report = lamina.verify(model, x, scale=2.0)
    assert report, str(report)
    assert {"output['y']", "output['row']", "gradient of argument x", "gradient of linear.weight"} <= values(report)
    assert {"norm.running_mean", "calls", "linear.bias"} <= values(report)
    assert [region.region for region in report.regions] == ["Block0_forward", "Block0_backward"]
    assert any("numerics" in note for note in report.notes)
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    after = (*model.named_parameters(), *model.named_buffers())
    assert {k: (id(v), v.data_ptr(), v.dtype) for k, v in after} == identities
    assert x.grad is None
    assert model.linear.weight.grad is None
    assert model.linear.bias.grad is not None
    assert model.linear.bias.grad.tolist() == [1.0] * 6


def test_errors_are_measured_against_double_precision() -> None:
    report = lamina.verify(lambda x, w: (x @ w).sigmoid(), torch.randn(64, 64), torch.randn(64, 64))
    (output,) = (v for v in report.values if v.name == "output")
    assert output.eager is not None
    assert output.compiled is not None
    assert 0 < output.eager.largest < 1e-5
    assert 0 < output.compiled.largest < 1e-5


def test_writes_to_arguments_are_compared_and_not_made() -> None:
    x, rows = torch.randn(4, 5), [torch.randn(5)]
    kept = x.clone(), rows[0].clone()
    report = lamina.verify(mutating, x, rows)
    assert report, str(report)
    assert {"argument x", "argument rows", "output[0]"} <= values(report)
    assert torch.equal(x, kept[0])
    assert torch.equal(rows[0], kept[1])


def test_arguments_that_share_memory_do_so_in_every_run() -> None:
    whole = torch.randn(6, 4)
    report = lamina.verify(mutating, whole, [whole[0]])
    assert report, str(report)


@pytest.mark.parametrize("compiled_too", [False, True])
def test_a_bound_method_a_partial_and_a_compiled_function_are_verified(compiled_too: bool) -> None:
    model, x = Recording().eval(), torch.randn(3, 6)
    for function in (model, model.forward, functools.partial(model, scale=3.0), lambda x: model(x)["y"]):
        given = lamina.compile(function) if compiled_too and not isinstance(function, functools.partial) else function
        report = lamina.verify(given, x)
        assert report, str(report)
        assert any("linear.weight" in name for name in values(report))


def test_an_error_of_eagers_is_one_value() -> None:
    report = lamina.verify(raising, torch.randn(3), 7)
    assert report, str(report)


def test_a_training_step_with_an_optimizer_is_repeatable() -> None:
    model = Block().eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step, x = step_of(model, optimizer), torch.randn(4, 6)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    report = lamina.verify(step, x)
    assert report, str(report)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert not optimizer.state_dict()["state"]


def layered(x: Tensor, w: Tensor) -> Tensor:
    y = (x @ w).sigmoid()
    return (y @ w).tanh().sum(-1)


def test_a_wrong_kernel_is_named_in_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    names = wrong_code(monkeypatch, "tanh", "exp")
    report = lamina.verify(layered, torch.randn(7, 7, requires_grad=True), torch.randn(7, 7))
    assert not report
    assert report.first is not None
    assert report.first.step is not None
    assert report.first.step.kernel in names
    assert line_of(layered, "tanh") in report.first.step.place
    assert any(text.startswith("output:") for text in report.different)
    text = str(report)
    for part in ("output", "gradient of argument x", "layered0_forward", line_of(layered, "tanh"), "code generation"):
        assert part in text
    assert report.first.step.kernel in text.splitlines()[-1]
    assert all(len(line) <= 140 for line in text.splitlines()[:-1])


def test_a_wrong_gradient_is_found_and_its_kernel_named(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong_code(monkeypatch, "sub", "add")
    report = lamina.verify(layered, torch.randn(7, 7, requires_grad=True), torch.randn(7, 7, requires_grad=True))
    assert not report
    assert {text.split(":")[0] for text in report.different} == {"gradient of argument x", "gradient of argument w"}
    assert report.first is not None
    assert report.first.region == "layered0_backward"
    assert report.first.step is not None


def test_a_wrong_write_to_an_argument_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(state: Tensor, x: Tensor) -> None:
        state.add_(x.tanh())

    wrong_code(monkeypatch, "tanh", "exp")
    report = lamina.verify(write, torch.randn(5), torch.randn(5))
    assert [text.split(":")[0] for text in report.different] == ["argument state"]


def test_a_wrong_rewrite_is_no_kernels_fault() -> None:
    wrong = rule(lambda x: torch.sigmoid(x), lambda x: torch.tanh(x))
    report = lamina.verify(layered, torch.randn(7, 7), torch.randn(7, 7), options={"rules": (wrong,)})
    assert not report
    assert report.first is None
    assert all(region.ok for region in report.regions)
    assert wrong.name in report.rewrite
    assert line_of(layered, "sigmoid") in report.rewrite
    assert report.rewrite in str(report).splitlines()[-1]


def test_the_wrong_one_of_several_rewrites_is_named() -> None:
    right = rule(lambda x: torch.cos(x), lambda x: torch.sin(x + torch.pi / 2), name="right")
    wrong = rule(lambda x: torch.tanh(x), lambda x: torch.sin(x), name="wrong")

    def function(x: Tensor) -> Tensor:
        y = torch.cos(x)
        for _ in range(3):
            y = torch.cos(y)
        return torch.tanh(y) + torch.cos(y)

    report = lamina.verify(function, torch.randn(5), options={"rules": (right, wrong)})
    assert not report
    assert "'wrong'" in report.rewrite


def test_a_difference_without_kernels_and_rewrites_arises_before(monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("lamina.compile")
    real = module.compile_captured  # type: ignore[attr-defined]

    def one_less(*given: Any) -> Any:
        compiled = real(*given)
        return replace(compiled, run=_less_by_one(compiled.run))

    monkeypatch.setattr(module, "compile_captured", one_less)
    report = lamina.verify(layered, torch.randn(7, 7), torch.randn(7, 7))
    assert not report
    assert not report.rewrite
    assert "before kernels are made" in report.summary()


def test_one_function_may_be_verified_any_number_of_times() -> None:
    for columns in range(2, 22):
        report = lamina.verify(layered, torch.randn(3, columns), torch.randn(columns, columns))
        assert report, str(report)
        assert len(report.regions) == 1, columns


def test_without_gradients_none_are_compared() -> None:
    with torch.no_grad():
        report = lamina.verify(layered, torch.randn(7, 7, requires_grad=True), torch.randn(7, 7))
    assert report, str(report)
    assert not any(v.name.startswith("gradient of") and v.eager for v in report.values)


def test_what_does_not_run_in_double_precision_is_judged_by_its_digits() -> None:
    def only_single(x: Tensor) -> Tensor:
        if x.dtype is not torch.float32:
            raise TypeError(x.dtype)
        return x.exp().sum()

    report = lamina.verify(only_single, torch.ones(3))
    assert report, str(report)
    assert any("double precision" in note for note in report.notes)


def test_what_is_not_compiled_says_so() -> None:
    apart = torch.compiler.disable(lambda x: x + 1)
    report = lamina.verify(lambda x: apart(x), torch.ones(3))
    assert report, str(report)
    assert any("nothing of it was compiled" in note for note in report.notes)


def test_private_names_of_torch() -> None:
    with torch_private.compiled_anew():
        assert torch._dynamo.config.recompile_limit > 1000
    module = nn.Linear(2, 2)
    assert torch_private.original(lamina.compile(layered)) is layered
    assert torch_private.original(torch.compile(module)) is module
    assert torch_private.original(layered) is layered
