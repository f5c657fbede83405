"""What one feature needs of several stages stands in a folder of its own, which says so."""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from typing import Any

import pytest

from tests.architecture.source import PACKAGE, ROOT, imported, sources

CONTRACTS: list[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
    "importlinter"
]["contracts"]
FEATURES: list[str] = next(c for c in CONTRACTS if c.get("exhaustive"))["exhaustive_ignores"]
CLOCKS = "tuning"
"""The feature that another one may import: whatever a clock decides is measured by it."""
PRIVATE_FILE = "torch_private"


def test_features_import_no_other_feature_but_tuning() -> None:
    wrong = []
    for file in sources():
        own = file.module.split(".")[1] if "." in file.module else ""
        if own not in FEATURES:
            continue
        for node in ast.walk(file.tree):
            others = {name.split(".")[1] for name in imported(node) if name.startswith("lamina.")} & {*FEATURES}
            wrong += [f"{file.at(node)} imports {other}" for other in others - {own, CLOCKS}]
    assert not wrong


@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_says_which_files_it_has(feature: str) -> None:
    text = importlib.import_module(f"lamina.{feature}").__doc__ or ""
    files = {path.stem for path in (PACKAGE / feature).glob("*.py")} - {"__init__", PRIVATE_FILE}
    assert files == set(re.findall(r"``(\w+)\.py``", text))


def test_the_package_of_a_feature_holds_its_docstring_only() -> None:
    wrong = []
    for file in sources():
        if file.path.name == "__init__.py" and file.module.removeprefix("lamina.") in FEATURES:
            wrong += [file.at(node) for node in file.tree.body if not isinstance(node, ast.Expr)]
    assert not wrong


README = (ROOT / "README.md").read_text(encoding="utf-8")
PACKAGES = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}


def test_the_readme_says_what_each_package_holds() -> None:
    rows = re.findall(r"^\| (`\w+/`.*?) \|", README, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)/`", row)} == PACKAGES


def test_the_readme_has_the_packages_in_the_order_of_the_contracts() -> None:
    layers: list[str] = next(c for c in CONTRACTS if c.get("exhaustive"))["layers"]
    wanted = [{name for name in re.split(r"[ |:]+", layer) if name in {*PACKAGES, "compile"}} for layer in layers]
    (line,) = re.findall(r"^    (base <- .*)$", README, re.MULTILINE)
    assert [{*re.findall(r"\w+", part)} for part in line.split("<-")] == [names for names in reversed(wanted) if names]
