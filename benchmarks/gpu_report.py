"""Rows of the GPU benchmarks, what is printed of them, and results of several runs in one file.

``python -m benchmarks.gpu_report merge A.json B.json --into benchmarks/results/gpu_patterns.json``

Rows of a later file take the place of earlier ones, those of the file that is written into included, but for what the
later run did not look for: errors, what a caller waits, and first calls of those whose code was on disk. Each keeps
where, when and at which commit it was measured; the summary is made of all.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.report import geometric_mean, print_table
from lamina.ir.plan import Plan
from lamina.record import Record
from lamina.runtime.triton_build import TritonBuild

__all__ = ["TIE", "GpuRow", "kernels_found", "main", "merged", "print_rows", "summary"]

TIE = 1.03
MOST_PEAK = 1.03
SMALL_MIB = 1.0  # differences of peak memory below this are the allocator's rounding
SHORT = {"reduce-overhead": "r-o", "max-autotune": "max", "max-autotune-no-cudagraphs": "max-ncg"}
"""Names of torch.compile's modes that leave room for figures."""


@dataclass(slots=True)
class GpuRow:
    """One line of the table, each figure by rival: GPU milliseconds, first call's seconds, errors, most memory in
    use (MiB, with what graphs keep), host microseconds until a call is queued, and milliseconds that a caller waits.

    ``reference`` says what the errors are relative to (fp64, or eager where fp64 does not fit). ``speedup`` is the
    fastest rival's time over the subject's, ``wall_speedup`` the same of what a caller waits, ``share`` what part of
    the copy bandwidth the subject reached with the fewest bytes a forward can move. ``launches`` counts the kernels and
    library calls of the subject's plans, ``tuning`` has its choices among schedules: kernel, reason, and each
    candidate's microseconds or why it has none. ``kernels`` counts the subject's that were compiled, found on disk, and
    left in the process by earlier rows. ``prefilled`` are those, rivals or subject, whose code was on disk: their first
    calls are not cold. ``kept_mib`` is what a compiled program's CUDA graphs keep between calls.
    ``spent`` are the benchmark's own seconds by phase. ``measured`` says where and when, in a file
    of several runs, and what comes from an earlier one: first calls ("cold"), errors, what a caller waits ("wall").
    """

    name: str
    milliseconds: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    reference: str = ""
    errors: dict[str, float] = field(default_factory=dict)
    best: str = ""
    speedup: float = math.nan
    share: float | None = None
    peak_mib: dict[str, float] = field(default_factory=dict)
    host_us: dict[str, float] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    launches: int | None = None
    tuning: list[dict[str, Any]] = field(default_factory=list)
    prefilled: list[str] = field(default_factory=list)
    spent: dict[str, float] = field(default_factory=dict)
    measured: dict[str, Any] = field(default_factory=dict)
    wall_ms: dict[str, float] = field(default_factory=dict)
    kept_mib: dict[str, float] = field(default_factory=dict)
    wall_speedup: float = math.nan
    kernels: dict[str, int] = field(default_factory=dict)

    def note(self, record: Record, subject: str, kernels: dict[str, int]) -> None:
        """Keep what Lamina's record says of the plans, and where the kernels came from."""
        self.kernels = kernels
        if kernels["on_disk"] and subject not in self.prefilled:
            self.prefilled.append(subject)
        plans = [stage.value for stage in record.stages if stage.name == "plan" and isinstance(stage.value, Plan)]
        self.launches = sum(plan.kernel_count + plan.library_count for plan in plans)
        self.tuning = [{"kernel": d.subject[0], "reason": d.reason, **dict(d.facts)} for d in record.decisions("tune")]

    def conclude(self, subject: str, copy: float, moved: int | None) -> None:
        """Compare the times; ``moved`` bytes at ``copy`` gigabytes a second are the bound."""
        others = {name: ms for name, ms in self.milliseconds.items() if name != subject}
        if subject not in self.milliseconds or not others:
            return
        self.best = min(others, key=lambda name: others[name])
        self.speedup = others[self.best] / self.milliseconds[subject]
        if moved is not None:
            self.share = moved / self.milliseconds[subject] / 1e6 / copy
        if waits := [ms for name, ms in self.wall_ms.items() if name != subject]:
            self.wall_speedup = min(waits) / self.wall_ms[subject]


def kernels_found(record: Record, earlier: set[str]) -> dict[str, int]:
    """Where a record's GPU kernels came from; those of ``earlier`` were in the process, which all are now."""
    builds = [stage.value for stage in record.stages if isinstance(stage.value, TritonBuild)]
    fresh = {cubin.key: cubin.fresh for build in builds for cubin in build.cubins.values()}
    new = [fresh[key] for key in fresh if key not in earlier]
    earlier.update(fresh)
    return {"compiled": sum(new), "on_disk": len(new) - sum(new), "earlier": len(fresh) - len(new)}


def print_rows(title: str, rows: Sequence[GpuRow], subject: str, rivals: Sequence[str]) -> None:
    """Two tables: GPU times and errors; first call, memory and host time."""
    names = [SHORT.get(name, name) for name in rivals]
    columns = [
        "row",
        *(f"{name} ms" for name in names),
        "best",
        "ratio",
        "wall",
        "of copy",
        "err eager",
        f"err {subject}",
        "",
    ]
    table = []
    for row in rows:
        slow = row.speedup < 1 / TIE
        verdict = "FAILED" if subject in row.failures else "WRONG" if row.complaints else "slower" if slow else ""
        table.append(
            [
                row.name,
                *_figures(row.milliseconds, rivals, ".3f"),
                SHORT.get(row.best, row.best),
                f"{row.speedup:.2f}",
                "-" if math.isnan(row.wall_speedup) else f"{row.wall_speedup:.2f}",
                "" if row.share is None else f"{row.share:.2f}",
                f"{row.errors.get('eager', math.nan):.1e}",
                f"{row.errors.get(subject, math.nan):.1e}",
                verdict,
            ]
        )
    what = f"{subject} over the best rival (above 1: {subject} is faster; wall: in what a caller waits)"
    print_table(f"{title}: {what}", columns, table)
    kinds = (
        ("s", "seconds", ".1f"),
        ("MiB", "peak_mib", ".0f"),
        ("kept", "kept_mib", ".0f"),
        ("us", "host_us", ".0f"),
    )
    found = "; in brackets: code found on disk" if any(row.prefilled for row in rows) else ""
    title = f"First call (s{found}), most memory in use and memory kept between calls (MiB), host time of a call (us)"
    together = [kinds] if len(rivals) <= 3 else [(kind,) for kind in kinds]
    for shown in together:
        columns = ["row", *(f"{name} {unit}" for unit, _, _ in shown for name in names)]
        table = []
        for row in rows:
            figures = [row.name]
            for _, kind, form in shown:
                values = _figures(getattr(row, kind), rivals, form)
                warm = row.prefilled if kind == "seconds" else ()
                figures += [f"({v})" if name in warm else v for name, v in zip(rivals, values, strict=True)]
            table.append(figures)
        print_table(title, columns, table)
        title = ""


def _figures(values: dict[str, float], rivals: Sequence[str], form: str) -> list[str]:
    return [format(values[name], form) if name in values else "-" for name in rivals]


def summary(rows: Sequence[GpuRow], subject: str) -> dict[str, Any]:
    """What is wanted of the rows, over all of them."""
    timed = [row for row in rows if not math.isnan(row.speedup)]
    waited = [row.wall_speedup for row in rows if not math.isnan(row.wall_speedup)]
    return {
        "rows": len(rows),
        "geomean_over_best": geometric_mean(row.speedup for row in timed),
        **({"geomean_wall_over_best": geometric_mean(waited), "rows_with_wall": len(waited)} if waited else {}),
        "slower_than_best": {row.name: round(row.speedup, 3) for row in timed if row.speedup < 1 / TIE},
        "forward_under_0.85_of_copy": {r.name: round(r.share, 3) for r in timed if r.share and r.share < 0.85},
        "more_memory_than_torch": {r.name: _pair(_most_mib(r), subject) for r in rows if _more_memory(r, subject)},
        "first_call_slower_than_torch": {r.name: _pair(r.seconds, subject) for r in rows if _later(r, subject)},
        "wrong": {row.name: row.complaints for row in rows if row.complaints},
        "failed": {row.name: row.failures[subject] for row in rows if subject in row.failures},
    }


def _pair(values: dict[str, float], subject: str) -> list[float]:
    return [round(values[subject], 1), round(values["torch"], 1)]


def _more_memory(row: GpuRow, subject: str) -> bool:
    peak = _most_mib(row)
    return {subject, "torch"} <= peak.keys() and peak[subject] > MOST_PEAK * peak["torch"] + SMALL_MIB


def _most_mib(row: GpuRow) -> dict[str, float]:
    """The most memory of each, what its graphs keep included, which the peaks of earlier results leave out."""
    return {name: max(peak, row.kept_mib.get(name, 0.0)) for name, peak in row.peak_mib.items()}


def _later(row: GpuRow, subject: str) -> bool:
    cold = row.seconds.keys() - set(row.prefilled)
    return {subject, "torch"} <= cold and row.seconds[subject] > row.seconds["torch"]


def merged(files: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The content of one file of results made of several, later rows in the place of earlier ones.

    What the first has besides rows stays. Raises ``ValueError`` where the files judge different compilers.
    """
    subjects = {content["subject"] for content in files}
    if len(subjects) != 1:
        raise ValueError(f"the files judge different compilers: {', '.join(sorted(subjects))}")
    (subject,) = subjects
    rows: dict[str, GpuRow] = {}
    for content in files:
        for fields in content["rows"]:
            row = GpuRow(**fields)
            row.measured = row.measured or _stamp(content)
            if row.name in rows:
                _keep(row, rows[row.name])
            rows[row.name] = row
    every = list(rows.values())
    compared = Counter(", ".join(name for name in row.milliseconds if name != subject) for row in every)
    rivals = "; ".join(f"{names or 'none'} ({count} rows)" for names, count in compared.most_common())
    note = "Each row was timed in one process; 'measured' names its GPU, that GPU's rates and the commit."
    machine = {key: files[-1]["machine"].get(key) for key in ("cpu", "python", "versions")}
    samples = min(content["samples"] for content in files)
    made = {"note": f"{note} Rivals: {rivals}.", "machine": machine, "subject": subject, "samples": samples}
    others = {key: value for key, value in files[0].items() if key not in ("gpu", *made)}
    return made | others | {"summary": summary(every, subject), "rows": [asdict(row) for row in every]}


def _keep(row: GpuRow, earlier: GpuRow) -> None:
    """What an earlier run found and this one did not look for: cold first calls, errors, and what a caller waits."""
    if not row.wall_ms and earlier.wall_ms:
        row.wall_ms, row.wall_speedup = earlier.wall_ms, earlier.wall_speedup
        row.measured["wall"] = earlier.measured.get("wall", {"commit": earlier.measured.get("commit")})
    if row.reference == "none" and earlier.reference != "none":
        row.reference, row.errors = earlier.reference, earlier.errors
        row.measured["errors"] = {"commit": earlier.measured.get("commit")}
    cold = [name for name in row.prefilled if name in earlier.seconds and name not in earlier.prefilled]
    for name in cold:
        row.seconds[name] = earlier.seconds[name]
        row.prefilled.remove(name)
    if cold:
        row.measured["cold"] = {"rivals": cold, "commit": earlier.measured.get("commit")}


def _stamp(content: dict[str, Any]) -> dict[str, Any]:
    card, machine = content["gpu"], content["machine"]
    rates = {key: card[key] for key in ("copy_gbs", "gemm_bf16_tflops")}
    environment = {"environment": machine["environment"]} if machine.get("environment") else {}
    return {"gpu": card["name"], **rates, "commit": machine["commit"], "time": machine["time"], **environment}


def main(argv: Sequence[str] | None = None) -> int:
    """Merge files of results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("merge",))
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--into", type=Path, required=True, help="the file written; its rows come first if it exists")
    parser.add_argument("--commit", default="", help="that of the files which do not say: run outside a checkout")
    args = parser.parse_args(argv)
    paths = [path for path in (args.into, *args.files) if path != args.into or path.exists()]
    files = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    for content in files:
        if not content["machine"].get("commit"):
            content["machine"]["commit"] = args.commit
    content = merged(files)
    args.into.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    for key, value in content["summary"].items():
        print(f"{key}: {value:.3f}" if isinstance(value, float) else f"{key}: {value}")
    print(f"written: {args.into}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
