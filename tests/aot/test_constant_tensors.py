"""Tensors of no numbers are what ``torch.tensor`` makes; all others are left to it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lamina.aot.constant_tensors import without_numbers

EMPTY: tuple[tuple[Any, dict[str, Any]], ...] = (
    ([], {}), ([[], []], {}), ([[[]]], {"dtype": torch.int32}), ((), {"device": "cpu"}),
    (((), []), {"dtype": torch.bool}),
)  # fmt: skip
LEFT: tuple[tuple[Any, dict[str, Any]], ...] = (
    (True, {}), (3, {}), ([1, 2.5], {}), ([0.0, 0.0], {}), (1j, {}), ([], {"requires_grad": True}), (torch.ones(0), {}),
    ([torch.ones(0)], {}), ([[], [2]], {}), ([[], [[]]], {}), ("", {}), ({}, {}), (range(0), {}),
)  # fmt: skip


@pytest.mark.parametrize("default", [torch.float32, torch.float64])
@pytest.mark.parametrize(("data", "how"), EMPTY)
def test_empty_tensors_are_those_of_torch(data: Any, how: dict[str, Any], default: torch.dtype) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        made, wanted = without_numbers((data,), how), torch.tensor(data, **how)
        assert made is not None
        found = made()
    finally:
        torch.set_default_dtype(before)
    assert (found.dtype, found.shape, found.device) == (wanted.dtype, wanted.shape, wanted.device)
    assert found.stride() == wanted.stride()


@pytest.mark.parametrize(("data", "how"), LEFT)
def test_what_only_torch_can_tell_is_left_to_it(data: Any, how: dict[str, Any]) -> None:
    assert without_numbers((data,), how) is None
