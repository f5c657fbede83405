"""What is stored and also added up at places is computed and read once: one kernel does both on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lamina.codegen.triton.emit import emit
from tests.codegen.triton.harness import Interpreter
from tests.codegen.triton.test_plans import SMALL, planned, run


def _table(x: Tensor, s: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    gradient = x * s.sigmoid()
    return gradient, torch.ops.aten.embedding_dense_backward(gradient, p, 50, -1, False)


def _rows(x: Tensor, s: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    values = torch.atan2(x, s.abs() + 0.5)
    return values, x.new_zeros(50, x.shape[1]).index_add(0, p, values)


def _columns(x: Tensor, s: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    values = x.exp() + s
    return values, torch.zeros_like(x).scatter_add(1, (p % x.shape[1])[:, None].expand_as(x), values)


def _into_an_input(x: Tensor, s: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    values = x * s
    return values, s.index_add(0, p % 40, values)


PROGRAMS: dict[str, Callable[..., Any]] = {
    "a table's gradient": _table,
    "rows": _rows,
    "columns": _columns,
    "into an input": _into_an_input,
}


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_values(interpreter: Interpreter, name: str) -> None:
    torch.manual_seed(0)
    x, s, p = torch.randn(40, 33), torch.randn(40, 33), torch.randint(0, 50, (40,))
    given = [t.clone() for t in (x, s, p)]
    ours = run(planned(PROGRAMS[name], x, s, p), interpreter, (x, s, p))
    for mine, true in zip(ours, PROGRAMS[name](*given), strict=True):
        torch.testing.assert_close(mine, true, rtol=1e-4, atol=1e-5)


def test_one_kernel_stores_and_adds() -> None:
    x, p = torch.randn(40, 33), torch.randint(0, 50, (40,))
    texts = [emit(kernel, SMALL).text for kernel in planned(_table, x, x, p).kernels]
    (adding,) = [text for text in texts if "tl.atomic_add(" in text]
    assert "tl.store(" in adding
    assert sum("sigmoid" in text or "exp(" in text for text in texts) == 1
