"""Triton kernels of the user's own inside regions on a GPU, in CUDA graphs too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import lamina

pytest.importorskip("triton")

from tests.kernels.triton import programs

SHAPE = (48, 200)


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch.compiler.reset()
    torch.manual_seed(0)


def given(grad: bool = False) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(SHAPE, device="cuda").requires_grad_(grad) for _ in range(2)]


def without_fallback(compiled: Any) -> None:
    assert not [stage.value for stage in compiled.record.stages if stage.name == "aten"]


# Columns are taken in blocks of 64, of which half a row must have at most one.
NARROW = [p for p in programs.PROGRAMS if p is not programs.part_of_rows]


@pytest.mark.parametrize("program", NARROW, ids=lambda p: p.__name__)
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_launches_are_eagers_call_after_call(program: Callable[..., Any], mode: str) -> None:
    expected_args, args = given(), given()
    compiled = lamina.compile(program, fullgraph=True, mode=mode, options={"strict": True, "verify": True})
    for _ in range(12):
        torch.testing.assert_close(compiled(*args), program(*expected_args), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(args, expected_args, rtol=1e-4, atol=1e-4)
    without_fallback(compiled)


@pytest.mark.parametrize("program", programs.DIFFERENTIABLE, ids=lambda p: p.__name__)
def test_gradients(program: Callable[..., Any]) -> None:
    expected_args, args = given(grad=True), given(grad=True)
    compiled = lamina.compile(program, fullgraph=True, options={"strict": True})
    for _ in range(3):
        program(*expected_args).sum().backward()
        compiled(*args).sum().backward()
    for found, expected in zip(args, expected_args, strict=True):
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-4, atol=1e-4)
    without_fallback(compiled)


def test_a_region_with_launches_is_recorded() -> None:
    compiled = lamina.compile(programs.autotuned, mode="reduce-overhead", options={"strict": True})
    x, y = given()
    for _ in range(12):
        x.normal_()
        torch.testing.assert_close(compiled(x, y), programs.autotuned(x, y), rtol=1e-4, atol=1e-4)
    assert [d.taken for d in compiled.record.decisions("graph")] == [True]


def test_sizes_may_be_symbols() -> None:
    compiled = lamina.compile(programs.plain, dynamic=True, options={"strict": True})
    for rows in (3, 17, 130):
        x, y = (torch.randn(rows, 96, device="cuda") for _ in range(2))
        torch.testing.assert_close(compiled(x, y), programs.plain(x, y), rtol=1e-4, atol=1e-4)
    without_fallback(compiled)


def test_python_of_custom_operations_runs_at_every_call() -> None:
    calls: list[int] = []

    @torch.library.custom_op("lamina_tests::noted", mutates_args=())
    def noted(x: torch.Tensor) -> torch.Tensor:
        calls.append(len(calls))
        return x + len(calls)

    noted.register_fake(torch.empty_like)

    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = noted(x.sin()).cumsum(0)
        return x

    compiled = lamina.compile(chain, options={"strict": True})
    x = torch.randn(8, 8, device="cuda")
    for _ in range(40):
        compiled(x)
    assert len(calls) == 120
    (decision,) = compiled.record.decisions("graph")
    assert not decision.taken
    assert "lamina_tests.noted" in decision.reason
