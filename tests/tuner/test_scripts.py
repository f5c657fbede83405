"""Scripts of users who do not look at the name of their module: processes of candidates must not run them again."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.processes import python

BEGIN = """
import torch
import lamina
from lamina.tuner.values import Candidate

print("it runs")
candidates = [Candidate("wrong", "import", {"target": "tests.tuner.planted:constant"})]
given = {"candidates": candidates, "modules": False, "journal": False, "seconds": 0.1}
"""
TUNES = """
result = lamina.tune(model, torch.randn(4, 16), **given)
print([row.verdict for row in result.rows])
"""
OWN = """
class Own(torch.nn.Module):
    def forward(self, x):
        return x.sin()

model = Own()
"""
NAMED = "import logging\n\nlog = logging.getLogger(__name__)\n"
SCRIPTS = {
    "one with a logger of its name": f"{NAMED}{BEGIN}{OWN}{TUNES}",
    "a model of torch's": f"{BEGIN}model = torch.nn.Linear(16, 4)\n{TUNES}",
    "a class of its own": f"{BEGIN}{OWN}{TUNES}",
}


def ran(script: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*python(), str(script)], capture_output=True, text=True, env=os.environ, check=False)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_that_does_not_look_at_its_name_is_run_once(name: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPTS[name], encoding="utf-8")
    done = ran(script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["it runs", "['baseline', 'refused']"], done.stdout


def test_code_that_is_typed_tunes_classes_of_its_own() -> None:
    """As in a notebook: there is no script that a process could import."""
    text = f"{BEGIN}{OWN}{TUNES}"
    done = subprocess.run(python(), input=text, capture_output=True, text=True, env=os.environ, check=False)
    assert done.stdout.splitlines() == ["it runs", "['baseline', 'refused']"], done.stderr


def test_training_a_class_of_typed_code_is_told_what_to_do() -> None:
    text = f"{BEGIN}{OWN}{TUNES.replace('**given', 'loss=torch.sum, **given')}"
    done = subprocess.run(python(), input=text, capture_output=True, text=True, env=os.environ, check=False)
    assert done.returncode == 1
    assert "are of code that was typed" in done.stderr
    assert done.stderr.splitlines()[-1] == "  do: define classes and functions in a file, and import them"


def test_training_a_class_of_such_a_script_is_told_what_to_do(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    trained = TUNES.replace("**given", "loss=torch.sum, **given")
    script.write_text(f"{BEGIN}{OWN}{trained}", encoding="utf-8")
    done = ran(script)
    assert done.returncode == 1
    assert "a process that tries candidates ended before it began" in done.stderr
    assert "if __name__ == '__main__'" in done.stderr.splitlines()[-1]


ASKS = """
import torch

torch.cuda.is_initialized = lambda: True  # as if the next lines had moved a tensor to a GPU

from lamina.tuner.process import Processes
from lamina.tuner.programs import Subject
from lamina.tuner.samples import samples_of
from lamina.tuner.settings import TorchSettings
from lamina.tuner.values import EAGER
from lamina.tuner.worker import Job

class Own(torch.nn.Module):
    def forward(self, x):
        return x.sin()

if __name__ == "__main__":
    row = Processes(Subject(Own(), samples_of(torch.ones(2)))).run(Job(EAGER, TorchSettings.here(), 0.1, gpu="5"), 60)
    print(row.verdict, row.reason)
"""


def test_a_script_that_asks_for_a_gpu_as_it_is_imported_is_said(tmp_path: Path) -> None:
    """A process that is to see one GPU alone would use the first, as all others do, which disturbs what is timed."""
    script = tmp_path / "script.py"
    script.write_text(ASKS, encoding="utf-8")
    done = ran(script)
    assert done.stdout.startswith("failed while its process starts: the user's script asks for a GPU"), done
    assert "move what asks for a GPU under `if __name__ == '__main__':`" in done.stdout
