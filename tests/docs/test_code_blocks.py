"""The Python of the documents runs, block after block in one namespace, and the make targets they name exist."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.architecture.source import ROOT
from tests.processes import python

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(document: Path) -> list[str]:
    return BLOCK.findall(document.read_text(encoding="utf-8"))


# The programs of clients.md, one for each library, are run by tests/clients.
RUN_HERE = [d for d in DOCUMENTS if blocks(d) and d.name != "clients.md"]


@pytest.mark.by_dynamo(
    "shows what Dynamo does", "docs/freezing.md", "docs/graph-breaks.md", "docs/kernels.md", "docs/recompiles.md"
)
@pytest.mark.parametrize(
    "document",
    RUN_HERE,
    ids=lambda d: d.relative_to(ROOT).as_posix(),
)
def test_python_blocks_run(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for number, block in enumerate(blocks(document), 1):
        # Each block is a file, because capture reads the source of what it compiles.
        source = tmp_path / f"block_{number}.py"
        source.write_text(block, encoding="utf-8")
        exec(compile(block, str(source), "exec"), namespace)


@pytest.mark.parametrize("name", ["README.md", "docs/tutorial.md", "docs/kernels.md", "docs/lowerings.md"])
def test_the_pages_have_code_to_run(name: str) -> None:
    assert len(blocks(ROOT / name)) >= 2


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.relative_to(ROOT).as_posix())
def test_named_make_targets_and_files_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z-]+)`", text)) | set(re.findall(r"^make ([a-z-]+)$", text, re.MULTILINE))
    assert named <= targets
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", prose):
        assert (document.parent / link).exists(), f"{document.name} links to {link}"


COMMANDS = re.compile(r"^```sh\n(.*?)^```|^    (lamina [^\n]*)$", re.DOTALL | re.MULTILINE)

TRAINING = """
import sys

import torch

import lamina


def step(x, w):
    return torch.softmax((x @ w).relu(), -1).square().sum()


if __name__ == "__main__":
    torch.manual_seed(0)
    step = lamina.compile(step)
    w = torch.randn(16, 8, requires_grad=True)
    for rows in (4, 5):
        step(torch.randn(rows, 16), w).backward()
"""

FUNCTION = """
import torch


def function(x=torch.ones(8, 16)):
    return torch.softmax(x * 2, -1)
"""


def commands(name: str) -> list[str]:
    """The shell commands of a page: blocks marked as such, and lines that begin with the command, without remarks."""
    found = COMMANDS.findall((ROOT / name).read_text(encoding="utf-8"))
    return [text for block, line in found for text in (block or line.split("   ")[0]).strip().splitlines() if text]


def in_shell(folder: Path, script: str, timeout: int = 280) -> subprocess.CompletedProcess[str]:
    """A script run in ``folder``, where ``lamina`` and ``python`` are those of this process."""
    for name, call in (("lamina", "-m lamina "), ("python", "")):
        program = folder / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\nexec {shlex.join(python())} {call}"$@"\n', encoding="utf-8")
        program.chmod(0o755)
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{folder}"}
    return subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout
    )


PAGES = {
    "docs/bisect.md": {"lamina minify train.py --to small.py": 2},
    "docs/explaining.md": {},
    "docs/profiling.md": {},
}
"""The pages, with the commands whose status is not 0: nothing differs in the program, so there is nothing to reduce."""


@pytest.mark.parametrize(("name", "command"), [(name, command) for name in PAGES for command in commands(name)])
def test_the_commands_of_pages_run(name: str, command: str, tmp_path: Path) -> None:
    for script in ("train.py", "program.py"):
        (tmp_path / script).write_text(TRAINING, encoding="utf-8")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "module.py").write_text(FUNCTION, encoding="utf-8")
    done = in_shell(tmp_path, command)
    assert done.returncode == PAGES[name].get(command, 0), f"{command}\n{done.stdout}{done.stderr}"
    assert done.stdout + done.stderr


def test_the_pages_have_commands_to_run() -> None:
    assert all(len(commands(name)) > 1 for name in PAGES)


def test_the_commands_of_the_cache_page_run(tmp_path: Path) -> None:
    (tmp_path / "block.py").write_text(blocks(ROOT / "docs/cache.md")[0], encoding="utf-8")
    done = in_shell(tmp_path, "\n".join(["set -e", "python block.py", *commands("docs/cache.md")]))
    assert done.returncode == 0, done.stdout + done.stderr
    added = re.search(r"^([0-9]+) entries and notes added, 0 refused", done.stdout, re.MULTILINE)
    assert added, done.stdout
    assert int(added[1]) > 0
    assert "0 bad" in done.stdout
