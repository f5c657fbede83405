"""What a sweep tells: how fast on average, which programs are slower than the better rival, and why, as far as seen."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from benchmarks.report import geometric_mean, print_table
from benchmarks.sweeping.measure import Finding

__all__ = ["cause", "print_summary", "summary", "suspects"]

FEWEST = 3
"""Of a kind with fewer programs no mean is told."""


def cause(finding: Finding) -> str:
    """Where the time of a slow program is lost, from the record and from which rival is faster."""
    if finding.fallback:
        return "left to eager: " + re.sub(r"\d+", "N", finding.fallback.split(" | ")[0])[:90]
    if finding.graphs == 0:
        return "nothing was captured"
    if finding.kernels == 0:
        return "library calls only"
    rival, ours = finding.rival_kernels, finding.kernels
    if rival and ours > rival:
        return "more kernels than torch.compile's"
    if finding.speedups.get("eager", 9.0) <= finding.speedups.get("torch", 9.0) and "torch" in finding.speedups:
        return "eager's own kernels are faster than both" if _both_behind(finding) else "slower than eager"
    return "as many kernels, slower ones" if not finding.libraries else "kernels around library calls"


def _both_behind(finding: Finding) -> bool:
    return finding.milliseconds.get("torch", 0.0) > finding.milliseconds.get("eager", 0.0) * 1.05


def suspects(findings: Sequence[Finding]) -> dict[str, float]:
    """The geometric mean of speed over the better rival by kind of operation, the worst first."""
    by_kind: dict[str, list[float]] = defaultdict(list)
    for finding in findings:
        for kind in finding.kinds if finding.status == "timed" else ():
            by_kind[kind].append(finding.best)
    means = {kind: geometric_mean(values) for kind, values in by_kind.items()}
    return dict(sorted(means.items(), key=lambda item: item[1]))


def summary(findings: Sequence[Finding]) -> dict[str, Any]:
    """Counts, means, and the slower programs by cause, the one that loses most first."""
    timed = [f for f in findings if f.status == "timed"]
    names = sorted({name for f in timed for name in f.speedups})
    groups: dict[str, list[Finding]] = defaultdict(list)
    for part in [f for f in timed if f.slower]:
        groups[cause(part)].append(part)
    means: dict[str, dict[str, float]] = {}
    for label, chosen in _parts(timed).items():
        means[label] = {n: geometric_mean(f.speedups[n] for f in chosen if n in f.speedups) for n in names}
        means[label] |= {"best": geometric_mean(f.best for f in chosen), "programs": len(chosen)}
        means[label]["slower"] = sum(f.slower for f in chosen)
    ordered = sorted(groups.items(), key=lambda item: geometric_mean(f.best for f in item[1]))
    return {
        "by_status": dict(Counter(f.status for f in findings)),
        "skipped": dict(Counter(f.detail for f in findings if f.status == "skipped").most_common()),
        "wrong": {f.name: f.detail for f in findings if f.status in ("differs", "failed", "crash")},
        "means": means,
        "kinds": {k: {"mean": m, "programs": _count(timed, k)} for k, m in suspects(timed).items()},
        "slower": {why: [f.name for f in sorted(part, key=lambda f: f.best)] for why, part in ordered},
    }


def _parts(timed: Sequence[Finding]) -> dict[str, list[Finding]]:
    parts: dict[str, list[Finding]] = {"all": list(timed)}
    for finding in timed:
        case, dtype, mode = finding.name.rsplit(".", 2)
        for label in (case.split("/", 1)[0], dtype, mode):
            parts.setdefault(label, []).append(finding)
    return parts


def _count(timed: Sequence[Finding], kind: str) -> int:
    return sum(kind in f.kinds for f in timed)


def print_summary(findings: Sequence[Finding], rivals: Sequence[str], sources: int = 0) -> dict[str, Any]:
    """Print it; the text of the first ``sources`` slow programs of each cause too."""
    told, by_name = summary(findings), {f.name: f for f in findings}
    print("rows:", ", ".join(f"{count} {status}" for status, count in told["by_status"].items()))
    for reason, count in list(told["skipped"].items())[:12]:
        print(f"  skipped {count}: {reason}")
    for name, detail in told["wrong"].items():
        print(f"  {by_name[name].status}: {name}: {detail[:150]}")
    columns = ["part", "programs", *(f"vs {n}" for n in rivals), "vs best", "slower"]
    rows = []
    for label, m in told["means"].items():
        speeds = [f"{m.get(n, float('nan')):.2f}" for n in (*rivals, "best")]
        rows.append([label, f"{m['programs']:.0f}", *speeds, f"{m['slower']:.0f}"])
    print_table("Geometric means of speed (above 1: the subject is faster)", columns, rows)
    kinds = [[k, str(v["programs"]), f"{v['mean']:.2f}"] for k, v in told["kinds"].items() if v["programs"] >= FEWEST]
    print_table("By kind of operation in the program", ["kind", "programs", "vs best"], kinds[:30])
    means = suspects(findings)
    for why, names in told["slower"].items():
        _print_group(why, [by_name[n] for n in names], rivals, means, sources)
    return told


def _print_group(
    why: str, group: Sequence[Finding], rivals: Sequence[str], means: dict[str, float], sources: int
) -> None:
    rows = []
    for f in group:
        kinds = sorted(f.kinds, key=lambda k: means.get(k, 1.0))
        speeds = [f"{f.speedups[n]:.2f}" if n in f.speedups else "-" for n in rivals]
        milliseconds = f"{f.milliseconds.get('lamina', next(iter(f.milliseconds.values()))):.3f}"
        counts = [f"{f.kernels}+{f.libraries}", str(f.rival_kernels)]
        rows.append([f.name, milliseconds, *speeds, *counts, ", ".join(kinds)])
    columns = ["program", "ms", *(f"vs {n}" for n in rivals), "kernels", "torch's", "kinds, the slowest first"]
    print_table(f"Slower: {why} ({len(group)})", columns, rows)
    for f in group:
        if f.fallback:
            print(f"  {f.name}: {f.fallback}")
    for f in group[:sources]:
        print(f.name, *(f"  not: {d}" for d in f.decisions), f.text, sep="\n")
