"""Writes to views that eager refuses: parts of several, views made without gradients or in inference mode."""

from itertools import islice

import pytest
import torch

import lamina
from lamina.testing.fuzz import check
from tests.capture.own.refused_writes import refused_writes

OWN, USUAL = {"capture": "own"}, {}


def _parts_of_an_input(x):
    first, _ = x.split(2)
    return first


def _part_of_a_part(x):
    first, *_ = x.t().split(2)[1][None].unbind(1)
    return first


def _beside_a_flush(x):
    v = x * 2
    first, *more = v.unbind(0)
    with torch.no_grad():
        _ = x.data
    return (first, *more)[0]


def _part_that_depends_on_a_result(x):
    p = x * 1
    return p.sin().chunk(2, 1)[0], p


def _part_beside_a_write(x):
    v = x * 1
    parts = v.chunk(2, 1)
    x.copy_(x * 2)
    return parts[0]


@pytest.mark.parametrize("options", [OWN, USUAL], ids=["own", "default"])
@pytest.mark.parametrize(
    "program",
    [
        _parts_of_an_input,
        _part_of_a_part,
        _beside_a_flush,
        _part_that_depends_on_a_result,
        _part_beside_a_write,
    ],
)
def test_parts_are_not_written_to(program, options):
    compiled = lamina.compile(program, options=options)
    for _ in range(2):
        found = compiled(torch.ones(4, 4, requires_grad=True) * 1)
        part = found[0] if isinstance(found, tuple) else found
        with pytest.raises(RuntimeError, match="modified inplace"):
            part.zero_()


@pytest.mark.parametrize("options", [OWN, USUAL], ids=["own", "default"])
def test_a_part_that_depends_on_a_result_leads_gradients_to_it(options):
    compiled = lamina.compile(_part_that_depends_on_a_result, options=options)
    part, result = compiled(torch.ones(4, 4, requires_grad=True) * 1)
    (found,) = torch.autograd.grad(part.sum(), result)
    expected = torch.zeros(4, 4)
    expected[:, :2] = torch.cos(torch.ones(4, 2))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("target", ["lamina+capture=own", "lamina"])
def test_a_sample_of_programs(target):
    for program in islice(refused_writes(5), 12):
        verdict = check(program, target)
        assert verdict.ok, f"{program}\n{verdict}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_programs(seed):
    for program in islice(refused_writes(seed), 50):
        verdict = check(program, "lamina+capture=own")
        assert verdict.ok, f"{program}\n{verdict}"
