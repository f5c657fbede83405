"""Which operations are not the user's is said in one file."""

from __future__ import annotations

import ast

import pytest
import torch

from lamina.base.namespaces import ATEN, BUILT_IN, KNOWN
from lamina.ir.library import is_custom
from lamina.ops.table import OPERATIONS
from tests.architecture.source import sources

OWNER = "lamina.base.namespaces"


def lists_namespaces(node: ast.AST) -> bool:
    if not isinstance(node, ast.Tuple | ast.List | ast.Set):
        return False
    return {"aten", "prims"} <= {part.value for part in node.elts if isinstance(part, ast.Constant)}


def test_one_file_lists_namespaces() -> None:
    found = {file.module for file in sources() if any(map(lists_namespaces, ast.walk(file.tree)))}
    assert found == {OWNER}


def test_the_table_has_operations_of_known_namespaces_only() -> None:
    assert {overload.partition(".")[0] for overload in OPERATIONS} == {*KNOWN}
    assert {*ATEN} < {*KNOWN} < {*BUILT_IN}


@pytest.mark.parametrize("space", BUILT_IN)
def test_operations_of_torch_and_lamina_are_nobody_elses(space: str) -> None:
    assert not is_custom(f"{space}.add.default")
    assert space in {schema.name.partition("::")[0] for schema in torch._C._jit_get_all_schemas()} | {"lamina"}


def test_operations_of_the_user_are_told_from_kernels_of_the_user() -> None:
    assert is_custom("mine.add.default")
    assert not is_custom("user.add.default")
