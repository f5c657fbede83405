"""Arguments of the GPU benchmarks, and the rows that they choose."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path

from benchmarks.compilers import compiler_name
from benchmarks.gpu_programs import GpuProgram

__all__ = ["RIVALS", "arguments", "selected", "weights_of"]

RIVALS = ("eager", "torch", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


def arguments(about: str | None, default: Path, argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; ``default`` is the file of results."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--compile",
        default="lamina",
        type=compiler_name,
        metavar="NAME",
        help="what is judged: lamina, lamina:MODE, torch, a mode of torch's, dynamo:BACKEND, package.module:function",
    )
    parser.add_argument("--rows", nargs="*", default=[], metavar="NAME", help="programs to run; default all")
    parser.add_argument("--only", default="", help="run rows whose full name (program.mode) contains this")
    parser.add_argument("--row-list", type=Path, default=None, metavar="FILE", help="run rows by full name, one a line")
    parser.add_argument(
        "--part", type=_part, default=(1, 1), metavar="K/N", help="run the k-th of n parts that take about as long"
    )
    parser.add_argument("--rivals", nargs="*", type=compiler_name, metavar="NAME", default=list(RIVALS))
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--wall-samples", type=int, default=30, help="samples of the time that a caller waits; 0: none")
    parser.add_argument("--row-seconds", type=float, default=30.0, help="fewer samples where a row takes longer")
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="start no row, and compile no rival, after this time"
    )
    parser.add_argument(
        "--first-call-seconds", type=float, default=math.inf, help="leave out a rival whose first call takes longer"
    )
    parser.add_argument(
        "--reference", choices=("fp64", "eager", "none"), default="fp64", help="fp64: eager where that is too large"
    )
    parser.add_argument(
        "--prefill", type=int, default=0, metavar="JOBS", help="let so many processes compile torch's modes ahead"
    )
    parser.add_argument("--prefill-threads", type=int, default=1, help="compiling threads in each of them")
    parser.add_argument("--prefill-seconds", type=float, default=math.inf, help="stop compiling ahead after this time")
    parser.add_argument(
        "--on-disk",
        nargs="*",
        default=[],
        metavar="RIVAL",
        help="these found their code in Inductor's cache: a run before left it there",
    )
    parser.add_argument("--prefill-child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, default=default)
    return parser.parse_args(argv)


def _part(text: str) -> tuple[int, int]:
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} is no part: write 1/2 or 2/2 for two")
    return int(number), int(count)


def selected(programs: Sequence[GpuProgram], args: argparse.Namespace, known: Path) -> list[tuple[GpuProgram, str]]:
    """The programs and modes to run. Earlier results in ``known`` say how long each takes, to divide them well."""
    rows = {f"{p.name}.{mode}": (p, mode) for p in programs for mode in p.modes}
    _refuse(set(args.rows) - {p.name for p in programs}, {p.name for p in programs})
    if args.row_list is not None:
        lines = args.row_list.read_text(encoding="utf-8").splitlines()
        listed = {line.strip() for line in lines if line.strip() and not line.startswith("#")}
        _refuse(listed - rows.keys(), set(rows))
        rows = {name: row for name, row in rows.items() if name in listed}
    chosen = [n for n, (p, _) in rows.items() if (not args.rows or p.name in args.rows) and args.only in n]
    number, count = args.part
    share = _parts(chosen, count, weights_of(known, chosen))[number - 1]
    return [rows[name] for name in chosen if name in share]


def _refuse(unknown: set[str], known: set[str]) -> None:
    if unknown:
        raise SystemExit(f"no row is called {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")


def weights_of(known: Path, names: Sequence[str]) -> dict[str, float]:
    """What most of a row's time depends on: its first-call seconds in earlier results, a guess where there are none."""
    content = json.loads(known.read_text(encoding="utf-8")) if known.exists() else {}
    seconds = {row["name"]: sum(row["seconds"].values()) for row in content.get("rows", []) if row.get("seconds")}
    usual = sum(seconds.values()) / len(seconds) if seconds else 1.0
    return {name: seconds.get(name, usual * (1.5 if name.endswith(".training") else 1.0)) for name in names}


def _parts(names: Sequence[str], count: int, weights: dict[str, float]) -> list[set[str]]:
    """``names`` in ``count`` parts: the heaviest first, each to the part with the least so far."""
    heaviest = sorted(names, key=lambda name: (-weights[name], names.index(name)))
    parts: list[set[str]] = [set() for _ in range(count)]
    loads = [0.0] * count
    for name in heaviest:
        least = min(range(count), key=lambda part: (loads[part], len(parts[part])))
        parts[least].add(name)
        loads[least] += weights[name]
    return parts
