"""The fast samples of torch's operator database on a GPU: values, gradients, kind of result, exceptions."""

from __future__ import annotations

import pytest
import torch

from benchmarks.compilers import CompileFunction
from tests.ops.check import check
from tests.ops.fast import FAST
from tests.ops.torch_private import operators

OPERATORS = operators()


@pytest.mark.parametrize("name", FAST)
def test_operator(compile: CompileFunction, name: str) -> None:
    result = check(name, OPERATORS[name], compile, device="cuda")
    torch.cuda.synchronize()
    if result.status == "skipped":
        pytest.skip(result.detail)
    assert result.status == "passed", "\n".join([result.detail, *result.complaints])
