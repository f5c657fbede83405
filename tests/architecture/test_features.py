"""What one feature needs of several stages stands in a folder of its own, which says so."""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from typing import Any

import pytest

from tests.architecture.source import PACKAGE, ROOT, sources

CONTRACTS: list[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
    "importlinter"
]["contracts"]
FEATURES: list[str] = next(c for c in CONTRACTS if c.get("exhaustive"))["exhaustive_ignores"]
PRIVATE_FILE = "torch_private"


def test_all_features_are_in_the_contract_between_features() -> None:
    between = next(c for c in CONTRACTS if c["name"].startswith("Features"))["layers"]
    assert sorted(name for layer in between for name in re.findall(r"\w+", layer)) == sorted(FEATURES)


@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_says_which_files_it_has(feature: str) -> None:
    text = importlib.import_module(f"lamina.{feature}").__doc__ or ""
    files = {path.stem for path in (PACKAGE / feature).glob("*.py")} - {"__init__", PRIVATE_FILE}
    assert files == set(re.findall(r"``(\w+)\.py``", text))


def test_packages_of_the_compiler_run_nothing_when_they_are_imported() -> None:
    wrong = []
    for file in sources():
        if file.path.name == "__init__.py" and file.module.removeprefix("lamina.") in FEATURES:
            wrong += [file.at(node) for node in file.tree.body if not isinstance(node, ast.Expr)]
    assert not wrong
