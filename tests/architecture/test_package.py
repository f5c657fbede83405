"""The package's own names: nothing is loaded before it is asked for, and each name is what it says."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

import lamina

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


def test_a_name_that_is_not_there_is_said() -> None:
    with pytest.raises(AttributeError, match="module 'lamina' has no attribute 'nothing'"):
        lamina.nothing  # noqa: B018
