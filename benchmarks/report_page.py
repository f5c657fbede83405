"""How large a report's page is, how fast Chromium opens it and jumps in it, and whether links lead there and back.

    python -m benchmarks.report_page [--lines N] [--turns N]

Takes Debian's chromium, without a window, and pages opened from files. Of a page with so many lines of code: its
bytes, the time from the beginning of its load until it can be used, and the time of a jump to a line, from a change of
the address until the next frame is painted. Of the report of a small GPT: links that are followed to where they lead
and back. Network requests and errors of the console are counted throughout. Writes results/report_page.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.report import RESULTS
from lamina.report.document import document
from lamina.report.page import page
from tests.report.browser import Browser, chromium
from tests.report.large import JUMP, large
from tests.report.programs import link_pairs, trained
from tests.report.round_trips import strayed

__all__ = ["GOALS", "goals_missed"]

GOALS = {"bytes": 6_000_000, "seconds": 2.0, "jump_seconds": 0.15}
"""The most that a page may take; of times medians count."""


def goals_missed(found: dict[str, Any]) -> list[str]:
    """What of the figures is not as it should be, a line for each."""
    missed = [f"{name} is {found[name]}, at most {most}" for name, most in GOALS.items() if found[name] > most]
    for name in ("requests", "complaints", "strayed"):
        missed += [f"{name}: {found[name]}"] if found[name] else []
    return missed


def _times(browser: Browser, file: Path, turns: int) -> dict[str, Any]:
    """Seconds to open the page of a large report, and to jump in it."""
    opened = []
    for _ in range(turns):
        browser.open(file)
        browser.call("Page.reload")
        browser.until("window.lamina && window.lamina.ready")
        opened.append(browser.evaluate("window.lamina.ready") / 1000)
    panes = ["python", "forward", "loops", "kernel", "assembly"]
    browser.evaluate(f"sessionStorage.setItem('panes', {json.dumps(json.dumps(panes))})")
    browser.open(file, "#trace")
    rng = random.Random(2)
    jumps: list[float] = []
    for _ in range(turns):
        addresses = [f"forward:all/node_{rng.randrange(1, 30_000)}" for _ in range(16)]
        jumps += [one / 1000 for one in browser.evaluate(JUMP % addresses)]
    return {
        "seconds": round(statistics.median(opened), 3),
        "all_seconds": [round(one, 3) for one in sorted(opened)],
        "jumps": len(jumps),
        "jump_seconds": round(statistics.median(jumps), 4),
        "jump_seconds_90": round(statistics.quantiles(jumps, n=10)[-1], 4),
    }


def main() -> int:
    """Measure, print and write; 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lines", type=int, default=200_000)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--links", type=int, default=500)
    given = parser.parse_args()
    program = chromium()
    if program is None:
        sys.exit("no chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder:
        browser = Browser(program, Path(folder) / "browser")
        try:
            file = Path(folder) / "large.html"
            file.write_text(page(large(given.lines)), encoding="utf-8")
            found: dict[str, Any] = {"lines": given.lines, "bytes": file.stat().st_size}
            found |= _times(browser, file, given.turns)
            report = document(trained())
            pairs = random.Random(0).sample(list(link_pairs(report)), given.links)
            small = Path(folder) / "small.html"
            small.write_text(page(report), encoding="utf-8")
            browser.open(small)
            found |= {"links": given.links, "strayed": len(strayed(browser, pairs))}
            found["requests"] = sorted({url for url in browser.requests if not url.startswith("file:")})
            found["complaints"] = browser.complaints
        finally:
            browser.close()
    found |= {"torch": torch.__version__, "load": [round(one, 1) for one in os.getloadavg()]}
    print(json.dumps(found, indent=1))
    missed = goals_missed(found)
    print(*missed, sep="\n")
    (RESULTS / "report_page.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
