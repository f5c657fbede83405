from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import io
import re
import subprocess
import types

import pytest

import lamina
from lamina.base.tables import Table, plain_console
from lamina.ir.plan import GpuSchedule, Schedule
from tests.architecture.source import ROOT, functions, sources

MOST_LINES_OF_A_FILE = 800
MOST_LINES_OF_A_FUNCTION = 100
MOST_PUBLIC_NAMES = 27

CONSOLES = {"src/lamina/base/tables.py", "src/lamina/explain/explanation.py"}
"""Where consoles are made: of texts as they are, and to ask whether a terminal has colours."""

HOME_FOLDERS = ("home", "root", "work", "Users")
MODULES = [file.module for file in sources()]


def test_files_are_short_enough_to_be_read() -> None:
    lengths = {file.name: file.text.count("\n") for file in sources()}
    assert not {name: count for name, count in lengths.items() if count > MOST_LINES_OF_A_FILE}


def test_functions_are_short_enough_to_be_read() -> None:
    long = []
    for file in sources():
        for function in functions(file.tree):
            count = (function.end_lineno or function.lineno) - function.lineno + 1
            if count > MOST_LINES_OF_A_FUNCTION:
                long.append(f"{file.at(function)} {function.name}: {count} lines")
    assert not long


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith("lamina.ir")])
def test_values_of_the_ir_are_frozen_and_slotted(module: str) -> None:
    for name, value in vars(importlib.import_module(module)).items():
        if not dataclasses.is_dataclass(value) or not isinstance(value, type) or value.__module__ != module:
            continue
        if name.startswith("_"):
            continue  # a builder or a walker of its own file, no value that is passed on
        assert value.__dataclass_params__.frozen, f"{module}.{name} is not frozen"
        assert "__slots__" in vars(value), f"{module}.{name} has no slots"


def test_schedules_are_made_with_names() -> None:
    for schedule, places in ((Schedule, 3), (GpuSchedule, 2)):
        assert all(field.kw_only for field in dataclasses.fields(schedule)[places:])


@pytest.mark.parametrize("module", MODULES)
def test_every_module_and_public_name_is_documented(module: str) -> None:
    loaded = importlib.import_module(module)
    assert (loaded.__doc__ or "").strip(), f"{module} does not say what it holds"
    for name in getattr(loaded, "__all__", ()):
        value = getattr(loaded, name)
        ours = (getattr(value, "__module__", "") or "").startswith("lamina")  # others' names are documented by them
        if ours and (isinstance(value, type) or inspect.isroutine(value)):
            text = value.__dict__.get("__doc__") if isinstance(value, type) else value.__doc__
            made_up = isinstance(value, type) and (text or "").startswith(f"{name}(")  # a dataclass's own
            assert text, f"{module}.{name} has no docstring"
            assert not made_up, f"{module}.{name} has no docstring"


def is_rule(node: ast.FunctionDef | ast.ClassDef) -> bool:
    """Whether a decorator with arguments enters the function into a table: that is then where it is called from."""
    return isinstance(node, ast.FunctionDef) and any(
        isinstance(decorator, ast.Call) and "rule" in ast.dump(decorator.func) for decorator in node.decorator_list
    )


def test_modules_with_public_names_list_them() -> None:
    missing = []
    for file in sources():
        names = [
            node.name
            for node in file.tree.body
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_") and not is_rule(node)
        ]
        listed = re.search(r"^__all__\b", file.text, re.MULTILINE)
        if names and not listed:
            missing.append(file.name)
    assert not missing


def test_the_package_has_few_public_names() -> None:
    assert len(lamina.__all__) <= MOST_PUBLIC_NAMES
    assert sorted(lamina.__all__) == sorted(set(lamina.__all__))
    for name in lamina.__all__:
        assert not isinstance(getattr(lamina, name), types.ModuleType)


def test_no_file_names_a_folder_of_someones_machine() -> None:
    pattern = re.compile(r"(?<![\w.~/-])/(" + "|".join(HOME_FOLDERS) + r")/\w")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    wrong = []
    for name in listed.splitlines():
        path = ROOT / name
        if not path.is_file() or path.suffix in (".png", ".pt"):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if pattern.search(line):
                wrong.append(f"{name}:{number}")
    assert not wrong
    assert pattern.search('open("/' + HOME_FOLDERS[0] + '/someone")')


def test_consoles_print_texts_as_they_are() -> None:
    made = {file.name for file in sources() if re.search(r"(?<!\w)Console\(", file.text)}
    assert made == CONSOLES
    out, table = io.StringIO(), Table("name [i]")
    table.add_row("x[i] [red]:x:[/red]")
    plain_console(file=out, width=60).print("[b]a[/b] :x:", table)
    assert "[b]a[/b] :x:" in out.getvalue()
    assert "x[i] [red]:x:[/red]" in out.getvalue()
    assert "name [i]" in out.getvalue()
