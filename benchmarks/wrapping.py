"""What defined signed overflow costs: patterns with kernels built with ``-fwrapv``, as they are, and without it.

``python -m benchmarks.wrapping``: three builds of each pattern take turns in one process. Two are the same flags, whose
ratio is what noise makes of nothing.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

import lamina
from benchmarks.cpu_patterns import DTYPES, rival_of
from benchmarks.patterns import PATTERNS, Data
from benchmarks.report import RESULTS, geometric_mean, print_table, write_results
from lamina.bench import alternate

__all__ = ["main"]

BUILDS = {"wraps": "", "wraps again": "", "undefined": "-fno-wrapv"}


def _compiler(folder: Path, name: str, real: str, more: str) -> str:
    path = folder / name.replace(" ", "_")
    path.write_text(f'#!/bin/sh\nexec {real} "$@" {more}\n', encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def main(argv: Sequence[str] | None = None) -> int:
    """Time each pattern, print the table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cxx", default="g++", help="the compiler behind the builds")
    parser.add_argument("--rows", nargs="*", default=[p.name for p in PATTERNS], metavar="NAME")
    parser.add_argument("--modes", nargs="*", default=["forward", "training"], choices=("forward", "training"))
    parser.add_argument("--seconds", type=float, default=1.0, help="of timing for each build of a row")
    parser.add_argument("--threads", type=int, default=1, help="one is not slowed down by what else the machine does")
    parser.add_argument("--json", type=Path, default=RESULTS / "wrapping.json")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    rows: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        compilers = {n: _compiler(Path(folder), n, args.cxx, more) for n, more in BUILDS.items()}
        for pattern in (p for p in PATTERNS if p.name in args.rows):
            for mode in (m for m in args.modes if m in pattern.modes):
                torch.compiler.reset()
                calls = {}
                for name, path in compilers.items():
                    compiler = partial(lamina.compile, options={"cxx": path})
                    data = Data(DTYPES["fp32"], DTYPES["fp32"], mode == "training")
                    calls[name] = rival_of(pattern, data, compiler)[0].call
                timed = alternate(calls, seconds=args.seconds, warmup=5)
                rows[f"{pattern.name}.{mode}"] = {n: timed.ratio(n, "wraps") for n in BUILDS if n != "wraps"}
                print(f"{pattern.name}.{mode}", rows[f"{pattern.name}.{mode}"], flush=True)
    means = {n: geometric_mean(row[n] for row in rows.values()) for n in BUILDS if n != "wraps"}
    table = [[name, *(f"{v:.3f}" for v in row.values())] for name, row in [*rows.items(), ("mean", means)]]
    print_table("Time over that of the kernels as they are", ["pattern", *means], table)
    write_results(args.json, {"rows": rows, "means": means})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
