"""An exception inside any stage of Lamina: the program goes on without it, with one warning and a decision."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from torch import Tensor

import lamina
from lamina.base import recovery

STAGES = (
    "lamina.compile.Rewriting",
    "lamina.compile.willing",
    "lamina.compile.begin",
    "lamina.compile.compile_captured",
    "lamina.compile.freeze",
    "lamina.compile.run_region",
    "lamina.rewrite.rewriting.aten_form",
    "lamina.rewrite.rewriting.run_rules",
    "lamina.aot.run.trace_joint",
    "lamina.aot.graph_compiler.partition",
    "lamina.aot.joint_function.training_function",
    "lamina.compile.lower",
    "lamina.compile.fuse",
    "lamina.backends.kernels.cpu_device",
    "lamina.backends.cpu.make_plan",
    "lamina.backends.cpu.emit_host",
    "lamina.backends.cpu.emit",
    "lamina.backends.cpu.prelude",
    "lamina.backends.cpu.chosen_compiler",
    "lamina.backends.cpu.build_together",
    "lamina.backends.cpu.load_program",
    "lamina.capture.dynamo.guard_empty_hooks",
    "lamina.capture.dynamo.guard_unguarded",
    "lamina.capture.dynamo.serve_any_hooks",
    "lamina.aot.joint_function.without_autocast",
)
ERRORS = (KeyError, AttributeError, SyntaxError, AssertionError, RecursionError, MemoryError, OSError, lamina.InvalidIR)


def function(x: Tensor, w: Tensor) -> Tensor:
    return torch.nn.functional.silu(x @ w).sum(-1) * x.sigmoid().amax()


def gradients(run: Callable[..., Tensor]) -> list[Tensor]:
    torch.manual_seed(0)
    x, w = torch.randn(6, 5, requires_grad=True), torch.randn(5, 7, requires_grad=True)
    out = run(x, w)
    out.sum().backward()
    return [out.detach(), x.grad, w.grad]  # type: ignore[list-item]


def fail_at(place: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what stands at ``place``, a module and a name in it, raise when it is called."""

    def fail(*args: Any, **kwargs: Any) -> NoReturn:
        raise error("out of luck\r\n")

    module, _, name = place.rpartition(".")
    monkeypatch.setattr(importlib.import_module(module), name, fail)


@pytest.fixture(autouse=True)
def anew(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compiler.reset()
    monkeypatch.setattr("lamina.backends.caches._warned", set())
    monkeypatch.setattr(recovery, "_told", set())


@pytest.mark.by_dynamo(
    "breaks functions that Dynamo's way calls",
    "lamina.capture.dynamo.guard_empty_hooks",
    "lamina.capture.dynamo.guard_unguarded",
    "lamina.capture.dynamo.serve_any_hooks",
)
@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("place", STAGES)
def test_the_program_goes_on(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    error = ERRORS[STAGES.index(place) % len(ERRORS)]
    fail_at(place, error, monkeypatch)
    compiled = lamina.compile(function)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = gradients(compiled)
    torch.testing.assert_close(found, gradients(function))
    reasons = [d.reason for d in compiled.record.decisions() if not d.taken or d.kind == "eager"]
    assert any("out of luck" in reason for reason in reasons), reasons
    ours = [str(w.message) for w in told if issubclass(w.category, lamina.LaminaWarning)]
    assert place.endswith(".trace_joint") or any("out of luck" in text for text in ours), ours
    assert not any("\r" in text or "\n" in text for text in ours)


@pytest.mark.by_dynamo(
    "breaks functions that Dynamo's way calls",
    "lamina.capture.dynamo.guard_empty_hooks",
    "lamina.capture.dynamo.guard_unguarded",
    "lamina.capture.dynamo.serve_any_hooks",
)
@pytest.mark.parametrize("place", [p for p in STAGES if not p.endswith((".trace_joint", ".freeze"))])
def test_strict_raises(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_at(place, KeyError, monkeypatch)
    with pytest.raises(lamina.LaminaError, match="out of luck"):
        gradients(lamina.compile(function, options={"strict": True}))


@pytest.mark.parametrize("place", ["lamina.compile.run_region", "lamina.compile.freeze"])
def test_a_backward_compiled_when_it_is_called_may_fail(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = getattr(importlib.import_module("lamina.compile"), place.rpartition(".")[2]), []

    def fails_later(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        if len(calls) > 1:
            raise KeyError("out of luck")
        return real(*args, **kwargs)

    monkeypatch.setattr(importlib.import_module("lamina.compile"), place.rpartition(".")[2], fails_later)
    with pytest.warns(lamina.LaminaWarning, match="out of luck"):
        found = gradients(lamina.compile(function))
    assert len(calls) > 1
    torch.testing.assert_close(found, gradients(function))


def test_a_region_whose_kernels_are_not_built_is_in_the_record(tmp_path: Path) -> None:
    options = {"cxx": "/nowhere/c++", "cache_dir": str(tmp_path)}
    compiled = lamina.compile(function, options=options)
    with pytest.warns(lamina.LaminaWarning, match="runs regions as ATen calls: .*/nowhere/c"):
        found = gradients(compiled)
    torch.testing.assert_close(found, gradients(function))
    decisions = [d for d in compiled.record.decisions("fallback") if "building failed" in d.reason]
    assert [d.taken for d in decisions] == [False, False]
    assert len({d.subject for d in decisions}) == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_process_passes_through(error: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    fail_at("lamina.compile.lower", error, monkeypatch)
    with pytest.raises(error):
        gradients(lamina.compile(function))
