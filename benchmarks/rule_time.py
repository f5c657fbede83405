"""What Lamina's rules cost: the engine's share of the seconds that a GPT takes to compile, with all rules on.

    python -m benchmarks.rule_time [--layers N] [--repeats N] [--json PATH]

Two models: one that calls whole functions, in which no rule has anything to do, and one that writes norms, attention,
GELU and the loss by hand, in which rules fire in every layer. Each sample is a fresh process with an empty cache:
seconds until the first training step has ended, and those spent in rules and in the passes beside them, on captured
and on joint graphs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lamina
from benchmarks.gpt import GPT, HEADS, WIDTH, Block, batch, private_gpt
from benchmarks.report import RESULTS, print_table, write_results
from lamina.rewrite.rewriting import Rewriting

__all__ = ["HandWrittenGPT", "Sample", "engine_time", "main", "measured"]

MARK = "RESULT "
LARGEST_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Sample:
    """Seconds of one compilation, and how often each rewrite was made."""

    model: str
    layers: int
    compile_seconds: float
    engine_seconds: float
    rewrites: dict[str, int]

    @property
    def share(self) -> float:
        """The engine's part of the whole."""
        return self.engine_seconds / self.compile_seconds


class HandNorm(nn.Module):
    """Layer norm over the last dimension, by its formula."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        near = x - x.mean(-1, keepdim=True)
        return near / torch.sqrt(near.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight + self.bias


class HandGELU(nn.Module):
    """GELU by tanh, by its formula."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class HandBlock(Block):
    """The block with norms, softmax and GELU by hand; no dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after, self.gelu = HandNorm(WIDTH), HandNorm(WIDTH), HandGELU()  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = (t.view(b, n, HEADS, c // HEADS).transpose(1, 2) for t in self.qkv(self.before(x)).chunk(3, -1))
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(c // HEADS)
        powers = torch.exp((s := scores.masked_fill(self.mask[:n, :n], float("-inf"))) - s.amax(-1, keepdim=True))
        mixed = powers / powers.sum(-1, keepdim=True) @ v
        x = x + self.out(mixed.transpose(1, 2).contiguous().view(b, n, c))
        return x + self.down(self.gelu(self.up(self.after(x))))


class HandWrittenGPT(GPT):
    """The GPT with all but its products written by hand; returns the mean cross entropy."""

    def __init__(self, layers: int) -> None:
        super().__init__(0)
        self.blocks, self.norm = nn.ModuleList(HandBlock() for _ in range(layers)), HandNorm(WIDTH)  # type: ignore[assignment]

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logp = F.log_softmax(self.head(self.norm(x)), dim=-1)
        return -logp.gather(-1, targets.unsqueeze(-1)).squeeze(-1).mean()


MODELS: dict[str, Callable[[int], nn.Module]] = {"whole functions": private_gpt, "by hand": HandWrittenGPT}


@contextmanager
def engine_time() -> Iterator[list[float]]:
    """Inside, the list receives the seconds of each visit to the engine."""
    seconds: list[float] = []

    def timed(method: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            start = time.perf_counter()
            try:
                return method(*args)
            finally:
                seconds.append(time.perf_counter() - start)

        return run

    with (
        mock.patch.object(Rewriting, "captured", timed(Rewriting.captured)),
        mock.patch.object(Rewriting, "joint", timed(Rewriting.joint)),
    ):
        yield seconds


def measured(name: str, layers: int) -> Sample:
    """Compile and train one step in this process."""
    torch.manual_seed(0)
    model, data = MODELS[name](layers), batch()
    with engine_time() as engine:
        start = time.perf_counter()
        compiled = lamina.compile(model, dynamic=False)
        compiled(*data).backward()
        seconds = time.perf_counter() - start
    made = Counter(str(d.subject[0]) for d in compiled.record.decisions("rewrite") if d.taken)
    return Sample(name, layers, seconds, sum(engine), dict(made))


def _fresh(name: str, layers: int) -> Sample:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.rule_time", "--child", name, "--layers", str(layers)]
        environment = {**os.environ, "LAMINA_CACHE_DIR": folder}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        if line.startswith(MARK):
            return Sample(**json.loads(line.removeprefix(MARK)))
    raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table, write JSON; 1 if a share is above the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=3, help="samples of each; the one of the median share counts")
    parser.add_argument("--json", type=Path, default=RESULTS / "rule_time.json")
    parser.add_argument("--child", choices=list(MODELS), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        print(MARK + json.dumps(asdict(measured(args.child, args.layers))))
        return 0
    chosen = []
    for name in MODELS:
        samples = sorted((_fresh(name, args.layers) for _ in range(args.repeats)), key=lambda s: s.share)
        chosen.append(samples[len(samples) // 2])
    rows = [
        [s.model, str(s.layers), f"{s.compile_seconds:.2f}", f"{s.engine_seconds:.3f}", f"{s.share:.1%}",
         str(sum(s.rewrites.values()))]
        for s in chosen
    ]  # fmt: skip
    print_table("All rules on a GPT", ["model", "layers", "compile s", "engine s", "share", "rewrites"], rows)
    write_results(args.json, {"limit": LARGEST_SHARE, "samples": [asdict(s) | {"share": s.share} for s in chosen]})
    return int(any(s.share > LARGEST_SHARE for s in chosen))


if __name__ == "__main__":
    raise SystemExit(main())
