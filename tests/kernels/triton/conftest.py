"""Triton kernels launched on a machine without a GPU: Triton's interpreter runs them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.utils._triton as torch_triton

pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction


class _Driver:
    """What Triton asks of a GPU while it only translates."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_benchmarker(self) -> Any:
        return lambda call, quantiles=None: [1.0, 1.0, 1.0]

    def get_current_device(self) -> int:
        return 0


def _run(kernel: JITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
    options = ("num_warps", "num_stages", "num_ctas")
    given = {name: value for name, value in kwargs.items() if name not in options}
    return InterpretedFunction(kernel.fn).run(*args, grid=grid, warmup=warmup, **given)


@pytest.fixture
def interpreted_triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Within it Dynamo captures Triton kernels as it does where there is a GPU, and launches are interpreted."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU: tests/device runs the kernels on it")
    monkeypatch.setattr(torch_triton, "has_triton", lambda: True)
    monkeypatch.setattr(JITFunction, "run", _run)
    before = driver._active
    driver.set_active(_Driver())  # type: ignore[arg-type]
    torch._dynamo.reset()
    yield
    driver._active = before
    torch._dynamo.reset()
