"""Host programs for GPUs put masked rows of attention right by Lamina's own functions, in the library's results."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from lamina.codegen.host_cuda import emit_cuda_host
from lamina.ir.loops import LibraryCall
from lamina.lower.to_loops import lower
from lamina.masked_rows import kernels
from lamina.masked_rows.operations import fill_masked_rows, fill_masked_rows_backward, fill_masked_rows_forward
from tests.codegen.test_host_cuda import check_same, machine, on_gpu, sources_of
from tests.ir.examples import simple_plan

__all__ = ["machine"]


def _program(queries: Tensor, keys: Tensor, mask: Tensor, value: Tensor) -> Any:
    result = torch.bmm(queries, keys).unflatten(0, (2, 3))
    logarithm = torch.bmm(queries, keys[..., :1].contiguous()).unflatten(0, (2, 3))
    out, logarithm, rows = fill_masked_rows_forward(result, logarithm, mask, value)
    again = fill_masked_rows(torch.bmm(queries, keys.exp()).unflatten(0, (2, 3)), mask, value)
    gradient = torch.bmm(value.flatten(0, 1), keys).unflatten(0, (2, 3))
    return out, logarithm, again, fill_masked_rows_backward(gradient, mask, rows, out)


def test_host_programs_call_them_past_the_dispatcher(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = ((6, 10, 16), (6, 16, 16), (2, 1, 10, 12), (2, 3, 12, 16))
    queries, keys, mask, value = (torch.randn(s, generator=generator) for s in shapes)
    mask[0, 0, 3], mask[1, 0, 7] = -1e9, -2e9
    given = (queries, keys, mask, value)
    called: list[str] = []
    for name, function in kernels._FUNCTIONS.items():
        monkeypatch.setitem(kernels._FUNCTIONS, name, lambda *args, f=function, n=name: (called.append(n), f(*args))[1])
    plan = simple_plan(on_gpu(lower(make_fx(_program, tracing_mode="fake")(*given), "test")))
    host = emit_cuda_host(plan, sources_of(plan), 0)
    found = machine.load(host)([x.clone() for x in given])
    check_same(found, _program(*given))
    writing = [s.op for s in plan.steps if isinstance(s, LibraryCall) and s.mutates]
    assert sorted(called) == sorted(op.split(".")[1] for op in writing)
    assert len(called) == 3
