"""Random nests against the interpreter: random numbers, scans, checks and masked loads beside every reduction."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lamina.base.target import cpu
from lamina.ir.nest_verify import verify_nest
from lamina.runtime.toolchain import host_isa
from tests.codegen.harness import both, build, case
from tests.codegen.mixes import mix

SEEDS = (*range(40), 135)
"""135 draws the same random numbers in two loops of one function."""


@pytest.mark.parametrize("threads", [1, 2])
def test_random_nests(tmp_path: Path, threads: int) -> None:
    target = cpu("avx2" if host_isa() != "plain" else "plain", threads)
    mixes, cases = {}, {}
    for seed in SEEDS:
        torch.manual_seed(seed)
        made = mixes[seed] = mix(seed)
        verify_nest(made.body.nest(), {b.name: b for b in made.buffers})
        cases[seed] = case(f"mix{seed}", [made.body.nest()], made.buffers, target)
    kinds = {schedule.kind for c in cases.values() for schedule in c.kernel.schedules}
    assert {"pointwise", "rows", "scan"} <= kinds
    library = build(list(cases.values()), target, tmp_path)
    for seed, made in mixes.items():
        got, want = both(cases[seed], library, made.inputs, {})
        for buffer, mine in got.items():
            message = f"seed {seed}, {buffer}"
            if not mine.dtype.is_floating_point:
                assert torch.equal(mine, want[buffer]), message
                continue
            scale = float(want[buffer].abs().max()) if mine.numel() else 0.0
            torch.testing.assert_close(mine, want[buffer], rtol=1e-6, atol=3e-5 * scale, equal_nan=True, msg=message)
