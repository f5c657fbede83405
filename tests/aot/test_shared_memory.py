"""Which calls have inputs that share memory with one that is written to, to the byte."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

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
