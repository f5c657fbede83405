"""Memory that kernels leave zero: one piece for each stream, another for each recording."""

from __future__ import annotations

import pytest
import torch

from lamina.runtime import cuda_host


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_ZEROS", "_LENT", "_CLEARED"):
        monkeypatch.setattr(cuda_host, name, {})
    made: list[torch.Tensor] = []  # all of them live, so that addresses tell them apart

    def zeros(device: int, nbytes: int) -> torch.Tensor:
        made.append(torch.zeros(nbytes, dtype=torch.uint8))
        return made[-1]

    monkeypatch.setattr(cuda_host, "_zeros", zeros)
    monkeypatch.setattr(cuda_host, "is_capturing", lambda: False)


def test_a_stream_keeps_its_memory_until_it_is_too_small() -> None:
    first = cuda_host.zeroed(0, 7, 100)
    assert cuda_host.zeroed(0, 7, 4000) == first
    assert cuda_host.zeroed(0, 8, 100) != first
    assert cuda_host.zeroed(1, 7, 100) != first
    assert cuda_host.zeroed(0, 7, 5000) != first


def test_recordings_share_no_memory_with_launches_or_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    direct = cuda_host.zeroed(0, 7, 100)
    monkeypatch.setattr(cuda_host, "is_capturing", lambda: True)
    cleared = [cuda_host.zeroed(0, 7, 100), cuda_host.zeroed(0, 7, 100)]
    lent = cuda_host.lend_zeros(0, 7)
    assert cuda_host.zeroed(0, 7, 100) == lent.data_ptr()
    assert cuda_host.zeroed(0, 7, lent.numel() + 1) != lent.data_ptr()
    cuda_host.forget_zeros(0, 7)
    assert cuda_host.zeroed(0, 7, 100) != lent.data_ptr()
    assert len({direct, *cleared, lent.data_ptr()}) == 4
    monkeypatch.setattr(cuda_host, "is_capturing", lambda: False)
    assert cuda_host.zeroed(0, 7, 100) == direct
