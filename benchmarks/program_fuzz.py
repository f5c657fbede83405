"""Random programs, compiled and compared with eager: a long run, and whether each class of faults is within reach.

``python -m benchmarks.program_fuzz --programs 20000 --workers 16`` writes results/program_fuzz.json. With ``--classes``
it looks, for each of the classes below, for a program that shows it, reduces it and writes results/fuzz_classes.json:
that is to be run with a version of Lamina that has the faults.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lamina.testing.fuzz import Finding, fuzz, minify
from lamina.testing.fuzz.campaign import target_of
from lamina.testing.fuzz.pool import Answer, Job, Worker

RESULTS = Path(__file__).parent / "results"
SAMPLE = 50


@dataclass(frozen=True, slots=True)
class FaultClass:
    """A class of faults: the ingredients that make programs of it, and what a program that has it shows."""

    name: str
    only: tuple[str, ...]
    shows: str
    source: str = ""

    def fits(self, answer: Answer) -> bool:
        """Whether the first differences are this class's, as far as a program tells."""
        text = "\n".join(str(d) for d in answer.verdict.differences[:3])
        return (
            not answer.verdict.ok and bool(re.search(self.shows, text)) and bool(re.search(self.source, answer.source))
        )


VALUE = r"^value|^structure"
CLASSES = (
    FaultClass("integers that may be negative: read or write outside", ("ints",), r"^value|^crash", r"-[12]\)"),
    FaultClass("integers that may be negative: // and %", ("ints",), r"^value", r"= \w+ [-+*] \(?k (//|%)"),
    FaultClass("slices as arguments", ("slices",), VALUE),
    FaultClass("two symbolic sizes and composite calls", ("sizes",), r"SIGSEGV"),
    FaultClass("steps and strides that vary", ("steps",), r"^layout|^value", r"::k|::p|:8:p|\(p,"),
    FaultClass("enable_grad inside no_grad", ("contexts", "modes", "across"), r"^requires_grad", r"enable_grad"),
    FaultClass("a mode that the function leaves switched", ("switches",), r"^state.*grad mode"),
    FaultClass("a context open across a graph break", ("across",), r"^value|^structure|^requires_grad", r"autocast"),
    FaultClass("detached input and a second loss", ("losses",), r"second time"),
    FaultClass("attention: fill, then scale", ("attention",), r"^value(?!.*NaN)", r"masked_fill|where"),
    FaultClass("attention: what is not finite behind a mask", ("attention",), r"NaN or infinite"),
    FaultClass("concatenation of a concatenation", ("concats",), r"cat|stack"),
    FaultClass("class of a compiled module replaced", ("module_class",), r"__class__|^error|^value"),
    FaultClass("experts or depth chosen by the data", ("router",), r"^error"),
    FaultClass("a transformer block in train mode", ("block",), r"^error|^value"),
    FaultClass("overflow of integers", ("overflow",), r"^value.*elements differ"),
    FaultClass("arguments that share memory in some calls", ("aliasing",), r"^value|^crash", r"base|x1 = x0"),
    FaultClass("foreach with one tensor twice", ("foreach",), r"^value", r"_foreach_add_\(\[(\w+), \1"),
    FaultClass("overlapping writes that eager refuses", ("overlaps",), r"eager's is RuntimeError\(unsupported"),
    FaultClass("an input written between forward and backward", ("late",), r"modified by an inplace"),
    FaultClass("sizes and numbers that the data decides", ("data",), r"BackendCompilerFailed|Pending"),
    FaultClass("errors that are missing", ("errors",), r"eager's is \w*Error"),
    FaultClass("strides of results", ("layouts",), r"^layout"),
    FaultClass("functions of limited accuracy", ("special",), r"^value", r"erfc|1\.4142|xlog1py"),
    FaultClass("batch norm over few values", ("norms",), r"^value|^layout"),
    FaultClass("a user's rule that loses a gradient", ("user_rule",), r"requires_grad|^value|^error"),
    FaultClass("functions of one code object", ("shared_code",), r"^value|^error|^structure"),
)
"""Classes of faults, with the ingredients that reach them and what their programs show."""


def find(fault: FaultClass, most: int, worker: Worker) -> dict[str, Any]:
    """The first seed of the class's ingredients that shows it, and the reduced program."""
    row: dict[str, Any] = {"class": fault.name, "only": list(fault.only), "tried": most, "seed": None}
    for seed in range(most):
        target = target_of("lamina", seed)
        answer = worker.ask(Job(target, seed=seed, only=fault.only))
        if not fault.fits(answer):
            continue
        made = minify(answer.source, target, worker=worker)
        return {
            **row,
            "tried": seed + 1,
            "seed": seed,
            "target": target,
            "kind": made.answer.verdict.kind,
            "shows": str(made.answer.verdict.differences[0])[:300],
            "capture": made.answer.capture,
            "lines": made.lines,
            "program": made.source,
        }
    return row


def write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def find_classes(most: int, names: list[str]) -> int:
    """Look for every class and write what was found; the exit status is 1 if one is not."""
    path = RESULTS / "fuzz_classes.json"
    rows = {r["class"]: r for r in json.loads(path.read_text())} if path.exists() and names else {}
    with Worker() as worker:
        for fault in CLASSES:
            if names and not any(name in fault.name for name in names):
                continue
            row = rows[fault.name] = find(fault, most, worker)
            print(
                f"{fault.name}: seed {row['seed']}, {row.get('lines')} lines, {row.get('shows', 'not found')[:150]}",
                flush=True,
            )
            write(path, [rows[f.name] for f in CLASSES if f.name in rows])
    return int(any(row["seed"] is None for row in rows.values()))


def run(arguments: argparse.Namespace) -> int:
    """The long run; findings are printed as they come, reduced if asked for, and written at the end."""

    def tell(finding: Finding) -> None:
        print(
            f"{finding.seed} {finding.target} {'capture ' if finding.capture else ''}{finding.text[:200]}", flush=True
        )

    campaign = fuzz(
        arguments.programs,
        arguments.seed,
        target=arguments.compile,
        only=arguments.only,
        workers=arguments.workers,
        seconds=arguments.seconds,
        each=tell,
    )
    print(campaign)
    write(Path(arguments.to), {**campaign.as_json(), "workers": arguments.workers, "only": arguments.only})
    return int(bool(campaign.own))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile", default="lamina")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=300.0, help="how long one program may take")
    parser.add_argument("--to", default=str(RESULTS / "program_fuzz.json"))
    parser.add_argument("--classes", nargs="*", metavar="PART", help="look for the classes of faults instead")
    parser.add_argument("--most", type=int, default=300, help="seeds to try for each class")
    arguments = parser.parse_args()
    if arguments.classes is not None:
        return find_classes(arguments.most, arguments.classes)
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
