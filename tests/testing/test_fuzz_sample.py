"""Random programs compiled by Lamina: a fixed sample, and at length what ``--fuzz-examples`` asks for."""

from __future__ import annotations

import pytest

from lamina.testing.fuzz import fuzz

SAMPLE = 60
LONG = 3000
PARTS = 3


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("part", range(PARTS))
def test_a_sample_of_programs_runs_as_in_eager(part: int) -> None:
    seeds = list(range(part, SAMPLE, PARTS))
    campaign = fuzz(target="lamina", seeds=seeds)
    assert campaign.programs == len(seeds)
    assert not [(f.seed, f.text) for f in campaign.own]


@pytest.mark.slow
def test_many_programs_run_as_in_eager(request: pytest.FixtureRequest) -> None:
    count = int(request.config.getoption("--fuzz-examples")) or LONG
    campaign = fuzz(count, 1000, target="lamina", workers=2)
    assert campaign.programs == count
    assert not [(f.seed, f.text) for f in campaign.own]
