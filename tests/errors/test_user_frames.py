"""Errors show the user's frames: where the call stands, and where a function of the user's raised."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import lamina
from lamina.errors import UnknownOption
from lamina.options import list_options
from tests.processes import python

IMPORTS = "import torch, lamina\nfrom lamina.extend import Passes, rule\n\n"
FUNCTION = "def f(x):\n    return (x * 2).sum()\n\n"
CALL = "compiled(torch.randn(3))\n"

PROGRAMS = {
    "an option that is none": "lamina.compile(f, options={'nope': 1})\n",
    "an option of Inductor's": "lamina.compile(f, options={'triton.cudagraphs': True})\n",
    "a value of another type": "lamina.compile(f, options={'jobs': 'many'})\n",
    "a backend that nobody knows": "lamina.compile(f, backend='lamna')\n",
    "a backend that raises": (
        "def bad(gm, inputs):\n    raise ValueError('broken')\n\ncompiled = lamina.compile(f, backend=bad)\n" + CALL
    ),
    "a pass that raises": (
        "def bad(gm):\n    raise KeyError('broken')\n\n"
        "compiled = lamina.compile(f, options={'passes': Passes(joint=bad)})\n" + CALL
    ),
    "matches that are not made": "compiled = lamina.compile(f, options={'expect_matches': {'join_views': 3}})\n" + CALL,
    "behind torch.compile": "compiled = torch.compile(f, backend='lamina', options={'nope': 1})\n" + CALL,
    "a number for a function": "lamina.compile(3)\n",
    "a mode and another among the options": "lamina.compile(f, mode='default', options={'mode': 'max-autotune'})\n",
}


DRIVER = """
import json, sys, traceback, warnings

warnings.simplefilter("ignore")
told = {}
for name, source in json.load(open("programs.json")).items():
    try:
        exec(compile(source, "program.py", "exec"), {"__name__": "__main__"})
    except Exception as error:
        lines = traceback.format_exc().splitlines()
        # Without the frame of this file, which no user has.
        told[name] = [lines[0], *lines[next(k for k, line in enumerate(lines) if "program.py" in line) :]]
print(json.dumps(told))
"""


def told(folder: Path, **environment: str) -> dict[str, list[str]]:
    sources = {name: IMPORTS + FUNCTION + source for name, source in PROGRAMS.items()}
    (folder / "programs.json").write_text(json.dumps(sources), encoding="utf-8")
    (folder / "driver.py").write_text(DRIVER, encoding="utf-8")
    done = subprocess.run(
        [*python(), "driver.py"],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("front", ["dynamo", "own"])
def test_errors_are_told_in_fifteen_lines_that_begin_with_the_users(front: str, tmp_path: Path) -> None:
    found = told(tmp_path, LAMINA_CAPTURE=front)
    assert found.keys() == PROGRAMS.keys()
    for name, lines in found.items():
        assert len(lines) <= 15, name
        assert any(line.startswith("lamina.errors.") for line in lines), name
        assert any(line.startswith("  do: ") for line in lines), name
    lines = found["a backend that raises"]
    at = lines.index("raised by")
    assert "in bad" in lines[at + 1]
    assert lines[-1] == "ValueError: broken"


def test_the_rest_is_shown_on_request(tmp_path: Path) -> None:
    assert len(told(tmp_path, LAMINA_TRACEBACK="full")["a backend that raises"]) > 30


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("max_autotune", "max-autotune"),
        ("triton.cudagraphs", "reduce-overhead"),
        ("freezing", "freeze"),
        ("force_disable_caches", "cache"),
        ("joint_custom_pre_pass", "Passes(joint="),
        ("autocast_dtype", "torch.autocast"),
        ("fullgraph", "argument of lamina.compile"),
    ],
)
def test_names_of_other_compilers_get_a_sentence_that_names_ours(name: str, ours: str) -> None:
    with pytest.raises(UnknownOption) as raised:
        lamina.compile(abs, options={name: 1})
    assert ours in raised.value.remedy


def test_backends_and_options_are_listed() -> None:
    backends, options = lamina.list_backends(), lamina.list_options()
    assert backends["lamina"] == "built in"
    assert backends["inductor"] == "torch.compile's"
    assert backends == dict(sorted(backends.items()))
    assert options == list_options()
    assert options["simd"].startswith("'auto' (LAMINA_SIMD): ")
    assert lamina.__version__
