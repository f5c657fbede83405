"""What torch has under private names stands in files of its own, one a package: those are what a new torch breaks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
import torch

from tests.architecture.source import SourceFile, dotted, imported, sources

PRIVATE_FILE = "torch_private.py"


def is_private_torch(name: str) -> bool:
    parts = name.split(".")
    if parts[0] not in ("torch", "functorch") or parts[1:2] == ["ops"]:
        return False  # torch.ops.aten._softmax is an operator's public name
    hidden = any(part.startswith("_") and not part.endswith("__") for part in parts)
    return hidden or parts[0] == "functorch" or parts[:3] == ["torch", "fx", "experimental"]


def full_name(node: ast.AST, known: dict[str, str]) -> str:
    """``torch.a.b`` of a chain of attributes, whatever name the file gives to its front; "" for anything else."""
    front, _, rest = dotted(node).partition(".")
    front = known.get(front, front)
    return f"{front}.{rest}" if rest else front


def names_given(tree: ast.AST) -> dict[str, str]:
    """What the imports of a file bring in, by the names that it gives to it."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias, full in zip(node.names, imported(node), strict=True):
                if alias.asname or isinstance(node, ast.ImportFrom):
                    found[alias.asname or alias.name] = full
    return found


def outside_of_private_files() -> list[SourceFile]:
    return [file for file in sources() if file.path.name != PRIVATE_FILE]


def private_torch_names(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    known = names_given(tree)
    for node in ast.walk(tree):
        for name in imported(node) or [full_name(node, known)]:
            if is_private_torch(name):
                yield node, name


def test_private_torch_names_stand_in_their_own_files() -> None:
    wrong = []
    for file in outside_of_private_files():
        wrong += [f"{file.at(node)} names {name}" for node, name in private_torch_names(file.tree)]
    assert not wrong


def private_attributes_of_torch() -> frozenset[str]:
    """Private attributes of values of torch's that a program has in hand, and marks that torch sets on functions."""
    add = torch.ops.aten.add
    values = (torch.empty(0), torch.nn.Module(), torch.fx.Graph(), add, add.Tensor)
    kinds = (torch.Tensor, torch.nn.Module, torch.fx.GraphModule, torch.fx.Graph, torch.fx.Node, torch.Generator)
    others = (type(add), type(add.Tensor), torch.optim.Optimizer, torch.library.CustomOpDef, torch.autograd.Function)
    listed = (*(dir(one) for one in (*values, *kinds, *others)), MARKS)
    return frozenset(name for names in listed for name in names if is_private(name))


MARKS = ("_boxed_call", "_opoverload", "_torchdynamo_disable", "_torchdynamo_inline", "_torchdynamo_orig_callable")
"""Attributes by which torch knows functions, and what an operator made by ``custom_op`` holds."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def private_attributes(tree: ast.AST, private: frozenset[str]) -> Iterator[tuple[ast.AST, str]]:
    """Places that ask a value for an attribute that is private in torch, or that name one in a text of its own."""
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    slots = [node.value for node in ast.walk(tree) if isinstance(node, ast.Assign) and is_slots(node)]
    inner |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    inner |= {id(part) for value in slots for part in ast.walk(value)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in private and dotted(node.value) not in OWN_OR_OPERATORS:
            yield node, node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            words = [word for word in node.value.split() if word in private]
            alone = words == [node.value]
            yield from ((node, word) for word in words if alone or not hasattr(torch.ops.aten, word))


OWN_OR_OPERATORS = ("self", "cls", "aten", "torch.ops.aten")
"""What has attributes of a file's own, or operators, by such names."""


def is_slots(node: ast.Assign) -> bool:
    return any(isinstance(target, ast.Name) and target.id == "__slots__" for target in node.targets)


def test_private_attributes_of_torch_stand_in_their_own_files() -> None:
    private, wrong = private_attributes_of_torch(), []
    for file in outside_of_private_files():
        wrong += [f"{file.at(node)} names {name}" for node, name in private_attributes(file.tree, private)]
    assert not wrong


PUBLIC_IN_SPITE_OF_THEIR_NAMES = ("torch._check", "torch._foreach_", "torch.ops.")
"""Those that torch documents, and operators."""


def private_torch_names_in(text: str) -> list[str]:
    """The private names of torch that a text has, as one that tells a user what to set."""
    found = re.findall(r"\b(?:torch|functorch)(?:\.\w+)+", text)
    return [name for name in found if is_private_torch(name) and not name.startswith(PUBLIC_IN_SPITE_OF_THEIR_NAMES)]


def test_private_torch_names_in_texts_stand_in_their_own_files() -> None:
    wrong = []
    for file in outside_of_private_files():
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


def test_private_torch_names_are_recognised_by_other_names() -> None:
    tree = ast.parse("import torch.nn.functional as F\nfrom torch import nn, utils as u\nF._f, nn._reduction, u.data")
    assert [name for _, name in private_torch_names(tree)] == ["torch.nn.functional._f", "torch.nn._reduction"]


@pytest.mark.parametrize(
    "text",
    ["x._base", "f(x)._version", "op._schema", "getattr(op, '_opoverload', op)", "m._modules", "x = 'a _base b'"],
)
def test_private_attributes_are_recognised(text: str) -> None:
    assert list(private_attributes(ast.parse(text), private_attributes_of_torch()))


@pytest.mark.parametrize("text", ["self._base", "aten._softmax", "f'{x}_base'", "__slots__ = ('_version',)", "x.mine"])
def test_other_attributes_are_let_through(text: str) -> None:
    assert not list(private_attributes(ast.parse(text), private_attributes_of_torch()))
