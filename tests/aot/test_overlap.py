"""Which tensors have elements that share memory is decided as eager decides it."""

from __future__ import annotations

import pytest
import torch

import lamina
from lamina.aot.overlap import overlaps

LAYOUTS = [
    ((3,), (1,)),
    ((3,), (0,)),
    ((1,), (0,)),
    ((3, 0), (0, 0)),
    ((2, 3), (0, 1)),
    ((2, 3), (3, 1)),
    ((2, 1, 3), (3, 0, 1)),
    ((3, 3), (2, 1)),
    ((3, 3), (1, 1)),
    ((), ()),
]


@pytest.mark.parametrize(("shape", "strides"), LAYOUTS, ids=str)
def test_overlap_is_what_eager_refuses(shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    tensor = torch.zeros(16).as_strided(shape, strides)
    try:
        tensor.add_(1)
        refused = False
    except RuntimeError:
        refused = True
    assert overlaps(tensor) == refused


def test_the_record_tells_why_a_graph_is_left_to_eager() -> None:
    torch.compiler.reset()
    compiled = lamina.compile(lambda x: x.expand(3).fill_(2) + 1, options={"strict": True})
    torch.testing.assert_close(compiled(torch.zeros(1)), torch.full((3,), 3.0))
    (stage,) = [s for s in compiled.record.stages if s.name == "eager"]
    (decision,) = stage.decisions
    assert "share memory" in decision.reason
    assert "fill_" in decision.reason
