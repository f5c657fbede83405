"""Seeded compiler bugs: small wrong replacements in Lamina's source, one at a time, and whether the tests notice.

``python -m benchmarks.seeded_bugs --workers 2`` copies the source and the tests for each bug of ``benchmarks.seeded``,
puts the bug into the copy, runs the tests that the bug names and writes results/seeded_bugs.json. A bug counts as
caught when pytest reports a failed test that passes without it: what failed runs again in a copy without bugs, and
bugs whose test fails there, too, run again without that test.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.seeded import BUGS, Bug

__all__ = ["Outcome", "main", "patched"]

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results" / "seeded_bugs.json"
COPIED = ("src", "tests", "benchmarks", "conftest.py", "pyproject.toml")
FAILED = 1
"""Pytest's exit status when tests ran and some failed."""
BASELINE = 10
"""How many times the limit of one bug's tests all tests together may take without a bug."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one bug: ``by`` names the first test that failed, or says why the bug was not caught."""

    bug: str
    kind: str
    file: str
    caught: bool
    by: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Ran:
    """One run of pytest; ``status`` is None for a run that took too long."""

    status: int | None
    failed: tuple[str, ...]
    last: str


def patched(bug: Bug, text: str) -> str:
    """``text``, the content of the bug's file, with the bug in it. A replacement that fits not once is an error."""
    found = text.count(bug.old)
    if found != 1:
        raise SystemExit(f"{bug.name}: its text is {found} times in {bug.file}, not once")
    return text.replace(bug.old, bug.new)


def copied(to: Path) -> None:
    """Copy to ``to`` what the tests need."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, to / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy2(source, to / name)


def run_tests(tree: Path, tests: Sequence[str], limit: float, without: Sequence[str], first: bool = True) -> Ran:
    """Run ``tests`` in ``tree``, all of them or until the ``first`` failure."""
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", "-rfE", "--tb=no"]
    command += [f"--deselect={name}" for name in without] + (["-x"] if first else [])
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    environment["LAMINA_CACHE_DIR"] = str(tree / "cache")
    process = subprocess.Popen(
        [*command, *tests],
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said = process.communicate(timeout=limit)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.communicate()
        return Ran(None, (), f"over {limit:.0f} s")
    failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", said, re.MULTILINE)
    lines = [line for line in said.splitlines() if line.strip()]
    return Ran(process.returncode, tuple(failed), lines[-1] if lines else "")


class Campaign:
    """Runs bugs one after another in several threads, and then what failed without a bug."""

    def __init__(self, bugs: Sequence[Bug], limit: float, path: Path, kept: Mapping[str, Outcome]) -> None:
        self.limit, self.path = limit, path
        self.outcomes = dict(kept)
        self.bugs = list(bugs)
        self._left: queue.Queue[Bug] = queue.Queue()
        self._failing: tuple[str, ...] = ()
        self._guard = threading.Lock()

    def run(self, workers: int) -> None:
        """Run all bugs; the results so far are written after each."""
        bugs = self.bugs
        while bugs:
            for bug in bugs:
                self._left.put(bug)
            threads = [threading.Thread(target=self._serve) for _ in range(workers)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            bugs = self._to_repeat()

    def _serve(self) -> None:
        while True:
            try:
                bug = self._left.get_nowait()
            except queue.Empty:
                return
            self._note(self._outcome(bug))

    def _outcome(self, bug: Bug) -> Outcome:
        with tempfile.TemporaryDirectory(prefix="lamina-seeded-") as folder:
            tree = Path(folder)
            copied(tree)
            file = tree / bug.file
            file.write_text(patched(bug, file.read_text(encoding="utf-8")), encoding="utf-8")
            begun = time.monotonic()
            ran = run_tests(tree, bug.tests, self.limit, self._failing)
        caught = ran.status == FAILED and bool(ran.failed)
        by = ran.failed[0] if caught else f"exit status {ran.status}: {ran.last}"
        return Outcome(bug.name, bug.kind, bug.file, caught, by, round(time.monotonic() - begun, 1))

    def _to_repeat(self) -> list[Bug]:
        """The bugs caught by tests that fail without a bug as well; these tests are left out from now on."""
        caught = [bug for bug in self.bugs if bug.name in self.outcomes and self.outcomes[bug.name].caught]
        tests = sorted({self.outcomes[bug.name].by for bug in caught})
        if not tests:
            return []
        with tempfile.TemporaryDirectory(prefix="lamina-seeded-") as folder:
            copied(Path(folder))
            ran = run_tests(Path(folder), tests, BASELINE * self.limit, (), first=False)
        if ran.status not in (0, FAILED):
            raise SystemExit(f"what failed does not run without a bug: {ran.last}")
        print(f"{len(tests)} tests without a bug: {ran.last}", flush=True)
        self._failing = (*self._failing, *ran.failed)
        return [bug for bug in caught if self.outcomes[bug.name].by in ran.failed]

    def _note(self, outcome: Outcome) -> None:
        with self._guard:
            self.outcomes[outcome.bug] = outcome
            mark = "caught  " if outcome.caught else "SURVIVED"
            print(f"{mark} {outcome.seconds:6.1f} s  {outcome.bug:<55} {outcome.by[:110]}", flush=True)
            save(self.path, self.outcomes)


def save(path: Path, outcomes: Mapping[str, Outcome]) -> None:
    """Write the results of the bugs that the table still has, in its order."""
    found = [asdict(outcomes[bug.name]) for bug in BUGS if bug.name in outcomes]
    caught = sum(bool(o["caught"]) for o in found)
    content = {"bugs": len(BUGS), "run": len(found), "caught": caught, "outcomes": found}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def load(path: Path) -> dict[str, Outcome]:
    """The results that a file holds."""
    if not path.exists():
        return {}
    return {o["bug"]: Outcome(**o) for o in json.loads(path.read_text(encoding="utf-8"))["outcomes"]}


def chosen(only: Sequence[str], shard: str) -> list[Bug]:
    """The bugs whose name holds one of ``only``, and of those every N-th from the I-th for the shard I/N."""
    found = [bug for bug in BUGS if not only or any(name in bug.name for name in only)]
    number, count = (int(part) for part in shard.split("/"))
    return found[number - 1 :: count]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--only", action="append", default=[], help="bugs with this text in their name")
    parser.add_argument("--shard", default="1/1", help="I/N: every N-th bug from the I-th")
    parser.add_argument("--seconds", type=float, default=180.0, help="limit of one run of the tests")
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--keep", action="store_true", help="keep the file's results of other bugs")
    options = parser.parse_args()
    bugs = chosen(options.only, options.shard)
    for bug in bugs:
        patched(bug, (ROOT / bug.file).read_text(encoding="utf-8"))
    kept = load(options.json) if options.keep else {}
    campaign = Campaign(bugs, options.seconds, options.json, kept)
    campaign.run(options.workers)
    caught = sum(campaign.outcomes[bug.name].caught for bug in bugs if bug.name in campaign.outcomes)
    print(f"{caught} of {len(bugs)} caught")
    return 0 if len(bugs) == caught else 1


if __name__ == "__main__":
    raise SystemExit(main())
