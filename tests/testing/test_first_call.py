"""verify="first": the first call of each region is held against its graph, and a wrong kernel is found and named."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import lamina
from lamina.base.region_check import RegionCheck
from tests.testing.wrong_kernels import wrong_code, wrong_plan

FIRST = {"verify": "first"}


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Wrong kernels are kept from other tests."""
    monkeypatch.setenv("LAMINA_CACHE_DIR", str(tmp_path / "cache"))
    torch.compiler.reset()
    torch.manual_seed(0)
    yield
    torch.compiler.reset()


def checks(compiled: Any) -> list[RegionCheck]:
    return [s.value for s in compiled.record.stages if isinstance(s.value, RegionCheck)]


def wrong_regions(compiled: Any) -> list[RegionCheck]:
    return [check for check in checks(compiled) if not check.ok]


def line_of(function: Callable[..., Any], text: str) -> str:
    """``file:line`` of the first line of the function with this text."""
    code = function.__code__
    lines = Path(code.co_filename).read_text(encoding="utf-8").splitlines()
    number = next(n for n in range(code.co_firstlineno, len(lines)) if text in lines[n - 1])
    return f"{Path(code.co_filename).name}:{number}"


def two_kernels(x: Tensor, w: Tensor) -> Tensor:
    y = torch.sigmoid(x) * 2
    z = y @ w
    return z.tanh() + x.erf()


def test_a_wrong_kernel_is_named_with_its_line_and_its_file_and_aten_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    (names, x, w) = (wrong_code(monkeypatch, "tanh", "exp"), torch.randn(8, 8), torch.randn(8, 8))
    compiled = lamina.compile(two_kernels, options=FIRST)
    with pytest.warns(lamina.LaminaWarning, match="lamina runs a region as ATen calls") as told:
        first = compiled(x, w)
    second = compiled(x + 1, w)
    torch.testing.assert_close(first, two_kernels(x, w))
    torch.testing.assert_close(second, two_kernels(x + 1, w))
    (found,) = wrong_regions(compiled)
    assert found.step is not None
    assert found.step.kernel == names[0]
    assert found.step.stage == "code generation"
    assert line_of(two_kernels, "tanh") in found.step.place
    assert names[0] in Path(found.step.file).read_text(encoding="utf-8")
    (decision,) = compiled.record.decisions("verify")
    assert not decision.taken
    assert decision.subject == (found.region, names[0])
    assert sum("ATen calls" in str(w.message) for w in told) == 1
    assert names[0] in str(told[0].message)
    assert found.error > 1000 * found.eager_error


def test_the_first_of_two_wrong_kernels_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [*wrong_code(monkeypatch, "tanh", "exp")]
    others = wrong_code(monkeypatch, "sigmoid", "exp")
    compiled = lamina.compile(two_kernels, options=FIRST)
    with pytest.warns(lamina.LaminaWarning):
        compiled(torch.randn(8, 8), torch.randn(8, 8))
    (found,) = wrong_regions(compiled)
    assert found.step is not None
    assert [found.step.kernel] == others[:1] != names
    assert line_of(two_kernels, "sigmoid") in found.step.place


def test_a_wrong_loop_nest_is_told_from_wrong_code(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong_plan(monkeypatch, "tanh", "exp")
    compiled = lamina.compile(two_kernels, options=FIRST)
    with pytest.warns(lamina.LaminaWarning):
        compiled(torch.randn(8, 8), torch.randn(8, 8))
    (found,) = wrong_regions(compiled)
    assert found.step is not None
    assert found.step.stage == "lowering"
    assert line_of(two_kernels, "tanh") in found.step.place


def trained(x: Tensor, w: Tensor) -> Tensor:
    return (torch.nn.functional.silu(x) @ w).tanh().sum(-1)


def test_a_wrong_kernel_of_the_backward_is_named_and_gradients_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = torch.randn(8, 6, requires_grad=True), torch.randn(6, 5, requires_grad=True)
    wanted = torch.autograd.grad(trained(x, w).square().sum(), (x, w))
    compiled = lamina.compile(trained, options=FIRST)
    real = compiled(x, w)
    names = wrong_code(monkeypatch, "sub", "add")  # the backward is compiled now
    with pytest.warns(lamina.LaminaWarning, match="backward"):
        got = torch.autograd.grad(real.square().sum(), (x, w))
    torch.testing.assert_close(got, wanted)
    assert [c.region for c in checks(compiled) if c.ok] == ["trained0_forward"]
    (found,) = wrong_regions(compiled)
    assert found.region == "trained0_backward"
    assert found.step is not None
    assert found.step.kernel == names[0]
    assert "test_first_call.py" in found.step.place


def updating(state: Tensor, x: Tensor) -> Tensor:
    state.mul_(0.5).add_(x.tanh())
    return state.sum(-1)


@pytest.mark.parametrize("dynamic", [False, True])
def test_an_input_that_a_wrong_kernel_wrote_to_is_set_right(dynamic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    names = wrong_code(monkeypatch, "tanh", "exp")
    state, x = torch.randn(7, 9), torch.randn(7, 9)
    eager, mine = state.clone(), state.clone()
    compiled = lamina.compile(updating, dynamic=dynamic, options=FIRST)
    wanted = updating(eager, x)
    with pytest.warns(lamina.LaminaWarning, match=r"output 0|afterwards"):
        got = compiled(mine, x)
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(mine, eager)
    torch.testing.assert_close(compiled(mine, x), updating(eager, x))
    torch.testing.assert_close(mine, eager)
    (found,) = wrong_regions(compiled)
    assert found.step is not None
    assert found.step.kernel == names[0]
    assert line_of(updating, "tanh") in found.step.place


def test_only_the_written_input_may_be_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(state: Tensor, x: Tensor) -> Tensor:
        state.copy_(x.tanh())
        return x.sigmoid()

    wrong_code(monkeypatch, "tanh", "exp")
    state, x = torch.zeros(5, 9), torch.randn(5, 9)
    compiled = lamina.compile(function, options=FIRST)
    with pytest.warns(lamina.LaminaWarning, match="input . afterwards"):
        compiled(state, x)
    torch.testing.assert_close(state, x.tanh())


def test_strict_raises_and_names_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    names = wrong_code(monkeypatch, "tanh", "exp")
    compiled = lamina.compile(two_kernels, options={**FIRST, "strict": True})
    with pytest.raises(lamina.StageFailed, match=r"two_kernels0_inference: output 0: .* kernel ") as raised:
        compiled(torch.randn(8, 8), torch.randn(8, 8))
    assert names[0] in str(raised.value)


def drawing(x: Tensor, w: Tensor) -> Tensor:
    return torch.nn.functional.dropout(x @ w, 0.5).cumsum(-1) + torch.rand_like(x)


def right(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = torch.nn.functional.layer_norm(x @ w, (8,))
    return y.argmax(-1), torch.stack([y, x]).transpose(0, 1), y.to(torch.bfloat16).softmax(-1)


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("function", [two_kernels, trained, drawing, right])
@pytest.mark.parametrize("numerics", ["fast", "eager"])
def test_right_kernels_are_kept(function: Callable[..., Any], numerics: str) -> None:
    """Results and the state of the generator are those of the same program unverified, and nothing runs by ATen."""
    x, w = torch.randn(8, 8, requires_grad=True), torch.randn(8, 8)
    results = []
    for options in ({}, FIRST):
        compiled = lamina.compile(function, options={**options, "strict": True, "numerics": numerics})
        torch.manual_seed(3)
        results.append([compiled(x, w), compiled(x, w), torch.get_rng_state()])
    torch.testing.assert_close(*results, rtol=0, atol=0, equal_nan=True)
    assert checks(compiled)
    assert all(check.ok and check.values for check in checks(compiled))
    assert all(d.taken for d in compiled.record.decisions("verify"))
    assert not compiled.record.decisions("fallback")


def test_an_error_that_eager_raises_too_is_passed_on() -> None:
    compiled = lamina.compile(lambda x, i: x.exp()[i], options=FIRST)
    with pytest.raises(IndexError):
        compiled(torch.randn(4), torch.tensor([5]))
    torch.testing.assert_close(compiled(torch.zeros(4), torch.tensor([3])), torch.ones(1))
    assert all(check.ok for check in checks(compiled))


def test_a_region_that_raises_where_its_graph_does_not_runs_by_aten(monkeypatch: pytest.MonkeyPatch) -> None:
    def backend(gm: Any, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            raise ArithmeticError("no")

        return run

    compiled = lamina.compile(two_kernels, backend=backend, options=FIRST)
    x, w = torch.randn(8, 8), torch.randn(8, 8)
    with pytest.warns(lamina.LaminaWarning, match="raises ArithmeticError"):
        torch.testing.assert_close(compiled(x, w), two_kernels(x, w))
    torch.testing.assert_close(compiled(x, w), two_kernels(x, w))


def test_a_wrong_backend_is_told_by_region() -> None:
    def backend(gm: Any, inputs: Any) -> Any:
        return lambda *args: [t * 1.01 for t in gm.forward(*args)]

    compiled = lamina.compile(two_kernels, backend=backend, options=FIRST)
    x, w = torch.randn(8, 8), torch.randn(8, 8)
    with pytest.warns(lamina.LaminaWarning, match="no single step"):
        torch.testing.assert_close(compiled(x, w), two_kernels(x, w))
    assert [check.step for check in wrong_regions(compiled)] == [None]


def test_each_compiled_function_checks_graphs_of_its_own() -> None:
    first, second = lamina.compile(trained, options=FIRST), lamina.compile(trained, options=FIRST)
    for compiled in (first, second):
        compiled(torch.randn(3, 4), torch.randn(4, 5))
    assert len(checks(first)) == len(checks(second)) == 1


def test_the_environment_may_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, value in (("first", "first"), ("1", True), ("0", False)):
        monkeypatch.setenv("LAMINA_VERIFY", text)
        assert lamina.Options.from_environment().verify == value
        assert type(lamina.Options.from_environment().verify) is type(value)
    monkeypatch.setenv("LAMINA_VERIFY", "last")
    with pytest.raises(lamina.UnknownOption, match="LAMINA_VERIFY"):
        lamina.Options.from_environment()
    monkeypatch.delenv("LAMINA_VERIFY")
    for wrong in (1, "last", None, "True"):
        with pytest.raises(lamina.UnknownOption, match="verify"):
            lamina.Options().replace(verify=wrong)


def test_what_differs_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong_code(monkeypatch, "tanh", "exp")
    compiled = lamina.compile(two_kernels, options=FIRST)
    with pytest.warns(lamina.LaminaWarning):
        compiled(torch.randn(8, 8), torch.randn(8, 8))
    (found,) = wrong_regions(compiled)
    assert re.fullmatch(r"two_kernels0_inference: output 0: [^\n]*; the first that differs: kernel [^\n]*", str(found))
