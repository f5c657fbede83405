"""Programs on which the subject is slower than the better of eager and torch.compile, found without naming patterns.

``python -m benchmarks.sweep --seconds 900`` measures what the time allows of 500 generated programs, every operator of
torch's database between arithmetic, submodules of models (where transformers, timm and torchvision are installed) and
programs written by hand, each forward and training, fp32 and bf16. A second run goes on where the first stopped:
findings stand in a file of JSON lines by program, versions and Lamina's source. ``--report`` prints what there is,
``--sources 1`` with program texts;
``--slower`` measures again what an earlier version was slower on; ``--device cuda`` is the same sweep on a GPU, with
``--workers 12`` by so many processes that compile at a time and are timed one after the other.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch
from filelock import FileLock

from benchmarks.compilers import compiler_name
from benchmarks.gpu_machine import needs_gpu, one_assembler
from benchmarks.limit import TookTooLong, at_most
from benchmarks.report import RESULTS, write_results
from benchmarks.sweeping import grammar, harvest, neighbours, written
from benchmarks.sweeping.case import DTYPES, MODES, Case, Row, shuffled, variants
from benchmarks.sweeping.journal import Journal, versions
from benchmarks.sweeping.measure import Finding, measure
from benchmarks.sweeping.summary import print_summary

__all__ = ["main", "rows_of"]

ORIGINS = ("generated", "operators", "harvested", "written")
GPU_SCALE = 32.0
ONE_THREAD = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
"""What the processes of several workers are told: each compiles on a core of its own."""
HUNG = 120.0
"""Seconds beyond a row's limit after which its process is killed: C code does not hear of limits."""


def rows_of(args: argparse.Namespace) -> list[Row]:
    """Everything that is to be measured, in the order in which it is."""
    found: list[Case] = []
    if "generated" in args.origins:
        found += grammar.cases(args.programs, args.seed, args.scale)
    if "operators" in args.origins:
        found += neighbours.cases()
    if "harvested" in args.origins:
        found += harvest.cases()
    if "written" in args.origins:
        found += written.cases()
    kinds = variants(args.dtypes, args.modes, args.device, args.scale)
    rows = [Row(case, variant) for case in found for variant in kinds]
    number, count = args.share
    return shuffled([row for row in rows if args.only in row.name])[number::count]


def _share(text: str) -> tuple[int, int]:
    """``2/8``: the third of eight parts."""
    number, _, count = text.partition("/")
    found = int(number), int(count)
    if not 0 <= found[0] < found[1]:
        raise ValueError(text)
    return found


def _left(rows: Sequence[Row], journal: Journal, slower: bool) -> list[Row]:
    left = [row for row in rows if not journal.has(row.name, row.case.text)]
    return [r for r in left if r.name in journal.earlier and journal.earlier[r.name].slower] if slower else left


def _work(args: argparse.Namespace, journal: Journal, until: float) -> None:
    """Child process: rows until the time is over."""
    warnings.simplefilter("ignore")
    rivals = list(dict.fromkeys(["eager", *args.rivals, args.compile]))
    alone = FileLock(args.alone) if args.alone else None
    left = _left(rows_of(args), journal, args.slower)
    for number, row in enumerate(left, 1):
        remaining = until - time.time()
        if remaining < 1:
            return
        journal.begin(row.name)
        try:
            with at_most(min(args.limit, remaining)):
                reached = partial(journal.begin, row.name)
                finding = measure(row, args.compile, rivals, args.each, reached=reached, alone=alone)
        except TookTooLong:
            if remaining < args.limit:  # it was the run's time that ended, not the row's
                journal.stop(row.name)
                return
            told = f"over the limit of seconds at {journal.begun[row.name]}"
            finding = Finding(row.name, "skipped", told, row.case.kinds)
        except Exception as problem:  # of the instrument: the row is lost, the sweep is not
            text = f"{type(problem).__name__}: {problem}"[:200]
            finding = Finding(row.name, "skipped", f"could not be measured: {text}", row.case.kinds)
        journal.note(finding)
        speeds = " ".join(f"{name} {ratio:.2f}" for name, ratio in finding.speedups.items())
        told = finding.detail[:110] if finding.status != "timed" else f"{speeds}{'  SLOWER' if finding.slower else ''}"
        print(f"[{number}/{len(left)}] {row.name}: {finding.status} {told}", flush=True)
        if finding.slower and finding.fallback:
            print(f"    {finding.fallback}", flush=True)


def _supervise(
    argv: Sequence[str], journal: Journal, limit: float, until: float, environment: Mapping[str, str] | None = None
) -> None:
    """Start children until one ends well; one that dies or hangs has the row it was at noted as a crash."""
    while time.time() < until - 1:
        command = [sys.executable, "-u", "-m", "benchmarks.sweep", *argv, "--until", str(until)]
        child, begun = subprocess.Popen(command, env=environment), time.time()
        try:
            while child.poll() is None:
                time.sleep(0.5)
                noted = journal.path.stat().st_mtime if journal.path.exists() else begun
                if time.time() - max(noted, begun) > limit + HUNG:
                    child.kill()
        finally:
            child.kill()
        code = child.wait()
        journal.read()
        if code == 0:
            return
        for finding in journal.bury():
            print(f"{finding.name}: exit status {code}", flush=True)


def _side_by_side(argv: Sequence[str], args: argparse.Namespace, journal: Journal, until: float) -> None:
    """Several supervised children, each with a share of the rows and a journal that is put into ``journal`` after."""
    number, count = args.share
    names = [args.journal.with_suffix(f".{k}.jsonl") for k in range(args.workers)]
    for name in names:
        journal.take(name)  # of a run that was cut short
    turns = args.journal.with_suffix(".lock")

    def worker(k: int) -> None:
        share = f"{number + count * k}/{count * args.workers}"
        mine = ["--share", share, "--journal", str(names[k]), "--known", str(args.journal), "--alone", str(turns)]
        own = Journal(names[k], journal.versions)
        _supervise([*argv, *mine, "--threads", "1"], own, args.limit, until, {**os.environ, **ONE_THREAD})

    with ThreadPoolExecutor(args.workers) as pool:
        list(pool.map(worker, range(args.workers)))
    for name in names:
        journal.take(name)
    turns.unlink(missing_ok=True)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compile", default="lamina", type=compiler_name, metavar="NAME")
    parser.add_argument("--rivals", nargs="*", default=["torch"], type=compiler_name, help="besides eager")
    parser.add_argument("--origins", nargs="*", default=list(ORIGINS), choices=ORIGINS)
    parser.add_argument("--programs", type=int, default=500, help="how many are generated")
    parser.add_argument("--seed", type=int, default=0, help="number of the first generated program")
    parser.add_argument("--dtypes", nargs="*", default=list(DTYPES), choices=list(DTYPES))
    parser.add_argument("--modes", nargs="*", default=list(MODES), choices=MODES)
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--share", type=_share, default=(0, 1), metavar="N/COUNT", help="every COUNTth row from N on")
    parser.add_argument("--slower", action="store_true", help="only rows that were slower when last measured")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--scale", type=float, default=None, help="times the elements; default 1, on a GPU 32")
    parser.add_argument("--seconds", type=float, default=900.0, help="for the whole run")
    parser.add_argument("--each", type=float, default=0.3, help="seconds of timing for each rival of a row")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds for a row, compilation included")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--report", action="store_true", help="measure nothing, print what is noted")
    parser.add_argument("--sources", type=int, default=0, help="print the texts of so many slow programs of each cause")
    parser.add_argument("--journal", type=Path, default=None, help="default results/sweep_DEVICE.jsonl")
    parser.add_argument("--json", type=Path, default=None, help="default results/sweep_DEVICE.json")
    parser.add_argument("--workers", type=int, default=1, help="on a GPU: processes that compile at a time")
    for hidden in ("--known", "--alone"):
        parser.add_argument(hidden, type=Path, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, default=None, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    args.scale = args.scale or (GPU_SCALE if args.device == "cuda" else 1.0)
    args.journal = args.journal or RESULTS / f"sweep_{args.device}.jsonl"
    args.json = args.json or RESULTS / f"sweep_{args.device}.json"
    if args.workers > 1:
        if args.device == "cpu":
            parser.error("--workers is for --device cuda: on a CPU what compiles would disturb what is timed")
        args.threads = 1
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what time allows, print, write JSON; 1 if a result is wrong or a process died."""
    args = _arguments(argv)
    if args.device == "cuda":
        needs_gpu()
        one_assembler()
    torch.set_num_threads(args.threads)
    journal = Journal(args.journal, versions(args.compile, args.rivals, args.device, args.scale))
    if args.until is not None:
        if args.known is not None:
            journal.read(args.known)
        _work(args, journal, args.until)
        return 0
    if not args.report:
        given = list(sys.argv[1:] if argv is None else argv)
        until = time.time() + args.seconds
        if args.workers > 1:
            _side_by_side(given, args, journal, until)
        else:
            _supervise(given, journal, args.limit, until)
    for note in harvest.missing() if "harvested" in args.origins else ():
        print(note)
    rows = rows_of(args)
    names = {row.name for row in rows}
    findings = [f for f in journal.findings.values() if f.name in names]
    others = list(dict.fromkeys(["eager", *args.rivals]))
    told = print_summary(findings, others, args.sources)
    print(f"{len(findings)} of {len(rows)} rows; versions {journal.versions}")
    slower = [f for f in findings if f.slower]
    kept = {f.name: {"speedups": f.speedups, "kinds": f.kinds, "kernels": f.kernels} for f in slower}
    content = {"versions": journal.versions, "rows": len(rows), "measured": len(findings), "summary": told}
    write_results(args.json, {**content, "slower": kept})
    return 1 if told["wrong"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
