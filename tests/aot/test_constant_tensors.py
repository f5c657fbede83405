"""Tensors of Python's numbers that are filled: bit for bit what ``torch.tensor`` makes, or left to it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from lamina.aot.constant_tensors import filling

FILLED: tuple[tuple[Any, dict[str, Any]], ...] = (
    ([], {}), ([[], []], {}), ([[[]]], {"dtype": torch.int32}), (True, {}), (3, {}), (-0.0, {}), (math.nan, {}),
    (math.inf, {"dtype": torch.float16}), (65504.0, {"dtype": torch.float16}), (0.1, {"dtype": torch.bfloat16}),
    ((1, True), {}), ([1, 2.5], {}), ([[1, 2], [3, 4]], {}), ([0.0, -0.0], {}), ([True, False], {"dtype": torch.bool}),
    (-128, {"dtype": torch.int8}), (2**62 + 1, {}), ([7, 7], {"dtype": torch.float64, "device": "cpu"}),
    (True, {"dtype": torch.float32}), ([2, 3], {"dtype": torch.uint8}),
)  # fmt: skip
LEFT: tuple[tuple[Any, dict[str, Any]], ...] = (
    (1j, {}), (1.5, {"dtype": torch.int64}), (1e39, {"dtype": torch.float32}), (300, {"dtype": torch.uint8}),
    (2**63, {}), ([*range(17)], {}), (1.0, {"requires_grad": True}), (torch.ones(()), {}), ([torch.ones(())], {}),
    ([[1], [2, 3]], {}), ([1, [2]], {}), (2, {"dtype": torch.bool}), (1.0, {"dtype": torch.float8_e5m2}), ("1", {}),
)  # fmt: skip


@pytest.mark.parametrize("default", [torch.float32, torch.float64])
@pytest.mark.parametrize(("data", "how"), FILLED)
def test_filled_tensors_are_those_of_torch(data: Any, how: dict[str, Any], default: torch.dtype) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        made, wanted = filling((data,), how), torch.tensor(data, **how)
        assert made is not None
        found = made()
    finally:
        torch.set_default_dtype(before)
    assert (found.dtype, found.shape, found.device) == (wanted.dtype, wanted.shape, wanted.device)
    assert found.reshape(-1).view(torch.uint8).tolist() == wanted.reshape(-1).view(torch.uint8).tolist()


@pytest.mark.parametrize(("data", "how"), LEFT)
def test_what_only_torch_can_tell_is_left_to_it(data: Any, how: dict[str, Any]) -> None:
    assert filling((data,), how) is None
