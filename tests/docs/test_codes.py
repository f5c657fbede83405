"""The page of codes is what the code says."""

from __future__ import annotations

import re
from collections import Counter

from lamina.base.reasons import Code
from lamina.explain.codes import all_codes, codes_page
from tests.architecture.source import ROOT, sources

CODES: list[Code] = [code for section in all_codes() for code in section]
VAGUE = re.compile(r"\bunknown (reason|error)\b|\bsomething went wrong\b", re.IGNORECASE)


def test_the_page_is_up_to_date() -> None:
    assert (ROOT / "docs/codes.md").read_text(encoding="utf-8") == codes_page()


def test_each_code_is_explained_in_sentences() -> None:
    assert len(CODES) > 150
    assert not [code.number for code in CODES if not code.meaning.rstrip(")").endswith(".") or VAGUE.search(code.says)]
    assert not [code.number for code in CODES if code.says.endswith(".") or code.remedy.endswith(".")]


def test_each_code_is_used() -> None:
    files = sources()
    seen = Counter(name for file in files for name in re.findall(r"\b[A-Z][A-Z_]+\b", file.text))
    for file in files:
        if file.module.endswith("reasons") and file.module != "lamina.base.reasons":
            names = re.findall(r"^([A-Z]\w+) = \w+\.add\(", file.text, re.MULTILINE)
            assert names
            assert not [name for name in names if seen[name] < 2], file.module
