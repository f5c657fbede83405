"""Random programs of modes and graph breaks, compared with eager in several outer modes."""

import warnings

import pytest
import torch

import lamina
from tests.fuzz.states import program_of, run_program

WAYS = {"lamina": lamina.compile, "torch": lambda f: torch.compile(f, backend="lamina")}


def check(seed, way):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        text = program_of(seed)
        difference = run_program(text, WAYS[way])
        if difference:
            pytest.fail(f"seed {seed} ({way})\n{text}\n{difference}")


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("seed", range(2, 8))
def test_sample(seed):
    check(seed, "torch" if seed % 3 == 0 else "lamina")


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 4000, 50))
def test_many(first):
    for seed in range(first, first + 50):
        check(seed, "torch" if seed % 3 == 0 else "lamina")


def test_the_comparison_sees_a_lost_mode():
    """Eager with autocast taken away differs from eager."""
    text = "import torch\nseen = []\ndef program(x, w):\n    return x @ w\n"

    def wrong(function):
        def run(x, w):
            with torch.autocast("cpu", enabled=False):
                return function(x, w)

        return run

    assert "within autocast" in run_program(text, wrong)
