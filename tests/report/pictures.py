"""The pictures of the report in docs/images: ``python -m tests.report.pictures``, with Chromium on the PATH.

``--all FOLDER`` writes every view in light and dark instead, to be looked at.
"""

from __future__ import annotations

import argparse
import base64
import importlib.util
import inspect
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import lamina
from benchmarks import provenance
from lamina.report.document import document
from lamina.report.page import page
from tests.report.browser import Browser, chromium

IMAGES = Path(__file__).parents[2] / "docs/images"
VIEWS = ("overview", "trace", "fusion", "decisions", "guards", "kernels", "passes", "memory", "time")
_STEPS = 24
"""Training steps: the launches of some of the first are timed."""
_MODEL = f"""import torch
from torch import nn
from torch.nn import functional as F


{inspect.getsource(provenance.Attention)}

{inspect.getsource(provenance.Block)}

{inspect.getsource(provenance.Gpt)}"""


def trained(folder: Path) -> dict[str, Any]:
    """The report of a GPT of four layers that stands in a file of its own."""
    file = folder / "model.py"
    file.write_text(_MODEL, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("model", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(0)
    options = {"report": str(folder / "out.html"), "compare_eager": "off", "progress": False}
    compiled = lamina.compile(module.Gpt(4), dynamic=False, options=options)
    ids = torch.randint(50, (4, 16))
    for _ in range(_STEPS):
        torch.nn.functional.cross_entropy(compiled(ids).flatten(0, 1), ids.flatten()).backward()
    return document(compiled.record)


@contextmanager
def opened(report: dict[str, Any], folder: Path) -> Iterator[Browser]:
    """The report in a browser."""
    program = chromium()
    if program is None:
        sys.exit("no chromium: apt-get install chromium")
    file = folder / "report.html"
    file.write_text(page(report, None), encoding="utf-8")
    browser = Browser(program, folder / "browser", 1280, 943)  # of which the window's frame takes 143
    try:
        browser.open(file)
        yield browser
    finally:
        browser.close()


def take(browser: Browser, address: str, to: Path, theme: str, panes: tuple[str, ...] = ()) -> None:
    """Write a picture of what is at an address of the report."""
    browser.evaluate(f"sessionStorage.setItem('panes', JSON.stringify({json.dumps(panes)}))" if panes else "0")
    browser.evaluate(f"location.hash = {address!r}")
    browser.call("Page.reload")
    browser.until("window.lamina && window.lamina.ready")
    browser.evaluate(f"document.documentElement.dataset.theme = {theme!r}; dispatchEvent(new Event('themechange'))")
    browser.evaluate("new Promise((done) => setTimeout(done, 600))")
    size = {"x": 0, "y": 0, "width": 1280, "height": 800, "scale": 1}
    found = browser.call("Page.captureScreenshot", format="png", clip=size)
    to.write_bytes(base64.b64decode(found["data"]))


def main() -> None:
    """Write the pictures that the README and the page about reports show."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", type=Path, help="write every view, light and dark, into this folder")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        report = trained(folder)
        forward = next(region for region in report["regions"] if region["kind"] == "forward")
        maps = forward["fusion"]
        block = next((key for key in maps if key and len(maps[key]["boxes"]) >= 6), "")
        gelu = next(kernel["name"] for kernel in report["kernels"] if kernel["name"].startswith("gelu_"))
        with opened(report, folder) as browser:
            if given.all is not None:
                given.all.mkdir(parents=True, exist_ok=True)
                for theme in ("light", "dark"):
                    for view in VIEWS:
                        take(browser, view, given.all / f"{view}-{theme}.png", theme)
                return
            panes = ("python", "forward", "kernel", "assembly")
            take(browser, f"trace=forward:{forward['name']}/gelu", IMAGES / "report-trace.png", "light", panes)
            take(browser, f"kernels={gelu}", IMAGES / "report-kernels.png", "light")
            take(browser, f"fusion={forward['name']} {block}", IMAGES / "report-fusion.png", "dark")


if __name__ == "__main__":
    main()
