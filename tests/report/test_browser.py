"""The page in Debian's Chromium, opened from a file: what it shows, that it loads nothing, how fast it is."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from lamina.report.document import document
from lamina.report.page import page
from tests.report.browser import Browser, chromium
from tests.report.large import JUMP, large
from tests.report.programs import link_pairs, trained, trained_for_a_gpu
from tests.report.round_trips import strayed

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'`${x}\u2028<!--"
VIEWS = ("overview", "trace", "fusion", "decisions", "guards", "kernels", "passes", "memory", "time")
MOST_BYTES, MOST_SECONDS, MOST_JUMP = 6_000_000, 2.0, 0.15


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = chromium()
    if program is None:
        pytest.skip("no chromium: apt-get install chromium")
    opened = Browser(program, tmp_path_factory.mktemp("browser"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return document(trained())


def opened(browser: Browser, folder: Path, report: dict[str, Any], other: dict[str, Any] | None = None) -> Path:
    file = folder / "report.html"
    file.write_text(page(report, other), encoding="utf-8")
    browser.complaints.clear()
    browser.requests.clear()
    browser.open(file)
    return file


def assert_quiet(browser: Browser) -> None:
    assert not browser.complaints
    assert all(url.startswith("file:") for url in browser.requests)
    assert len(set(browser.requests)) == 1  # the page itself, at each address


def test_every_view_shows_without_complaint_or_request(
    browser: Browser, tmp_path: Path, report: dict[str, Any]
) -> None:
    opened(browser, tmp_path, report, report)
    for view in (*VIEWS, "compare"):
        browser.evaluate(f"location.hash = '{view}'")
        browser.until(
            f"document.querySelector('[role=tab][aria-selected=true]').textContent.trim().toLowerCase() === '{view}'"
        )
        assert len(browser.evaluate("document.querySelector('main').innerText")) > 20
    assert_quiet(browser)


def test_recompiles_have_the_line_of_the_call_and_a_whole_code(
    browser: Browser, tmp_path: Path, report: dict[str, Any]
) -> None:
    facts = [["guard", "size mismatch " * 20], ["old", "4"], ["new", "5"], ["called at", "/folder/mine.py:38"]]
    made = {
        "stage": 0,
        "kind": "recompile",
        "subject": ["Mixer.forward (/folder/mine.py:19)", "version 1"],
        "taken": True,
        "reason": "size 0 of x was 4 and is 5",
        "code": "LM1101",
        "remedy": "compile with dynamic=True, or mark the size as dynamic " * 4,
        "facts": facts,
    }
    opened(browser, tmp_path, {**report, "decisions": [*report["decisions"], made]})
    browser.evaluate("location.hash = 'guards'")
    browser.until("document.querySelector('main h1')?.innerText === 'Guards'")
    row = browser.evaluate("[...document.querySelector('table tbody tr').children].map((cell) => cell.innerText)")
    assert row[0] == "LM1101"
    assert row[3].endswith("mine.py:38")
    lines = "document.querySelector('table tbody td code').getClientRects().length"
    assert browser.evaluate(lines) == 1
    assert_quiet(browser)


def test_an_address_that_changes_once_the_page_is_ready_is_seen(
    browser: Browser, tmp_path: Path, report: dict[str, Any]
) -> None:
    moving = "Object.defineProperty(window, 'lamina', {set(made) { this.made = made; location.hash = 'guards'; },"
    source = f"{moving} get() {{ return this.made; }}}});"
    made = browser.call("Page.addScriptToEvaluateOnNewDocument", source=source)
    try:
        opened(browser, tmp_path, report)
        browser.until("document.querySelector('main h1')?.innerText === 'Guards'")
    finally:
        browser.call("Page.removeScriptToEvaluateOnNewDocument", **made)
    assert_quiet(browser)


def test_hostile_names_are_text(browser: Browser, tmp_path: Path, report: dict[str, Any]) -> None:
    def hostile(decision: dict[str, Any]) -> dict[str, Any]:
        return {**decision, "reason": HOSTILE, "subject": [HOSTILE], "remedy": HOSTILE}

    texts = [{**text, "title": HOSTILE, "text": f"{HOSTILE}\n{text['text']}"} for text in report["texts"]]
    decisions = [hostile(one) for one in report["decisions"]]
    advice = [{"places": [HOSTILE], "code": HOSTILE, "what": HOSTILE, "remedy": HOSTILE, "count": 2}]
    opened(browser, tmp_path, {**report, "name": HOSTILE, "texts": texts, "decisions": decisions, "advice": advice})
    for view in ("overview", "decisions", "trace"):
        browser.evaluate(f"location.hash = '{view}'")
        browser.until(f"document.body.innerText.includes({HOSTILE[:40]!r})")
    assert browser.evaluate("document.title").startswith(HOSTILE[:40])
    assert browser.evaluate("document.querySelectorAll('img').length") == 0
    assert_quiet(browser)


def test_links_lead_there_and_back(browser: Browser, tmp_path: Path, report: dict[str, Any]) -> None:
    opened(browser, tmp_path, report)
    pairs = random.Random(0).sample(list(link_pairs(report)), 500)
    wrong = strayed(browser, pairs)
    assert wrong == []
    for upper, line, lower, other in pairs[:12]:
        for number, at in ((lower, other), (upper, line)):
            browser.evaluate(
                f"location.hash = 'trace=' + encodeURIComponent(window.lamina.report.addressOf({number}, {at}))"
            )
            level = report["texts"][number]["level"]
            said = f"{report['texts'][number]['title']}:{at}"
            browser.until(f"document.querySelector('.details .said')?.innerText.endsWith({said!r})")
            browser.until(f"document.querySelector('.pane.{level} .line-chosen')")
    assert_quiet(browser)


def test_a_click_marks_lines_of_other_levels(browser: Browser, tmp_path: Path, report: dict[str, Any]) -> None:
    file = opened(browser, tmp_path, report)
    browser.open(file, "#trace")
    browser.until("document.querySelectorAll('.pane.python .cm-line').length > 20")
    where = settled(
        browser,
        """(() => { const line = [...document.querySelectorAll('.pane.python .cm-line')]
            .find((one) => one.innerText.includes('functional.gelu('));
            line.scrollIntoView({ block: 'center' });
            const box = line.getBoundingClientRect(); return [box.x + 60, box.y + box.height / 2]; })()""",
    )
    for kind in ("mousePressed", "mouseReleased"):
        browser.call("Input.dispatchMouseEvent", type=kind, x=where[0], y=where[1], button="left", clickCount=1)
    for level in ("python", "forward", "loops", "kernel"):
        browser.until(f"document.querySelector('.pane.{level} .line-chosen')")
    browser.key("4")
    browser.until("document.querySelector('.pane.backward .line-chosen')")
    browser.key("/")
    browser.until("document.activeElement.type === 'search'")
    browser.call("Input.insertText", text="native_layer_norm")
    browser.until("document.querySelectorAll('.results li').length > 3")
    browser.key("Escape")
    browser.until("!document.querySelector('.results')")
    assert_quiet(browser)


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_kernels_of_a_gpu_lead_to_ptx_and_machine_code_and_back(browser: Browser, tmp_path: Path) -> None:
    gpu = document(trained_for_a_gpu())
    assert gpu["faults"] == []
    levels = [text["level"] for text in gpu["texts"]]
    assert levels.count("ptx") == levels.count("assembly") == levels.count("kernel") == len(gpu["kernels"]) > 2
    file = opened(browser, tmp_path, gpu)
    ptx, text = next((n, one) for n, one in enumerate(gpu["texts"]) if one["key"].startswith("ptx:gelu"))
    lines = text["text"].split("\n")
    store = next(number for number, line in enumerate(lines, 1) if "st.global" in line)
    linked = """(([text, line]) => { const { report } = window.lamina;
        return [...report.linked(text, line)].map(([one, lines]) => [report.texts[one].level, one, lines[0]]); })(%s)"""
    places = {level: (one, line) for level, one, line in browser.evaluate(linked % [ptx, store])}
    for level in ("ptx", "assembly", "kernel"):
        found = {one for one, *_ in browser.evaluate(linked % list(places[level]))}
        assert {"python", "forward", "loops", "kernel", "ptx", "assembly"} <= found, level
    browser.evaluate("sessionStorage.setItem('panes', JSON.stringify(['python', 'kernel', 'ptx', 'assembly']))")
    browser.open(file, f"#trace={text['key']}/{store}")
    for level in ("python", "kernel", "ptx", "assembly"):
        browser.until(f"document.querySelector('.pane.{level} .line-chosen')")
    browser.evaluate("location.hash = 'kernels'")
    browser.until("document.querySelector('main table.wide')")
    head = browser.evaluate("[...document.querySelectorAll('table.wide th')].map((one) => one.innerText.trim())")
    first = browser.evaluate(
        "[...document.querySelectorAll('table.wide tbody tr')].map((r) => [...r.cells].map((c) => c.innerText))"
    )
    for row in first:
        figures = dict(zip(head, row, strict=True))
        assert 0 < int(figures["Registers"]) <= 255
        assert int(figures["Spills"]) >= 0
        assert figures["Shared"]
    assert_quiet(browser)


def settled(browser: Browser, place: str) -> list[float]:
    """What ``place`` gives once it stays: what scrolls is laid out again, later on a busy machine."""
    found, last = browser.evaluate(place), None
    while found != last:
        browser.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 50)))")
        found, last = browser.evaluate(place), found
    return list(found)


def click(browser: Browser, element: str) -> None:
    """Press the mouse on the first element that a selector finds, as a user does."""
    x, y = settled(
        browser,
        f"""(() => {{ const one = document.querySelector({element!r}); one.scrollIntoView({{ block: 'center' }});
            const box = one.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; }})()""",
    )
    for kind in ("mousePressed", "mouseReleased"):
        browser.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)


def test_programs_are_copied_and_saved(browser: Browser, tmp_path: Path, report: dict[str, Any]) -> None:
    file = opened(browser, tmp_path, report)
    browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path / "saved"))
    browser.open(file, f"#kernels={report['kernels'][0]['name']}")
    kernel = report["kernels"][0]
    whole = kernel["program"]["before"] + next(
        text["text"] for text in report["texts"] if text["key"] == f"kernel:{kernel['name']}"
    )
    browser.until("document.querySelector('.program button')")
    watched = "document.querySelector('.program [role=status]')"  # what it says goes away after a while
    told = f"new MutationObserver(() => window.told.push({watched}.innerText))"
    changes = "{subtree: true, childList: true, characterData: true}"
    browser.evaluate(f"window.told = []; {told}.observe({watched}, {changes})")
    click(browser, ".program button")
    browser.until("window.told.some((text) => text.includes('copied'))")
    click(browser, ".program button:nth-of-type(2)")
    until = time.monotonic() + 30
    while not (saved := [*(tmp_path / "saved").glob("*.py")]) and time.monotonic() < until:
        time.sleep(0.05)
    assert [one.name for one in saved] == [f"{kernel['name']}.py"]
    assert saved[0].read_text() == whole + kernel["program"]["after"]
    assert_quiet(browser)


def test_a_large_report_is_small_and_fast(browser: Browser, tmp_path: Path) -> None:
    file = opened(browser, tmp_path, large(200_000))
    assert file.stat().st_size <= MOST_BYTES
    seconds = [browser.evaluate("window.lamina.ready") / 1000]
    while min(seconds) > MOST_SECONDS and len(seconds) < 4:  # what else the machine does takes time too
        browser.call("Page.reload")
        browser.until("window.lamina && window.lamina.ready")
        seconds.append(browser.evaluate("window.lamina.ready") / 1000)
    assert min(seconds) <= MOST_SECONDS, seconds
    browser.evaluate(
        "sessionStorage.setItem('panes', JSON.stringify(['python', 'forward', 'loops', 'kernel', 'assembly']))"
    )
    browser.open(file, "#trace")
    rng, quick = random.Random(2), list[float]()
    while not quick or (min(quick) > MOST_JUMP and len(quick) < 4):
        addresses = [f"forward:all/node_{rng.randrange(1, 30_000)}" for _ in range(16)]
        quick.append(sorted(browser.evaluate(JUMP % addresses))[4] / 1000)
    assert min(quick) <= MOST_JUMP, quick
    assert_quiet(browser)
