"""The tuner's own figures: what it gains on ten models, how often it chooses the same, and what a killed run leaves.

``python -m benchmarks.tuner models --runs 20`` tunes each model that often, each time in a fresh process and without a
journal, and then times the first run's choice against eager once more, by turns. ``python -m benchmarks.tuner resume``
kills a run at ten random points, lets it end, and compares its table with that of a run that was never killed; a
candidate that was measured before a kill must not be measured again.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import lamina
from benchmarks.report import RESULTS, print_table, write_results
from lamina.tuner.programs import Subject, timed_call
from lamina.tuner.samples import samples_of
from lamina.tuner.timing import Clock, race
from lamina.tuner.values import Candidate, Row
from tests.tuner.models import batch, small

__all__ = ["MODELS", "main"]

KILLS = 10
CANDIDATES = (
    Candidate("lamina", "lamina", cost=2),
    Candidate("torch.compile", "torch.compile", cost=2),
    Candidate("lamina, frozen", "lamina", {"options": {"freeze": True}}, 3),
)
PLANTED = ("constant", "wrong_dtype", "one_wrong_element", "mutated_input", "exception_while_timed")
"""Of ``tests/tuner/planted.py``, those whose verdict does not depend on the load of the machine."""


class Residual(nn.Module):
    """A block that is added to what it was given."""

    def __init__(self, *inner: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Sequential(*inner)

    def forward(self, x: Tensor) -> Tensor:
        """The sum."""
        return x + self.inner(x)


class Chain(nn.Module):
    """Twelve operators on elements."""

    def forward(self, x: Tensor) -> Tensor:
        """A result of the input's shape."""
        y = torch.sigmoid(x) * torch.tanh(x) + x.exp() / (1 + x.square())
        return torch.where(y > 0, y.log1p(), y * 0.1).clamp(-3, 3)


class Statistics(nn.Module):
    """Reductions over rows."""

    def forward(self, x: Tensor) -> Tensor:
        """Rows with mean zero and variance one, in softmax."""
        y = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-5).sqrt()
        return y.softmax(-1) * y.abs().amax(-1, keepdim=True)


class Rotary(nn.Module):
    """Rotary embedding of heads."""

    def forward(self, x: Tensor) -> Tensor:
        """Heads, each turned by its place."""
        length, width = x.shape[-2], x.shape[-1]
        rates = torch.arange(0, width, 2) / width
        turns = torch.arange(length).unsqueeze(-1) / 10000**rates
        even, odd = x[..., ::2], x[..., 1::2]
        return torch.cat([even * turns.cos() - odd * turns.sin(), even * turns.sin() + odd * turns.cos()], -1)


def _net() -> nn.Module:
    layers = [nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.SiLU()]
    return nn.Sequential(*layers, nn.Conv2d(16, 16, 1), nn.BatchNorm2d(16), nn.Hardswish())


MODELS: Mapping[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "chain": (Chain, (256, 4096)),
    "statistics": (Statistics, (512, 2048)),
    "rotary": (Rotary, (4, 8, 256, 64)),
    "layer norm and gelu": (lambda: nn.Sequential(nn.LayerNorm(1024), nn.GELU()), (1024, 1024)),
    "mlp": (lambda: nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)), (64, 256)),
    "residual mlp": (
        lambda: Residual(nn.LayerNorm(256), nn.Linear(256, 512), nn.SiLU(), nn.Linear(512, 256)),
        (256, 256),
    ),
    "encoder layer": (lambda: nn.TransformerEncoderLayer(128, 4, 512, batch_first=True), (8, 64, 128)),
    "convolutions": (_net, (4, 16, 64, 64)),
    "group norm": (lambda: nn.Sequential(nn.GroupNorm(8, 64), nn.SiLU(), nn.AvgPool2d(2)), (8, 64, 56, 56)),
    "wide linear": (lambda: nn.Linear(1024, 1024), (256, 1024)),
}


def _model(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    make, shape = MODELS[name]
    return make().eval(), torch.randn(shape)


def _tune_once(name: str, seconds: float) -> dict[str, Any]:
    """The choice for a model, and its speed against eager, timed again in this process."""
    model, x = _model(name)
    result = lamina.tune(model, x, candidates=CANDIDATES, modules=False, journal=False, seconds=seconds)
    subject = Subject(model, samples_of(x))
    calls = [timed_call(call, subject, model) for call in (model, result.model)]
    for call in calls:
        call()
    found = race(*calls, Clock(torch.device("cpu")), seconds=seconds, threshold=0.01)
    verdicts = {row.candidate.name: row.verdict for row in result.rows}
    ratio = {"middle": found.speedup.middle, "low": found.speedup.low, "high": found.speedup.high}
    return {"chosen": result.chosen.candidate.name, "verdict": found.verdict, "ratio": ratio, "verdicts": verdicts}


def models(runs: int, seconds: float, only: str, to: Path) -> int:
    """Tune each model ``runs`` times; 1 if a tuned one is slower than eager beyond noise."""
    found: dict[str, Any] = {}
    for name in MODELS:
        if only not in name:
            continue
        told = [_child("once", name, str(seconds)) for _ in range(runs)]
        ((chosen, count),) = Counter(one["chosen"] for one in told).most_common(1)
        found[name] = {"chosen": chosen, "same": count, "runs": told}
        print(name, chosen, f"{count} of {runs}", told[0]["verdict"], f"{told[0]['ratio']['middle']:.2f}x", flush=True)
    mean = math.exp(sum(math.log(one["runs"][0]["ratio"]["middle"]) for one in found.values()) / len(found))
    slower = [name for name, one in found.items() if any(run["verdict"] == "slower" for run in one["runs"])]
    rows = [
        [name, one["chosen"], f"{one['same']} of {runs}", f"{one['runs'][0]['ratio']['middle']:.2f}x"]
        for name, one in found.items()
    ]
    print_table("tuned models", ("model", "chosen", "repeated", "against eager"), rows)
    print(f"geometric mean {mean:.2f}x; slower than eager: {', '.join(slower) or 'none'}")
    if not only:
        write_results(to, {"runs": runs, "mean": mean, "slower": slower, "models": found})
    return 1 if slower else 0


def _child(*words: str) -> dict[str, Any]:
    line = [sys.executable, "-m", "benchmarks.tuner", *words]
    said = subprocess.run(line, capture_output=True, text=True, check=True, timeout=900).stdout
    answer: dict[str, Any] = json.loads(said.splitlines()[-1])
    return answer


def _planted(journal: Path) -> list[Row]:
    candidates = [Candidate(name, "import", {"target": f"tests.tuner.planted:{name}"}) for name in PLANTED]
    return list(lamina.tune(small(), batch(), candidates=candidates, seconds=0.2, journal=journal).rows)


def resume(to: Path) -> int:
    """Kill a run ten times; 1 if what it ends with is not what a run that was never killed ends with."""
    line = [sys.executable, "-m", "benchmarks.tuner", "planted"]
    drawn = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        whole, killed = Path(folder, "whole.jsonl"), Path(folder, "killed.jsonl")
        start = time.monotonic()
        expected = _child("planted", str(whole))
        seconds = time.monotonic() - start
        kills = []
        while len(kills) < KILLS:
            with subprocess.Popen([*line, str(killed)], stdout=subprocess.DEVNULL) as run:
                time.sleep(drawn.uniform(0.3, 0.6) * seconds)
                ended = run.poll() is not None
                run.kill()
            lines = killed.read_text(encoding="utf-8").splitlines() if killed.exists() else []
            kills.append({"rows": len(lines), "ended": ended})
            print(f"kill {len(kills)}: {len(lines)} rows in the journal", flush=True)
        got = _child("planted", str(killed))
        keys = [json.loads(text)["key"] for text in killed.read_text(encoding="utf-8").splitlines()]
    same = got == expected and len(set(keys)) == len(keys) == len(expected["table"])
    print("the same table" if same else f"{got} is not {expected}")
    write_results(to, {"kills": kills, "same": same, "table": got["table"]})
    return 0 if same else 1


def main(argv: Sequence[str] | None = None) -> int:
    """Take the figures that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("models", "resume", "once", "planted"))
    parser.add_argument("rest", nargs="*")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=3.0, help="for which a candidate is timed")
    parser.add_argument("--only", default="", help="models whose name contains this")
    args = parser.parse_args(argv)
    if args.what == "models":
        return models(args.runs, args.seconds, args.only, RESULTS / "tuner.json")
    if args.what == "resume":
        return resume(RESULTS / "tuner_resume.json")
    if args.what == "once":
        print(json.dumps(_tune_once(args.rest[0], float(args.rest[1]))))
    else:
        table = [(row.candidate.name, row.verdict, row.reason) for row in _planted(Path(args.rest[0]))]
        print(json.dumps({"table": table}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
