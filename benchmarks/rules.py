"""What each of Lamina's own rules is worth: the same program compiled with it and without it.

    python -m benchmarks.rules [--only NAME ...] [--repeats N] [--json PATH [--keep]]

Both run in turns in one process; times are in milliseconds of one call, or of one forward and backward: the median
and the best. On a CPU it is the time of the processor, summed over threads, so that other programs count less.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import lamina
from benchmarks.frozen_models import AutocastLayers, GatedLayer, GroupedAttention, ResidualStack
from benchmarks.patterns import private_copy
from lamina.rewrite.order import PASSES
from lamina.rewrite.rules import RULES

__all__ = ["PROGRAMS", "Program", "Row", "main"]


@dataclass(frozen=True, slots=True)
class Program:
    """Something written by hand, the first words of the names of the rules that it is for, and shapes of its inputs.

    ``module`` gives, for a type of device, a module to take in the place of ``function``. ``options`` are those of both
    compilations; with ``without`` the other one is made with these options instead of without the rules.
    """

    function: Callable[..., Tensor] | None
    rules: tuple[str, ...]
    inputs: Callable[[str], tuple[Tensor, ...]]
    modes: tuple[str, ...] = ("forward", "training")
    module: Callable[[str], torch.nn.Module] | None = None
    options: tuple[tuple[str, Any], ...] = ()
    without: tuple[tuple[str, Any], ...] | None = None

    def callable(self, device: str) -> Callable[..., Tensor]:
        """What is compiled, a new one each time."""
        if self.module is not None:
            return self.module(device)
        assert self.function is not None
        copied: Callable[..., Tensor] = private_copy(self.function)
        return copied


@dataclass(frozen=True, slots=True)
class Row:
    """Milliseconds with and without the rules, how many rewrites they made, and on a GPU the peak bytes of a call."""

    name: str
    mode: str
    with_rules: float
    without_rules: float
    best_with: float
    best_without: float
    rewrites: int
    bytes_with: int | None = None
    bytes_without: int | None = None


def _noise(device: str, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(len(shape) + shape[0]))
    return drawn.to(device=device, dtype=dtype)


def _matrix(rows: int, columns: int) -> Callable[[str], tuple[Tensor, ...]]:
    def inputs(device: str) -> tuple[Tensor, ...]:
        scale = 8 if device == "cuda" else 1
        return (_noise(device, scale * rows, columns),)

    return inputs


def _with_weights(count: int) -> Callable[[str], tuple[Tensor, ...]]:
    def inputs(device: str) -> tuple[Tensor, ...]:
        return (*_matrix(2048, 768)(device), *(_noise(device, 768) for _ in range(count)))

    return inputs


def _scores(device: str) -> tuple[Tensor, ...]:
    rows, classes = (4096, 32000) if device == "cuda" else (512, 5000)
    targets = torch.randint(classes, (rows,), generator=torch.Generator().manual_seed(0))
    return _noise(device, rows, classes), targets.to(device)


def _heads(length: int) -> Callable[[str], tuple[Tensor, ...]]:
    def inputs(device: str) -> tuple[Tensor, ...]:
        shape, dtype = ((4, 16), torch.bfloat16) if device == "cuda" else ((1, 8), torch.float32)
        return tuple(_noise(device, *shape, length, 64, dtype=dtype) for _ in range(3))

    return inputs


def _one_query(device: str) -> tuple[Tensor, ...]:
    q, k, v = _heads(4096)(device)
    return q[:, :, :1].contiguous(), k, v


def _square(device: str) -> tuple[Tensor, ...]:
    (x,) = _matrix(1024, 1024)(device)
    return x, _noise(device, 1024, 1024) / 32


def _pairs(device: str) -> tuple[Tensor, ...]:
    return _noise(device, 4, 512, 8, 64), torch.polar(torch.ones(512, 32), _noise("cpu", 512, 32)).to(device)


def silu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


def gelu_erf(x: Tensor) -> Tensor:
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def gelu_tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def softplus(x: Tensor) -> Tensor:
    return torch.log(1 + torch.exp(x))


def softmax(x: Tensor) -> Tensor:
    powers = torch.exp(x - x.max(dim=-1, keepdim=True).values)
    return powers / powers.sum(dim=-1, keepdim=True)


def log_softmax(x: Tensor) -> Tensor:
    return torch.log(torch.softmax(x, dim=-1))


def logsumexp(x: Tensor) -> Tensor:
    top = x.amax(-1, keepdim=True)
    return top.squeeze(-1) + torch.log(torch.exp(x - top).sum(-1))


def layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    mean, var = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
    return (x - mean) / torch.sqrt(var + 1e-5) * w + b


def rms_norm(x: Tensor, w: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w


def cross_entropy(x: Tensor, t: Tensor) -> Tensor:
    return -torch.log_softmax(x, -1).gather(1, t.unsqueeze(1)).squeeze(1).mean()


def rotary(x: Tensor, turns: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns[None, :, None, :]).flatten(3)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1) / 8).softmax(-1) @ v


def attention_causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    later = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).triu(1)
    return (q @ k.transpose(-2, -1) / 8).masked_fill(later, float("-inf")).softmax(-1) @ v


def attention_padded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    hidden = (v[:, 0, :, 0].detach() > 2)[:, None, None, :]
    return (q @ k.transpose(-2, -1) / 8).masked_fill(hidden, float("-inf")).softmax(-1) @ v


def attention_of_one_query(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def attention_with_an_empty_mask(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = torch.zeros(1, 1, 1, q.shape[-2], dtype=q.dtype, device=q.device)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask.expand(-1, -1, q.shape[-2], -1))


def attention_with_a_causal_mask(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    seen = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).tril()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def attention_of_repeated_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    shared = (x[:, ::4].repeat_interleave(4, 1) for x in (k, v))
    return F.scaled_dot_product_attention(q, *shared)


def factors(x: Tensor) -> Tensor:
    return torch.sin(x * 2 * 3)


def casts(x: Tensor) -> Tensor:
    return torch.sin(x.bfloat16().float().double().float())


def permutations(x: Tensor) -> Tensor:
    return torch.sin(x.t().unsqueeze(0).transpose(0, 1).permute(2, 0, 1)).squeeze(-1)


def views(x: Tensor) -> Tensor:
    return torch.sin(x.view(-1, 8).unsqueeze(0).view(x.shape[0], -1))


def no_ops(x: Tensor) -> Tensor:
    return torch.sin(((x * 1) / 1 - 0) ** 1)


def equal_values(x: Tensor, w: Tensor) -> Tensor:
    return torch.sin(x @ w) + torch.cos(x @ w)


def _in_eval(
    make: Callable[[bool], torch.nn.Module], dtype: torch.dtype = torch.float32
) -> Callable[[str], torch.nn.Module]:
    """A module for inference; what makes it is told whether for a GPU."""

    def module(device: str) -> torch.nn.Module:
        torch.manual_seed(0)
        made = make(device == "cuda").eval().to(device=device, dtype=dtype)
        if isinstance(made, ResidualStack):
            made = made.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return made

    return module


def _tokens(rows: int, width: int, dtype: torch.dtype) -> Callable[[str], tuple[Tensor, ...]]:
    def inputs(device: str) -> tuple[Tensor, ...]:
        scale = 4 if device == "cuda" else 1
        return (_noise(device, 1, rows, scale * width, dtype=dtype),)

    return inputs


def _images(dtype: torch.dtype) -> Callable[[str], tuple[Tensor, ...]]:
    def inputs(device: str) -> tuple[Tensor, ...]:
        images = _noise(device, 32 if device == "cuda" else 2, 64, 56, 56, dtype=dtype)
        return (images.to(memory_format=torch.channels_last),)

    return inputs


_FREEZE = (("freeze", True),)


def _frozen() -> dict[str, Program]:
    """Inference with frozen parameters, with and without the rules that need it, and without freezing."""
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        kind = str(dtype).removeprefix("torch.")
        for rows in (16, 128):
            attention = _in_eval(lambda big: GroupedAttention(3072 if big else 768, 24 if big else 12), dtype)
            gated = _in_eval(lambda big: GatedLayer(3072 if big else 768, 8192 if big else 2048), dtype)
            at = f"{kind}, {rows}"
            inputs = _tokens(rows, 768, dtype)
            for name, module in (("q, k, v", attention), ("gate, up", gated)):
                found[f"{name}, {at}"] = Program(
                    None, ("merge_projections",), inputs, ("forward",), module, options=_FREEZE
                )
        stack = _in_eval(lambda big: ResidualStack(64, 4), dtype)
        found[f"batch norms, {kind}"] = Program(
            None, ("fold_into_products",), _images(dtype), ("forward",), stack, options=_FREEZE
        )
    layers = _in_eval(lambda big: AutocastLayers(3072 if big else 768, 4))
    for rows in (1, 128):
        inputs = _tokens(rows, 768, torch.float32)
        found[f"autocast, {rows}"] = Program(
            None, ("freeze",), inputs, ("forward",), layers, options=_FREEZE, without=()
        )
    return found


_ATTENTION = ("use_library_attention",)
_CALLS = ("simplify_library_attention",)
PROGRAMS: dict[str, Program] = {
    "SiLU": Program(silu, ("silu",), _matrix(1024, 2048)),
    "GELU of erf": Program(gelu_erf, ("gelu",), _matrix(1024, 2048)),
    "GELU of tanh": Program(gelu_tanh, ("gelu",), _matrix(1024, 2048)),
    "softplus": Program(softplus, ("softplus",), _matrix(1024, 2048)),
    "softmax": Program(softmax, ("softmax",), _matrix(2048, 1000)),
    "log-softmax": Program(log_softmax, ("log-softmax",), _matrix(2048, 1000)),
    "logsumexp": Program(logsumexp, ("logsumexp",), _matrix(2048, 1000)),
    "layer norm": Program(layer_norm, ("layer norm",), _with_weights(2)),
    "RMS norm": Program(rms_norm, ("rms norm",), _with_weights(1)),
    "cross entropy": Program(cross_entropy, ("cross entropy",), _scores),
    "rotary": Program(rotary, ("turn_in_real_numbers",), _pairs),
    "attention, 512": Program(attention, _ATTENTION, _heads(512)),
    "attention, 1024": Program(attention, _ATTENTION, _heads(1024)),
    "attention, 2048": Program(attention, _ATTENTION, _heads(2048)),
    "causal, 512": Program(attention_causal, _ATTENTION, _heads(512)),
    "causal, 1024": Program(attention_causal, _ATTENTION, _heads(1024)),
    "padded, 1024": Program(attention_padded, _ATTENTION, _heads(1024)),
    "one query, 4096": Program(attention_of_one_query, ("open_attention_of_one_query",), _one_query, ("forward",)),
    "empty mask, 1024": Program(attention_with_an_empty_mask, _CALLS, _heads(1024)),
    "causal mask, 1024": Program(attention_with_a_causal_mask, _CALLS, _heads(1024)),
    "repeated heads, 1024": Program(attention_of_repeated_heads, _CALLS, _heads(1024)),
    "factors": Program(factors, ("fold_factors",), _matrix(1024, 2048)),
    "casts": Program(casts, ("join_casts",), _matrix(1024, 2048)),
    "permutations": Program(permutations, ("join_permutations",), _matrix(1024, 2048)),
    "views": Program(views, ("join_views",), _matrix(1024, 2048)),
    "no-ops": Program(no_ops, ("remove_no_ops",), _matrix(1024, 2048)),
    "equal values": Program(equal_values, ("merge_common",), _square),
    **_frozen(),
}


def _names(prefixes: Sequence[str]) -> tuple[str, ...]:
    every = [r.name for r in RULES] + [one.name for one in PASSES if one.optional and "fast" in one.needs]
    return tuple(name for name in every if name.startswith(tuple(prefixes)))


def _call(program: Program, args: tuple[Tensor, ...], mode: str, with_rules: bool) -> tuple[Any, Any]:
    """A function without arguments that runs the program once, and the record of its compilation."""
    options: dict[str, Any] = dict(program.options)
    if not with_rules:
        left_out = {"without_rules": _names(program.rules)}
        options = {**options, **left_out} if program.without is None else dict(program.without)
    function = program.callable(args[0].device.type)
    compiled = lamina.compile(function, options=options)
    if mode == "forward":

        def forward() -> None:
            with torch.no_grad():
                compiled(*args)

        return forward, compiled.record
    given = [a.clone().requires_grad_() if a.is_floating_point() else a for a in args]
    leaves = [a for a in given if a.requires_grad]
    weights = torch.randn_like(function(*args))

    def training() -> None:
        torch.autograd.grad(compiled(*given), leaves, weights)

    return training, compiled.record


def _milliseconds(run: Callable[[], None], device: str) -> float:
    if device == "cpu":  # the processor's time: what others do on the machine is not in it
        start = time.process_time()
        run()
        return (time.process_time() - start) * 1e3
    torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3


def _peak(run: Callable[[], None], device: str) -> int | None:
    if device != "cuda":
        return None
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def measured(name: str, mode: str, device: str, repeats: int) -> Row:
    """One row: both ways compiled, warmed up and timed in turns."""
    program = PROGRAMS[name]
    args = program.inputs(device)
    torch.compiler.reset()
    (mine, record), (plain, _) = (_call(program, args, mode, rules) for rules in (True, False))
    for run in (mine, plain) * 3:
        run()
    peaks = _peak(mine, device), _peak(plain, device)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for run, seconds in zip((mine, plain), times, strict=True):
            seconds.append(_milliseconds(run, device))
    found = [d for stage in record.stages for d in stage.decisions if d.taken and d.kind in ("rewrite", "freeze")]
    count = sum(str(d.kind if d.kind == "freeze" else d.subject[0]).startswith(program.rules) for d in found)
    medians, best = map(statistics.median, times), map(min, times)
    return Row(name, mode, *medians, *best, count, *peaks)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print a table and write it as JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=list(PROGRAMS), default=list(PROGRAMS))
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", action="store_true", help="keep the rows that the file has of other programs")
    chosen = parser.parse_args(argv)
    rows = []
    kept = json.loads(chosen.json.read_text())["rows"] if chosen.keep else []
    kept = [Row(**row) for row in kept if row["name"] not in chosen.only]
    for name in chosen.only:
        for mode in PROGRAMS[name].modes:
            row = measured(name, mode, chosen.device, chosen.repeats)
            rows.append(row)
            gain = f"{row.without_rules / row.with_rules:5.2f}x {row.best_without / row.best_with:5.2f}x"
            gain = gain if row.rewrites else "not applied"
            print(f"{name:16} {mode:9} {row.with_rules:9.3f} ms {row.without_rules:9.3f} ms {gain}", flush=True)
            if chosen.json:
                _write(chosen.json, kept + rows, chosen.device)


def _write(path: Path, rows: Sequence[Row], device: str) -> None:
    machine = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    header = {"torch": torch.__version__, "python": platform.python_version(), "machine": machine}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"header": header, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
