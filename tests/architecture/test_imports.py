from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import grimp
import networkx

from tests.architecture.source import ROOT, dotted, functions, imported, sources

PRIVATE_FILE = "torch_private.py"
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


def is_private_torch(name: str) -> bool:
    parts = name.split(".")
    if parts[0] not in ("torch", "functorch") or parts[1:2] == ["ops"]:
        return False  # torch.ops.aten._softmax is an operator's public name
    hidden = any(part.startswith("_") and not part.endswith("__") for part in parts)
    return hidden or parts[0] == "functorch" or parts[:3] == ["torch", "fx", "experimental"]


def test_private_torch_names_stand_in_their_own_files() -> None:
    wrong = []
    for file in sources():
        if file.path.name == PRIVATE_FILE:
            continue
        for node in ast.walk(file.tree):
            names = imported(node) or [dotted(node)]
            wrong += [f"{file.at(node)} names {name}" for name in names if is_private_torch(name)]
    assert not wrong


PUBLIC_IN_SPITE_OF_THEIR_NAMES = ("torch._check", "torch._foreach_", "torch.ops.")
"""Those that torch documents, and operators."""


def private_torch_names_in(text: str) -> list[str]:
    """The private names of torch that a text has, as one that tells a user what to set."""
    found = re.findall(r"\b(?:torch|functorch)(?:\.\w+)+", text)
    return [name for name in found if is_private_torch(name) and not name.startswith(PUBLIC_IN_SPITE_OF_THEIR_NAMES)]


def test_private_torch_names_in_texts_stand_in_their_own_files() -> None:
    wrong = []
    for file in sources():
        if file.path.name == PRIVATE_FILE:
            continue
        documentation = {id(node.value) for node in ast.walk(file.tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(file.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
                wrong += [f"{file.at(node)} names {name}" for name in private_torch_names_in(node.value)]
    assert not wrong


def test_private_torch_names_in_texts_are_recognised() -> None:
    assert private_torch_names_in("set torch._dynamo.config.allow_rnn = True") == ["torch._dynamo.config.allow_rnn"]
    assert private_torch_names_in("torch.fx.experimental._config.use_duck_shape")
    assert not private_torch_names_in("bound it with torch._check(n > 0), or call torch.where")


def test_private_torch_names_are_recognised() -> None:
    assert is_private_torch("torch._inductor.config")
    assert is_private_torch("torch.fx.experimental.symbolic_shapes.ShapeEnv")
    assert is_private_torch("torch.utils._pytree.tree_map")
    assert not is_private_torch("torch.ops.aten._softmax.default")
    assert not is_private_torch("torch.__version__")


def test_only_options_reads_the_environment() -> None:
    wrong = []
    for file in sources():
        if file.module == "lamina.options":
            continue
        for node in ast.walk(file.tree):
            names = imported(node) or [dotted(node)]
            wrong += [file.at(node) for n in names if n in ("os.environ", "os.environb", "os.getenv", "os.putenv")]
    assert not wrong
