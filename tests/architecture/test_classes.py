"""How large classes are with what they inherit, and how deep inheritance goes."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from functools import cached_property

from tests.architecture.source import sources

MOST_METHODS = 20
MOST_CLASSES_OF_OURS = 2
"""A class and one base of ours."""

MANY_METHODS = {
    "codegen.triton.nest_analysis.NestAnalysis": 27,
    "codegen.triton.product._PartAnalysis": 27,
    "codegen.triton.reductions.Reducer": 23,
    "rewrite.rewriting.Rewriting": 21,
    "schedule.gpu._Chooser": 42,
    "schedule.gpu_facts.NestFacts": 26,
    "schedule.gpu_reductions.Reductions": 35,
    "schedule.tile.Chooser": 29,
}
"""The classes that are too large today, with their methods. They may only shrink; one that is small enough goes."""

DEEP = {
    "schedule.gpu._Chooser": 3,
}
"""The classes that are too deep today, with the number of our classes that make them up."""

METHODS = (property, cached_property, classmethod, staticmethod)


def classes() -> Iterator[tuple[str, type]]:
    """The classes of the package's modules, by their names without ``lamina.``; errors have names and no more."""
    for file in sources():
        module = importlib.import_module(file.module)
        for node in file.tree.body:
            found = getattr(module, node.name, None) if isinstance(node, ast.ClassDef) else None
            if isinstance(found, type) and not issubclass(found, BaseException):
                yield f"{file.module}.{found.__name__}".removeprefix("lamina."), found


def ours(found: type) -> list[type]:
    """A class and its bases that are the package's."""
    return [base for base in found.__mro__ if base.__module__.startswith("lamina")]


def methods(found: type) -> set[str]:
    """The names of a class's methods and properties, inherited ones too; those of the language count only written."""
    return {
        name
        for base in ours(found)
        for name, value in vars(base).items()
        if (inspect.isfunction(value) or isinstance(value, METHODS)) and not name.startswith("__")
    }


def test_classes_have_few_methods_with_those_of_their_bases() -> None:
    sizes = {name: len(methods(found)) for name, found in classes()}
    large = {name: size for name, size in sizes.items() if size > MOST_METHODS}
    assert {name: size for name, size in large.items() if size > MANY_METHODS.get(name, 0)} == {}
    assert set(MANY_METHODS) == set(large), "a class that is small enough needs no exception"


def test_inheritance_is_shallow() -> None:
    deep = {name: len(ours(found)) for name, found in classes() if len(ours(found)) > MOST_CLASSES_OF_OURS}
    assert deep == DEEP
