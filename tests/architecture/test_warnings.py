"""Warnings name the user's line."""

from __future__ import annotations

import ast
from pathlib import Path

import lamina

SOURCES = Path(lamina.__file__).parent


def _warns(path: Path) -> bool:
    """Whether a file calls ``warnings.warn`` with a ``LaminaWarning``."""
    calls = (node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call))
    return any(
        ast.unparse(call.func) == "warnings.warn" and "LaminaWarning" in map(ast.unparse, call.args) for call in calls
    )


def test_one_function_gives_lamina_warnings() -> None:
    """A fixed number of frames is not where the user is; ``warn_user`` looks for that."""
    assert [str(p.relative_to(SOURCES)) for p in SOURCES.rglob("*.py") if _warns(p)] == ["base/user_warnings.py"]
