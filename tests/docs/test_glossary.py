"""The glossary's terms are where it says, each once."""

from __future__ import annotations

import importlib
import re

import pytest

from tests.architecture.source import ROOT

ROWS = re.findall(
    r"^\| (.+?) \| `(lamina[\w.]*)` \| (.+) \|$", (ROOT / "docs/glossary.md").read_text("utf-8"), re.MULTILINE
)


def found(path: str) -> object:
    """The module, or what a module holds, by its dotted name."""
    names = path.split(".")
    for end in range(len(names), 0, -1):
        try:
            value: object = importlib.import_module(".".join(names[:end]))
        except ModuleNotFoundError:
            continue
        for name in names[end:]:
            value = getattr(value, name)
        return value
    raise ModuleNotFoundError(path)


@pytest.mark.parametrize("path", sorted({path for _, path, _ in ROWS}))
def test_terms_are_where_the_glossary_says(path: str) -> None:
    found(path)


def test_each_term_has_one_sentence_and_one_meaning() -> None:
    terms = [term for term, _, _ in ROWS]
    assert len(terms) > 50
    assert len(set(terms)) == len(terms)
    assert not [text for _, _, text in ROWS if not text.endswith(".") or ". " in re.sub(r"\(.*?\)|\d\.\d", "", text)]


def test_a_term_that_is_gone_is_noticed() -> None:
    with pytest.raises(AttributeError):
        found("lamina.ir.plan.GpuSchedule.team")
