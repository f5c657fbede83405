"""All samples of some operators and modules, and inputs that operators must refuse, compiled against eager."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.compilers import CompileFunction, compile_function
from tests.ops.databases import check_errors, check_module, check_samples
from tests.ops.fast import MODULES, REFUSING, TYPED
from tests.ops.torch_private import modules, operators

OPERATORS, CLASSES = operators(), modules()


@pytest.mark.sampled(one_in=7)
@pytest.mark.parametrize(("name", "dtype"), TYPED)
def test_samples(compile: CompileFunction, name: str, dtype: str) -> None:
    result = check_samples(name, OPERATORS[name], compile, getattr(torch, dtype), most=16)
    assert result.status == "passed", "\n".join(result.complaints)


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize(("name", "dtype"), TYPED[::4])
def test_samples_of_any_size(compile: CompileFunction, name: str, dtype: str) -> None:
    result = check_samples(name, OPERATORS[name], compile, getattr(torch, dtype), most=8, dynamic=True)
    assert result.status == "passed", "\n".join(result.complaints)


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize("name", REFUSING)
def test_wrong_inputs(compile: CompileFunction, name: str) -> None:
    result = check_errors(name, OPERATORS[name], compile)
    assert result.status == "passed", "\n".join(result.complaints)


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize("name", MODULES)
def test_modules(compile: CompileFunction, name: str) -> None:
    result = check_module(name, CLASSES[name], compile, torch.float32)
    assert result.status == "passed", "\n".join(result.complaints)


def test_a_wrong_sample_is_found_in_its_batch() -> None:
    result = check_samples("add", OPERATORS["add"], compile_function("wrong"), torch.float32)
    assert result.status == "mismatch"
    assert result.detail.startswith("sample ")


def test_a_wrong_module_is_found() -> None:
    result = check_module("nn.LayerNorm", CLASSES["nn.LayerNorm"], compile_function("wrong"), torch.float32)
    assert result.status == "mismatch"


def test_an_input_that_is_not_refused_is_found() -> None:
    def halves(x: Tensor) -> Tensor:
        return x.view(2, -1)

    def compile(_: Callable[..., Any], **__: Any) -> Callable[..., Any]:
        return lambda x, *_: x

    wrong = SimpleNamespace(sample_input=SimpleNamespace(input=torch.ones(3), args=(), kwargs={}))
    operator = SimpleNamespace(op=halves, error_inputs_func=True, error_inputs=lambda *_: [wrong])
    result = check_errors("halves", operator, compile)
    assert result.status == "mismatch"
    assert "compiled nothing" in result.detail
