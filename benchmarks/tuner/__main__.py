"""The tuner's own figures.

``models`` tunes each of ten models again and again, each time in a fresh process and without a journal, and then times
the choice against eager once more, by turns; ``others`` does so with ten models more. ``copies`` does so with a model
whose one candidate is its copy, on a machine that is busy. ``resume`` kills a run at ten random points, lets it end and
compares its table with that of a run that was never killed; a candidate that was measured before a kill must not be
measured again. ``gpu`` tunes three models on a GPU, ``fleet`` one by several executors: one candidate at a
time, several at a time (with ``--device cuda`` on as many GPUs), or a Ray cluster of this machine, with its start or
("ray, running") without it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.report import RESULTS
from benchmarks.tuner import fleet, gpu, interrupted, repeats
from benchmarks.tuner.lanes import cores_of, serve


def main(argv: Sequence[str] | None = None) -> int:
    """Take the figures that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("models", "others", "copies", "resume", "gpu", "fleet", "serve", "planted"))
    parser.add_argument("rest", nargs="*")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=3.0, help="for which a candidate is timed")
    parser.add_argument("--only", default="", help="models whose name contains this")
    parser.add_argument("--lanes", default="", help='cores of runs side by side, such as "0,1;2,3"; one run at a time')
    parser.add_argument("--most", type=float, default=1e9, help="seconds after which no run is begun")
    parser.add_argument("--executors", default="local;ray", help="of fleet: local, local:4, ray, or 'ray, running'")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="of fleet")
    parser.add_argument("--turns", type=int, default=2, help="of fleet: searches by each executor")
    parser.add_argument("--to", type=Path, help="the file of results")
    args = parser.parse_args(argv)
    lanes = cores_of(args.lanes)
    to = args.to or RESULTS / f"tuner_{args.what}.json"
    if args.what in ("models", "others"):
        return repeats.models(args.runs, args.seconds, args.only, lanes, args.most, to, args.what == "others")
    if args.what == "copies":
        return repeats.copies(args.seconds, lanes, args.most, to)
    if args.what == "resume":
        return interrupted.resume(to)
    if args.what == "gpu":
        return gpu.tuned(args.seconds, to)
    if args.what == "fleet":
        return fleet.compared(args.seconds, args.executors.split(";"), args.turns, to, args.device)
    if args.what == "serve":
        return serve(repeats.measured, args.rest)
    table = [(row.candidate.name, row.verdict, row.reason) for row in interrupted.planted(Path(args.rest[0]))]
    print(json.dumps({"table": table}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
