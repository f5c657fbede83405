"""Numbers at the top of modules say what they are: unit, where they come from, what a wrong one costs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.architecture.source import SourceFile, parse, sources

CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*")


def is_number(node: ast.AST | None) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float) and not isinstance(node.value, bool)
    if isinstance(node, ast.UnaryOp):
        return is_number(node.operand)
    return isinstance(node, ast.BinOp) and is_number(node.left) and is_number(node.right)


def numbers(file: SourceFile) -> Iterator[tuple[ast.stmt, ast.stmt | None]]:
    """Assignments of numbers to names in capitals, each with the statement after it."""
    body = file.tree.body
    for statement, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(statement, ast.Assign):
            target, value = statement.targets[0], statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            target, value = statement.target, statement.value
        else:
            continue
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        values = value.elts if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) else [value]
        capital = all(isinstance(name, ast.Name) and CONSTANT.fullmatch(name.id) for name in names)
        if capital and any(map(is_number, values)):
            yield statement, after


def is_explained(file: SourceFile, statement: ast.stmt, after: ast.stmt | None) -> bool:
    if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
        return True
    lines = file.text.splitlines()
    before = lines[statement.lineno - 2].lstrip() if statement.lineno > 1 else ""
    return "#" in lines[statement.lineno - 1] or before.startswith("#")


def test_numeric_constants_say_what_they_are() -> None:
    wrong = [
        file.at(statement)
        for file in sources()
        for statement, after in numbers(file)
        if not is_explained(file, statement, after)
    ]
    assert not wrong


def test_a_number_without_a_word_is_found(tmp_path) -> None:
    path = tmp_path / "module.py"
    path.write_text('_TOLD = 1 << 20\n"""Bytes."""\n_COMMENTED = 3  # tries\n_BARE, _OTHER = 2, -1.5\n_TEXT = "a"\n')
    file = parse(path)
    found = [is_explained(file, *pair) for pair in numbers(file)]
    assert found == [True, True, False]
