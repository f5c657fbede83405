"""The page of stages names all stages and kinds of decisions that the source has, and no others."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from lamina.base import logs
from tests.architecture.source import ROOT, dotted, sources

TEXT = (ROOT / "docs/stages.md").read_text(encoding="utf-8")
NOTING = {"add", "decided", "keep", "note", "noting", "step", "told"}
ROW = re.compile(r"^\| ((?:`[^`]+`(?:, )?)+) \| .+ \| (?:`(\w+)` )?\|$", re.MULTILINE)


def rows(heading: str) -> dict[str, str]:
    """The names in the table under a heading, each with its log ("" if it has none)."""
    part = TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return {name: log for names, log in ROW.findall(part) for name in re.findall("`([^`]+)`", names)}


STAGES, KINDS = rows("Stages"), rows("Kinds of decisions")


def texts(node: ast.expr | None) -> list[str]:
    """The text that an expression is, or those that it chooses from."""
    if isinstance(node, ast.IfExp):
        return texts(node.body) + texts(node.orelse)
    return [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []


def calls() -> Iterator[ast.Call]:
    for file in sources():
        if not file.module.startswith(("lamina.testing", "lamina.tuner", "lamina.cli")):
            yield from (node for node in ast.walk(file.tree) if isinstance(node, ast.Call))


def kinds() -> set[str]:
    found: set[str] = set()
    for call in calls():
        name = dotted(call.func).rpartition(".")[2]
        if name in ("Decision", "decided") and call.args:
            found.update(texts(call.args[0]))
    return found


def stages() -> set[str]:
    found: set[str] = set()
    for call in calls():
        place = 1 if isinstance(call.func, ast.Attribute) and call.func.attr in NOTING else None
        if place is not None and len(call.args) > 1 and "record" in ast.unparse(call.func):
            found.update(texts(call.args[1]))
        found.update(text for keyword in call.keywords if keyword.arg == "stage" for text in texts(keyword.value))
    return found - {""} - KINDS.keys()


def test_all_kinds_of_decisions_are_on_the_page() -> None:
    assert len(kinds()) > 40
    assert kinds() - KINDS.keys() == set()


def test_all_stages_are_on_the_page() -> None:
    assert len(stages()) > 20
    assert stages() - STAGES.keys() == set()


def test_what_is_on_the_page_is_in_the_source() -> None:
    written = {text for file in sources() for node in ast.walk(file.tree) for text in texts_of(node)}
    assert (STAGES.keys() | KINDS.keys()) - written == set()


def texts_of(node: ast.AST) -> list[str]:
    return texts(node) if isinstance(node, ast.Constant) else []


def test_the_logs_are_those_that_the_events_go_to() -> None:
    assert {name: log for name, log in STAGES.items() if log} == logs._STAGES
    assert {log for log in KINDS.values() if log} <= logs.CHANNELS.keys()
    assert {name: KINDS[name] for name in logs._KINDS} == logs._KINDS
