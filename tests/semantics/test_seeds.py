"""What the user has seeded draws the same numbers whether Lamina is asked for or not."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.processes import python

_PROGRAM = """
import random
import numpy as np
import torch
import lamina

def states():
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

random.seed(5), np.random.seed(5), torch.manual_seed(5)
before = states()
{use}
assert states() == before
"""
_STEP = "(torch.ones(3, requires_grad=True)).sum().backward()"
USES = {
    "compile": f"lamina.compile(torch.sin){_STEP}",
    "own": f"lamina.compile(torch.sin, options={{'capture': 'own'}}){_STEP}",
    "backend": f"torch.compile(torch.sin, backend='lamina'){_STEP}",
    "verify": "lamina.verify(torch.sin, torch.ones(3))",
    "names": "[getattr(lamina, name) for name in dir(lamina)]",
}


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("use", USES)
def test_the_first_use_of_lamina_draws_no_random_number(use: str) -> None:
    program = [sys.executable] if use == "names" else python()  # which imports all of Lamina
    done = subprocess.run([*program, "-c", _PROGRAM.format(use=USES[use])], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
