"""The Python of the documents runs, block after block in one namespace, and the make targets they name exist."""

from __future__ import annotations

import re
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
