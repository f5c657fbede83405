"""The package's own names: nothing is loaded before it is asked for, and each name is what it says."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

import lamina
from tests.architecture.source import sources

ROOT = Path(__file__).parents[2]


def test_importing_the_package_loads_neither_torch_nor_the_compiler() -> None:
    program = "import sys, lamina; print(sorted(m for m in sys.modules if m.split('.')[0] in ('torch', 'lamina')))"
    said = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert said.split() == ["['lamina']"]


def test_every_public_name_is_there_and_listed() -> None:
    assert set(lamina.__all__) <= set(dir(lamina))
    for name in lamina.__all__:
        assert getattr(lamina, name).__name__ == name


def test_compile_is_the_function_whoever_imports_its_module() -> None:
    module = import_module("lamina.compile")
    assert isinstance(module, ModuleType)
    assert isinstance(lamina.compile, FunctionType)
    assert lamina.compile is module.compile


def test_modules_for_users_need_no_import_of_their_own() -> None:
    program = "import lamina; print(lamina.errors.LaminaError.__name__, lamina.extend.rule.__name__)"
    said = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert said.split() == ["LaminaError", "rule"]


def test_what_is_imported_whatever_is_used_is_a_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {re.split(r"[^\w-]", text)[0] for text in project["dependencies"]} | {"lamina"}
    declared |= {"sympy", "triton"}  # torch needs the one; files that import the other are loaded where it is
    wrong = []
    for file in sources():
        for node in file.tree.body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            tops = {name.partition(".")[0] for name in names} - {*sys.stdlib_module_names}
            wrong += [f"{file.at(node)} imports {top}" for top in tops - declared]
    assert not wrong


def test_a_name_that_is_not_there_is_said() -> None:
    with pytest.raises(AttributeError, match="module 'lamina' has no attribute 'nothing'"):
        lamina.nothing  # noqa: B018
