"""Triton kernels of the user's own between the kernels of a region: values, writes, gradients, no needless copies."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import lamina
from lamina.base.user_kernels import is_user_kernel
from lamina.extend import rule
from lamina.ir.loops import LibraryCall, LoopProgram, Nest
from tests.kernels.test_bound_kernels import called, in_the_place_of
from tests.kernels.triton import programs

STRICT = {"strict": True, "verify": True}


def given(grad: bool = False) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(6, 40).requires_grad_(grad) for _ in range(2)]


def fused(compiled: Any) -> list[LoopProgram]:
    return [stage.value.program for stage in compiled.record.stages if stage.name == "fuse"]


def compared(function: Callable[..., Any], dynamic: bool | None = None) -> Any:
    """``function`` compiled, after it gave eager's results and left its arguments as eager does."""
    expected_args, args = given(), given()
    expected = function(*expected_args)
    compiled = lamina.compile(function, fullgraph=True, dynamic=dynamic, options=STRICT)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        found = compiled(*args)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(args, expected_args)
    launches = [s for p in fused(compiled) for s in p.steps if isinstance(s, LibraryCall) and is_user_kernel(s.op)]
    assert launches
    return compiled


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("program", programs.PROGRAMS, ids=lambda p: p.__name__)
def test_launches_between_kernels_are_eagers(program: Callable[..., Any], interpreted_triton: None) -> None:
    compared(program)


@pytest.mark.parametrize("program", [programs.into_input, programs.part_of_rows])
def test_sizes_may_be_symbols(program: Callable[..., Any], interpreted_triton: None) -> None:
    compiled = compared(program, dynamic=True)
    wide, same = [torch.randn(9, 52) for _ in range(2)], []
    same = [t.clone() for t in wide]
    torch.testing.assert_close(compiled(*wide), program(*same))
    torch.testing.assert_close(wide, same)


@pytest.mark.parametrize(
    ("program", "nests"),
    [
        (programs.plain, 2),
        (programs.into_zeros, 2),
        (programs.into_input, 2),
        (programs.two_results, 2),
        (programs.input_read_before, 2),
    ],
)
def test_what_a_kernel_overwrites_is_not_copied(
    program: Callable[..., Any], nests: int, interpreted_triton: None
) -> None:
    """One nest before the launches and one after them: neither copies for the launch nor zeros for "empty"."""
    (fusion,) = fused(compared(program))
    assert sum(isinstance(step, Nest) for step in fusion.steps) == nests


@pytest.mark.parametrize("program", [programs.old_value_kept, programs.same_tensor_twice])
def test_what_is_still_read_is_copied(program: Callable[..., Any], interpreted_triton: None) -> None:
    (fusion,) = fused(compared(program))
    (launch,) = [s for s in fusion.steps if isinstance(s, LibraryCall)]
    (written,) = launch.mutates
    assert [step for step in fusion.steps if isinstance(step, Nest) and written in str(step.body)]
    assert written not in {b.name for b in fusion.buffers if b.kind == "input"}


@pytest.mark.parametrize("program", programs.DIFFERENTIABLE, ids=lambda p: p.__name__)
def test_gradients(program: Callable[..., Any], interpreted_triton: None) -> None:
    expected_args, args = given(grad=True), given(grad=True)
    program(*expected_args).sum().backward()
    compiled = lamina.compile(program, fullgraph=True, options=STRICT)
    compiled(*args).sum().backward()
    for found, expected in zip(args, expected_args, strict=True):
        torch.testing.assert_close(found.grad, expected.grad)


def test_the_host_program_names_the_kernel(interpreted_triton: None) -> None:
    compiled = compared(programs.plain)
    (text,) = [stage.value.text for stage in compiled.record.stages if stage.name == "host"]
    assert "add_kernel = user_kernel(" in text
    assert "programs.py:" in text


use_weighted = rule(lambda x, y: y + 0.25 * x, lambda x, y: programs.weighted(x, y, 0.25), name="use weighted")


def test_a_triton_operation_in_the_place_of_a_pattern(interpreted_triton: None) -> None:
    compiled, found, expected = in_the_place_of(lambda x, y: (y.cos() + 0.25 * (x * 3)).tanh(), use_weighted)
    torch.testing.assert_close(found, expected)
    assert called(compiled) == ["lamina_tests.weighted.default"] * 2


def test_the_own_front_end_leaves_functions_with_kernels_to_dynamo(interpreted_triton: None) -> None:
    torch.compiler.reset()
    compiled = lamina.compile(programs.plain, options={"capture": "own", "cache": False})
    inputs = [torch.randn(1000), torch.randn(1000)]
    for _ in range(3):
        torch.testing.assert_close(compiled(*inputs), programs.plain(*inputs))
    told = [one.reason for one in compiled.record.decisions() if "captures its calls from now on" in one.reason]
    assert len(told) == 1
