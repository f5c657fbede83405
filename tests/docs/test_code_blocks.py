"""The Python of the documents runs, block after block in one namespace, and the make targets they name exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.source import ROOT

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(document: Path) -> list[str]:
    return BLOCK.findall(document.read_text(encoding="utf-8"))


# The programs of clients.md, one for each library, are run by tests/clients.
RUN_HERE = [d for d in DOCUMENTS if blocks(d) and d.name != "clients.md"]


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


def test_the_commands_of_the_cache_page_run(tmp_path: Path) -> None:
    [commands] = re.findall(r"^```sh\n(.*?)^```", (ROOT / "docs/cache.md").read_text("utf-8"), re.DOTALL | re.MULTILINE)
    program = tmp_path / "lamina"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m lamina "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    source = tmp_path / "block.py"
    source.write_text(blocks(ROOT / "docs/cache.md")[0], encoding="utf-8")
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src")}
    script = f'set -e\n"{sys.executable}" block.py\n{commands}'
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    added = re.search(r"^([0-9]+) entries and notes added, 0 refused", done.stdout, re.MULTILINE)
    assert added, done.stdout
    assert int(added[1]) > 0
    assert "0 bad" in done.stdout
