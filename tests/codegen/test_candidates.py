"""Every schedule that may be timed gives what the interpreter gives, and where sums must not change the same bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lamina.base.target import cpu
from lamina.runtime.toolchain import host_isa
from lamina.schedule.cpu_space import candidates
from tests.codegen.harness import Case, both, build, case
from tests.codegen.mixes import Mix, mix
from tests.codegen.test_nests import norm, norm_backward, softmax

TARGET = cpu("avx2" if host_isa() != "plain" else "plain", 2)
SEEDS = range(200, 208)
NAMES = ("kind", "outer", "vector", "tile", "unroll", "nontemporal")
Results = dict[str, torch.Tensor]


def cases_of(seed: int, made: Mix, exact: bool) -> list[Case]:
    """A random nest with each of its schedules, and with the first one's stores past the caches."""
    nests = [made.body.nest()]
    plain = case(f"mix{seed}", nests, made.buffers, TARGET)
    dtypes = {f"b{k}": d for k, d in enumerate(plain.flat.dtypes)}
    found = [r.schedule for r in candidates(plain.flat.nests[0], dtypes, TARGET, most=12, exact=exact)]
    found += [replace(s, nontemporal=True) for s in found[:1] if s.width]
    return [case(f"mix{seed}_{k}", nests, made.buffers, TARGET, s) for k, s in enumerate(found)]


def close(mine: Results, want: Results, message: str) -> None:
    for buffer, tensor in mine.items():
        if not tensor.dtype.is_floating_point:
            assert torch.equal(tensor, want[buffer]), message
            continue
        scale = float(want[buffer].abs().max()) if tensor.numel() else 0.0
        torch.testing.assert_close(
            tensor, want[buffer], rtol=1e-6, atol=3e-5 * scale, equal_nan=True, msg=f"{message}, {buffer}"
        )


@pytest.mark.parametrize("exact", [False, True])
def test_every_candidate_of_random_nests(tmp_path: Path, exact: bool) -> None:
    mixes: dict[int, Mix] = {}
    for seed in SEEDS:
        torch.manual_seed(seed)
        mixes[seed] = mix(seed)
    cases = {seed: cases_of(seed, made, exact) for seed, made in mixes.items()}
    assert sum(len(found) > 2 for found in cases.values()) >= len(SEEDS) // (4 if exact else 2)
    every = [one for found in cases.values() for one in found]
    library = build(every, TARGET, tmp_path, precise=exact)
    for seed, found in cases.items():
        first: Results | None = None
        for one in found:
            message = f"seed {seed}, {one.kernel.schedules[0]}"
            got, want = both(one, library, mixes[seed].inputs, {})
            close(got, want, message)
            first = got if first is None else first
            if exact:
                assert all(torch.equal(t.nan_to_num(7.0), first[b].nan_to_num(7.0)) for b, t in got.items()), message


def test_candidates_are_of_every_kind() -> None:
    """What the property above is about. Steps that random nests seldom ask for have tests of their own."""
    told = set[str]()
    for seed in range(60):
        first, *others = [c.kernel.schedules[0] for c in cases_of(seed, mix(seed), False)]
        told |= {name for other in others for name in NAMES if getattr(first, name) != getattr(other, name)}
    assert told == set(NAMES)


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("make", [softmax, norm, norm_backward])
def test_every_candidate_of_kernels_with_several_phases(tmp_path: Path, make: Callable[..., Any], exact: bool) -> None:
    """Here rows keep values, and may keep more of them or none."""
    arguments = (37, 300, 1, "float32") if make is softmax else (37, 300, "float32")
    body, buffers, inputs, _ = make(*arguments)
    cases = cases_of(0, Mix(body, buffers, {n: t.nan_to_num(0.0, 0.0, 0.0) for n, t in inputs.items()}), exact)
    assert make is norm or len({c.kernel.schedules[0].kept for c in cases}) > 1
    library = build(cases, TARGET, tmp_path, precise=exact)
    first: Results | None = None
    for one in cases:
        got, want = both(one, library, {n: t.nan_to_num(0.0, 0.0, 0.0) for n, t in inputs.items()}, {})
        close(got, want, str(one.kernel.schedules[0]))
        first = got if first is None else first
        assert not exact or all(torch.equal(t, first[b]) for b, t in got.items()), one.kernel.schedules[0]
