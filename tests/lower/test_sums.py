"""Sums at colliding places: wide on devices where eager's are."""

from __future__ import annotations

import pytest
import torch

from lamina.ir.loops import Nest, Store
from lamina.lower.to_loops import lower

from .torch_private import traced

OPERATIONS = {
    "embedding": lambda g, i: (torch.ops.aten.embedding_dense_backward(g, i, 100, -1, False),),
    "index_put": lambda g, i: (torch.ops.aten.index_put(g, [i], g, True),),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_sums_of_halves_are_float32_except_on_the_cpu(name: str, device: str, dtype: torch.dtype) -> None:
    gradient = torch.empty(64, 32, dtype=dtype, device=device)
    places = torch.zeros(64, dtype=torch.int64, device=device)
    program = lower(traced(OPERATIONS[name], [gradient, places]), "test")
    buffers = program.buffer_map()
    sums = [
        buffers[e.buffer].dtype
        for step in program.steps
        if isinstance(step, Nest)
        for e in step.body
        if isinstance(e, Store) and e.mode == "add"
    ]
    own = str(dtype).removeprefix("torch.")
    assert sums == [own if device == "cpu" else "float32"]
    assert [buffers[o.buffer].dtype for o in program.outputs] == [own]
