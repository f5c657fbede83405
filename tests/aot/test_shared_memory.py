"""Which calls have inputs that share memory with one that is written to, to the byte."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

import lamina
from lamina.aot.shared_memory import serving_alike

BASE = torch.arange(16.0)


def _served(made_for: Sequence[Tensor], given: Sequence[Tensor], written: Sequence[int]) -> str:
    found = serving_alike(lambda *x: "compiled", lambda *x: "eager", made_for, written, lambda why: None)
    return str(found(*given))


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize(
    ("first", "second", "served"),
    [
        (slice(0, 4), slice(4, 8), "compiled"),
        (slice(4, 8), slice(0, 4), "compiled"),
        (slice(0, 5), slice(4, 8), "eager"),
        (slice(4, 8), slice(0, 5), "eager"),
        (slice(0, 16), slice(7, 8), "eager"),
        (slice(7, 8), slice(0, 16), "eager"),
    ],
)
@pytest.mark.parametrize("written", [0, 1])
def test_overlaps_are_seen_to_the_last_element(
    first: slice, second: slice, served: str, written: int, more: int
) -> None:
    given = [BASE[first], BASE[second], *(torch.ones(3) for _ in range(more))]
    assert _served([t.clone() for t in given], given, [written]) == served


def test_two_that_are_only_read_may_share() -> None:
    given = [BASE[:6], BASE[4:8], torch.ones(3)]
    assert _served([t.clone() for t in given], given, [2]) == "compiled"


def _counted(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    y[0] = 0.25
    return x.new_zeros(x.shape[0], 2) + x.shape[-1], y.clone()


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_view_of_a_tensor_of_another_size(dynamic: bool | None) -> None:
    torch.compiler.reset()
    compiled = lamina.compile(_counted, backend="interp", dynamic=dynamic, options={"strict": True})
    for rows, whole in ((5, False), (6, False), (7, True), (6, True), (9, True), (4, False)):
        outcomes = []
        for called in (compiled, _counted):
            base = torch.arange(4.0 * rows).reshape(rows, 4).clone()
            other = base[:] if whole else base.flatten()[: 4 * rows].view_as(base)
            first, second = (other, base) if whole else (base, other)
            outcomes.append((*called(first, second), base))
        torch.testing.assert_close(*outcomes)
