"""What kernels for a GPU wait for starts with the capture, and never fails there."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from lamina.backends import kernels
from lamina.backends.registry import as_backend
from lamina.options import Options


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Options, int]]:
    """The GPUs that a backend was made for, none of which this machine is asked about."""
    found: list[tuple[Options, int]] = []
    monkeypatch.setattr(kernels, "cuda_device", lambda *about: found.append(about))
    return found


def on_gpu(*devices: int) -> list[torch.Tensor]:
    with FakeTensorMode():
        return [torch.empty(2, device=f"cuda:{number}") for number in devices]


def test_a_graph_with_inputs_on_one_gpu(begun: list[tuple[Options, int]]) -> None:
    kernels.begin(as_backend("lamina"), [3, torch.ones(2), *on_gpu(1, 1)], Options())
    assert begun == [(Options(), 1)]


def test_other_graphs_and_backends(begun: list[tuple[Options, int]]) -> None:
    kernels.begin(as_backend("lamina"), [torch.ones(2)], Options())
    kernels.begin(as_backend("lamina"), on_gpu(0, 1), Options())
    for name in ("cpu", "interp", "eager"):
        kernels.begin(as_backend(name), on_gpu(0), Options())
    assert begun == []


def test_a_gpu_that_cannot_be_used_is_no_error_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def refused(options: Options, device: int) -> None:
        asked.append(device)
        raise RuntimeError("no NVIDIA driver")

    monkeypatch.setattr(kernels, "cuda_device", refused)
    kernels.begin(as_backend("lamina"), on_gpu(0), Options())
    assert asked == [0]
