"""The page on rules names exactly the rules there are."""

from __future__ import annotations

import re
from pathlib import Path

from lamina.rewrite.order import RULE_NAMES

PAGE = Path(__file__).parents[3] / "docs" / "rules.md"


def test_every_rule_is_on_the_page_and_nothing_else() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("\n## Names\n")[2]
    listed = re.findall(r"`([^`]+)`", section.partition("\n- ")[2])
    assert sorted(listed) == sorted(RULE_NAMES)
