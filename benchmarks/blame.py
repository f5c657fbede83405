"""Whether ``lamina.bisect`` names planted faults: the stage, and the rule, sub-pass or kernel of it.

``python -m benchmarks.blame`` puts each fault of ``benchmarks.planted`` into this process, asks what is wrong, and
writes results/blame.json: what was blamed, whether that is the fault, and the seconds that it took.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.planted import PLANTED, Planted, arguments, program
from benchmarks.report import RESULTS, print_table, write_results
from lamina.blame.bisection import bisect
from lamina.blame.found import Bisection

__all__ = ["found", "main", "named"]


@contextmanager
def _own_cache() -> Iterator[None]:
    """Wrong kernels are kept from everybody else."""
    before = os.environ.get("LAMINA_CACHE_DIR")
    with tempfile.TemporaryDirectory(prefix="lamina-blame-") as folder:
        os.environ["LAMINA_CACHE_DIR"] = folder
        try:
            yield
        finally:
            os.environ.pop("LAMINA_CACHE_DIR")
            if before is not None:
                os.environ["LAMINA_CACHE_DIR"] = before


def found(planted: Planted) -> Bisection:
    """What is blamed with the fault in this process."""
    torch.compiler.reset()
    with _own_cache(), planted.plant():
        result = bisect(program, *arguments(), options=planted.options, to=os.path.join(tempfile.gettempdir(), "blame"))
    torch.compiler.reset()
    return result


def named(planted: Planted, result: Bisection) -> bool:
    """Whether what was found is the fault."""
    blame = result.blame
    return (
        blame is not None
        and blame.stage == planted.stage
        and blame.step.startswith(planted.step)
        and planted.application in (0, blame.application)
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Try the faults; 1 if any is not named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="faults whose name contains this")
    parser.add_argument("--to", type=Path, default=RESULTS / "blame.json", help="the file of results")
    args = parser.parse_args(argv)
    rows: list[dict[str, Any]] = []
    for planted in PLANTED:
        if args.only not in planted.name:
            continue
        start = time.perf_counter()
        result = found(planted)
        blame = result.blame
        rows.append(
            {
                "fault": planted.name,
                "named": named(planted, result),
                "stage": blame.stage if blame else "none",
                "step": blame.step if blame else "",
                "application": blame.application if blame else 0,
                "subject": list(blame.subject) if blame else [],
                "place": blame.place if blame else "",
                "seconds": round(time.perf_counter() - start, 1),
            }
        )
        print(planted.name, rows[-1]["named"], rows[-1]["stage"], rows[-1]["step"], *result.notes, sep="; ", flush=True)
    columns = ("fault", "named", "stage", "step", "seconds")
    print_table("planted faults", columns, [[str(row[c]) for c in columns] for row in rows])
    count = sum(row["named"] for row in rows)
    print(f"{count} of {len(rows)} named")
    if not args.only:
        write_results(args.to, {"rows": rows})
    return 0 if count == len(rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
