"""The own front end obeys the stance of torch.compile and its switches, as the other does."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor

import lamina

CAPTURES = ("dynamo", "own")


def compiled_by(capture: str) -> object:
    def wave(x: Tensor) -> Tensor:
        return x.sin() * 2 + x.relu()

    wave.__code__ = wave.__code__.replace()  # of which nothing was compiled
    return lamina.compile(wave, options={"capture": capture, "cache": False})


def graphs(compiled: object) -> int:
    count: int = compiled.stats().graphs  # type: ignore[attr-defined]
    return count


@pytest.mark.parametrize("capture", CAPTURES)
def test_force_eager_neither_compiles_nor_runs_what_is_compiled(capture: str) -> None:
    x, compiled = torch.randn(16, 16), compiled_by(capture)
    seen: list[str] = []

    class Calls(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    with torch.compiler.set_stance("force_eager"):
        expected = compiled(x)  # type: ignore[operator]
    assert graphs(compiled) == 0
    assert torch.equal(expected, x.sin() * 2 + x.relu())
    for _ in range(3):
        compiled(x)  # type: ignore[operator]
    assert graphs(compiled) == 1
    with torch.compiler.set_stance("force_eager"), Calls():
        assert torch.equal(compiled(x), expected)  # type: ignore[operator]
    assert {"sin", "relu"} <= set(seen)


def test_force_eager_runs_the_function_itself_with_the_own_front_end() -> None:
    lines: list[float] = []

    def noted(x: Tensor) -> Tensor:
        lines.append(float(x.numel()))
        return x.sin() * 2

    x, compiled = torch.randn(16, 16), lamina.compile(noted, options={"capture": "own"})
    for _ in range(3):
        compiled(x)
    runs: list[bool] = []
    profiled = noted.__code__

    def watch(frame: object, event: str, arg: object) -> None:
        runs.append(getattr(frame, "f_code", None) is profiled)

    with torch.compiler.set_stance("force_eager"):
        sys.setprofile(watch)
        compiled(x)
        sys.setprofile(None)
    assert any(runs)
    assert [d for d in compiled.record.decisions("capture") if "stance" in str(d.reason)]
    runs.clear()
    sys.setprofile(watch)
    compiled(x)
    sys.setprofile(None)
    assert not any(runs)


@pytest.mark.parametrize("capture", CAPTURES)
def test_what_is_compiled_runs_and_the_rest_does_not_compile(capture: str) -> None:
    x, compiled = torch.randn(16, 16), compiled_by(capture)
    for _ in range(2):
        compiled(x)  # type: ignore[operator]
    with torch.compiler.set_stance("eager_on_recompile"):
        torch.testing.assert_close(compiled(x), x.sin() * 2 + x.relu())  # type: ignore[operator]
        y = x.double()
        assert torch.equal(compiled(y), y.sin() * 2 + y.relu())  # type: ignore[operator]
    assert graphs(compiled) == 1
    compiled(x.double())  # type: ignore[operator]
    assert graphs(compiled) == 2


@pytest.mark.parametrize("capture", CAPTURES)
def test_nothing_is_compiled_by_lamina_where_another_backend_is_forced(capture: str) -> None:
    x, compiled = torch.randn(16, 16), compiled_by(capture)
    with torch.compiler.set_stance(force_backend="eager"):
        assert torch.equal(compiled(x), x.sin() * 2 + x.relu())  # type: ignore[operator]
    assert graphs(compiled) == 0


@pytest.mark.parametrize("capture", CAPTURES)
def test_the_stance_that_compiles_later_changes_no_result(capture: str) -> None:
    x, compiled = torch.randn(16, 16), compiled_by(capture)
    with torch.compiler.set_stance("eager_then_compile"):
        for _ in range(3):
            torch.testing.assert_close(compiled(x), x.sin() * 2 + x.relu())  # type: ignore[operator]


PROGRAM = """
import sys, torch, lamina

def wave(x):
    return x.sin() * 2 + x.relu()

x, compiled = torch.randn(16, 16), lamina.compile(wave, options={"capture": sys.argv[1]})
for _ in range(3):
    y = compiled(x)
print(len(compiled.record.decisions("fuse")), torch.equal(y, wave(x)))
if sys.argv[1] == "own":
    print([d.code for d in compiled.record.decisions("capture")])
"""


@pytest.mark.parametrize("capture", CAPTURES)
def test_the_environments_switch_holds(capture: str) -> None:
    line = [sys.executable, "-W", "ignore", "-c", PROGRAM, capture]
    environment = {**os.environ, "TORCH_COMPILE_DISABLE": "1"}
    said = subprocess.run(line, env=environment, capture_output=True, text=True, check=True, timeout=120).stdout
    assert said.splitlines()[0] == "0 True"
    if capture == "own":
        assert said.splitlines()[1].startswith("['LM1223']")


def test_the_setting_holds_as_long_as_it_is_on() -> None:
    x, compiled = torch.randn(16, 16), compiled_by("own")
    with torch._dynamo.config.patch(disable=True):
        compiled(x)  # type: ignore[operator]
        assert graphs(compiled) == 0
    compiled(x)  # type: ignore[operator]
    assert graphs(compiled) == 1
