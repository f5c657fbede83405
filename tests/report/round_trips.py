"""Links of a page, followed to where they lead and back."""

from __future__ import annotations

import json
from typing import Any

from tests.report.browser import Browser

__all__ = ["strayed"]


def strayed(browser: Browser, pairs: list[Any]) -> list[Any]:
    """Those of ``pairs`` (text, line, text of a lower level, line) whose link does not lead there, or not back.

    Each end is asked for by its address, as a link of the page does, and for what it is linked with.
    """
    found: list[Any] = browser.evaluate(
        f"""{json.dumps(pairs)}.filter(([upper, line, lower, other]) => {{
            const {{ report }} = window.lamina;
            const there = report.place(report.addressOf(lower, other));
            const back = report.place(report.addressOf(upper, line));
            return there.text !== lower || there.line !== other || back.text !== upper || back.line !== line ||
                !report.linked(upper, line).get(lower)?.includes(other) ||
                !report.linked(lower, other).get(upper)?.includes(line);
        }})"""
    )
    return found
