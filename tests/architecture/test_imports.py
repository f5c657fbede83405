from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grimp
import networkx

from tests.architecture.source import ROOT, dotted, functions, imported, sources

OPTIONAL = {"triton"}
"""Third-party packages that may be missing, so that their import may stand inside one function."""


def test_the_import_contracts_hold() -> None:
    command = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = grimp.build_graph("lamina", cache_dir=None)
    edges = networkx.DiGraph()
    for module in graph.modules:
        edges.add_node(module)
        edges.add_edges_from((module, other) for other in graph.find_modules_directly_imported_by(module))
    circles = [sorted(group) for group in networkx.strongly_connected_components(edges) if len(group) > 1]
    assert len(edges) == len(sources())
    assert not circles


def test_imports_stand_at_the_top_of_the_file() -> None:
    wrong = []
    optional: Counter[str] = Counter()
    for file in sources():
        for function in functions(file.tree):
            for node in ast.walk(function):
                for name in imported(node):
                    package = name.split(".")[0]
                    optional[package] += 1
                    if package not in OPTIONAL:
                        wrong.append(f"{file.at(node)} imports {name} inside {function.name}")
    assert not wrong
    assert all(count == 1 for count in optional.values()), optional


LATE = {
    "lamina.artefacts.front": {"lamina.compile", "lamina.stats"},
    "lamina.artefacts.graphs": {"lamina.capture.own.segment"},
    "lamina.artefacts.package": {"lamina.tuner.saved"},
    "lamina.capture.own.callable": {"lamina.capture.own.interpreting"},
    "lamina.report.recording": {"lamina.ir.loops", "lamina.report.brief_graphs", "lamina.report.write"},
}
"""What is imported when it is first needed: by stored calls, which run without the compiler, and by reports. These are
the only imports that the contracts do not see."""


def late_imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Modules of Lamina's that ``import_module`` is given by name, each with the attribute that is then taken of it."""
    taken = {id(node.value): node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and dotted(node.func).endswith("import_module") and node.args:
            name = node.args[0].value if isinstance(node.args[0], ast.Constant) else ""
            if str(name).startswith("lamina."):
                yield str(name), taken.get(id(node), "")


def test_late_imports_are_few_and_find_what_they_name() -> None:
    found = {file.module: list(late_imports(file.tree)) for file in sources()}
    assert {module: {name for name, _ in late} for module, late in found.items() if late} == LATE
    for name, attribute in (one for late in found.values() for one in late):
        assert hasattr(importlib.import_module(name), attribute), f"{name} has no {attribute}"


def test_only_options_reads_the_environment() -> None:
    wrong = []
    for file in sources():
        if file.module == "lamina.options":
            continue
        for node in ast.walk(file.tree):
            names = imported(node) or [dotted(node)]
            wrong += [file.at(node) for n in names if n in ("os.environ", "os.environb", "os.getenv", "os.putenv")]
    assert not wrong
