"""The same nests on a GPU, where there is one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from lamina.base.target import cpu, nvidia
from lamina.ir.loops_interp import run_nest
from tests.codegen.harness import empty, stored
from tests.codegen.test_nests import RECIPES
from tests.codegen.triton.harness import case
from tests.codegen.triton.loading import load
from tests.codegen.triton.test_kernels import NAMES, same


def on_device(name: str, folder: Path) -> None:
    """Run a recipe's kernel on the GPU and compare with the specification."""
    spec, inputs, sizes = RECIPES[name](name, cpu("plain", 1))
    made = case(name, spec.nests, list(spec.buffers.values()), nvidia(approximate=False))
    source = made.source
    function = load(source.text, source.name, folder)
    ours: dict[str, torch.Tensor] = {}
    theirs: dict[str, torch.Tensor] = {}
    for buffer in made.buffers.values():
        host = inputs.get(buffer.name)
        if buffer.name in stored(spec):
            filled = empty(buffer, sizes)
            filled.copy_(host) if host is not None else filled.zero_()
            host = filled
        assert host is not None
        theirs[buffer.name] = host
        room = torch.empty(host.untyped_storage().nbytes() // host.element_size(), dtype=host.dtype)
        room.copy_(host.as_strided(room.shape, (1,), 0))
        ours[buffer.name] = room.cuda().as_strided(host.shape, host.stride(), host.storage_offset())
    values = [int(s.evaluate(sizes)) for s in made.flat.sizes]
    grid = int(source.grid[0].evaluate({f"s{k}": n for k, n in enumerate(values)}))
    args = [*(ours[b] for b in made.flat.buffers), *values]
    args += [torch.zeros(1, dtype=torch.int32, device="cuda")] if source.checks else []
    if grid:
        function[(grid,)](*args, num_warps=source.warps, num_stages=source.stages)
    for nest in made.nests:
        run_nest(nest, theirs, sizes)
    for buffer in stored(spec):
        same(buffer, ours[buffer].cpu(), theirs[buffer])


@pytest.mark.device
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="Triton interprets")
@pytest.mark.parametrize("name", NAMES)
def test_on_device(name: str, tmp_path: Path) -> None:
    on_device(name, tmp_path)
