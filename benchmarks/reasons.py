"""Whether every decision and every boundary between kernels has a registered reason, over the models of provenance.

    python -m benchmarks.reasons [--only NAME]

Each of the thirty models is trained for one step. Of its record all decisions are taken, of its plans each pair of
steps that meet in a buffer, and of its report each edge of the fusion maps: a reason counts if its code is registered
and its words say something. Without ``--only`` the counts are written to results/reasons.json.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

import lamina
from benchmarks.provenance import models
from benchmarks.report import RESULTS
from lamina.base.reasons import Reason
from lamina.explain.codes import all_codes
from lamina.ir.plan import Plan
from lamina.record import Record
from lamina.report.document import document
from lamina.schedule.boundaries import boundaries

__all__ = ["counted", "recorded"]

_SAYS_NOTHING = re.compile(r"^\W*$|\bunknown\b", re.IGNORECASE)
_UNFILLED = re.compile(r"(?<![\w'\"{])\{[a-z_]+\}")


def recorded(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> Record:
    """The record of one training step of ``module``."""
    torch.compiler.reset()
    compiled = lamina.compile(module, options={"compare_eager": "off", "progress": False})
    out = compiled(*inputs)
    if out.requires_grad:
        out.sum().backward()
    return compiled.record


def counted(record: Record) -> tuple[dict[str, Any], list[str]]:
    """How many decisions, boundaries and edges there are and how often which code is said; and what has no reason."""
    codes = {code.number for section in all_codes() for code in section}
    found: dict[str, Counter[str]] = {"decisions": Counter(), "boundaries": Counter(), "edges": Counter()}
    lost: list[str] = []
    for what, name, code, text in _asked(record):
        found[what][code or "none"] += 1
        if code not in codes or _SAYS_NOTHING.search(text) or _UNFILLED.search(text):
            lost.append(f"{what} {name}: {text!r} [{code}]")
    counts = {what: sum(by_code.values()) for what, by_code in found.items()}
    return {**counts, "codes": {what: dict(sorted(by_code.items())) for what, by_code in found.items()}}, lost


def _asked(record: Record) -> Iterator[tuple[str, str, str, str]]:
    """What it is, its name, its code and its words, for whatever needs a reason."""
    for stage in record.stages:
        for decision in stage.decisions:
            name = f"{stage.region}/{stage.name}/{decision.kind} {'/'.join(map(str, decision.subject))}"
            yield "decisions", name, decision.code, str(decision.reason)
        if isinstance(stage.value, Plan):
            for pair in boundaries(stage.value):
                reason = pair.reason
                code = reason.code if isinstance(reason, Reason) else ""
                yield "boundaries", f"{stage.value.name} {pair.first} | {pair.second}", code, str(reason)
    for region in document(record, assembly=False)["regions"]:
        for one in region.get("fusion", {}).values():
            for edge in one["edges"]:
                yield (
                    "edges",
                    f"{region['name']} {edge['from']} | {edge['to']}",
                    edge.get("code", ""),
                    edge.get("why", ""),
                )


def main() -> int:
    """Print a line for each model and what has no reason; 1 where there is any."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="the one model to take")
    given = parser.parse_args()
    results: dict[str, Any] = {}
    lost: list[str] = []
    for name, module, inputs in models():
        if given.only in ("", name):
            results[name], without = counted(recorded(module, inputs))
            lost += (f"{name}: {one}" for one in without)
            row = results[name]
            print(f"{name:16}", *(f"{row[what]} {what}" for what in ("decisions", "boundaries", "edges")), flush=True)
    print(f"{len(lost)} without a reason", *lost, sep="\n  ")
    if not given.only:
        totals = {what: sum(row[what] for row in results.values()) for what in ("decisions", "boundaries", "edges")}
        content = {"torch": torch.__version__, "models": results, "totals": totals, "without_reason": lost}
        (RESULTS / "reasons.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return bool(lost)


if __name__ == "__main__":
    sys.exit(main())
