"""Speed of functions, conversions, running sums, reads at places and values needed again, by turns in one process.

``python -m benchmarks.elementwise --only float32`` times a function of 2**18 elements, multiplied by a number so that
there is something to fuse, against eager and torch.compile. The median ratios are written as JSON.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.compilers import compile_function
from benchmarks.report import RESULTS, geometric_mean, print_table, write_results
from lamina.bench import alternate

__all__ = ["Row", "cases", "main"]

COUNT = 2**18
TIE = 1.03


@dataclass(frozen=True, slots=True)
class Row:
    """Microseconds of each rival for one call, and how many times as long as ours the others took."""

    name: str
    microseconds: dict[str, float]
    speedups: dict[str, float]


@dataclass(frozen=True, slots=True)
class Case:
    """A function with its arguments; with ``training``, its gradients too."""

    name: str
    function: Callable[..., Tensor]
    args: tuple[Any, ...]
    training: bool = False


UNARY = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh"),
    *("cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "erfinv", "lgamma", "digamma", "sigmoid", "sqrt"),
    *("rsqrt", "reciprocal", "round", "floor", "trunc", "abs", "sign", "sinc", "logit", "frac"),
)
BINARY = ("pow", "atan2", "hypot", "fmod", "remainder", "floor_divide", "nextafter", "copysign", "logaddexp", "fmax")
INSIDE = {"asin", "acos", "atanh", "erfinv", "logit"}
SMALL = ("float8_e4m3fn", "float8_e5m2", "int8", "uint8", "int16", "int32", "int64", "bool", "float16", "bfloat16")


def _values(name: str, dtype: torch.dtype) -> Tensor:
    if name in INSIDE:
        return (torch.rand(COUNT, dtype=torch.float64) * 0.98 + 0.01).to(dtype)
    shift = 1.1 if name == "acosh" else 0.0
    values = torch.randn(COUNT, dtype=torch.float64) * 3
    positive = name in ("acosh", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "lgamma", "digamma", "pow")
    return ((values.abs() if positive else values) + shift).to(dtype)


def _functions() -> Iterator[Case]:
    for dtype in (torch.float32, torch.float64):
        kind = str(dtype).removeprefix("torch.")
        for name in UNARY:
            found = getattr(torch, name)
            yield Case(f"{name}.{kind}", lambda x, f=found: f(x) * 0.5, (_values(name, dtype),))
        for name in BINARY:
            found = getattr(torch, name)
            y = torch.randn(COUNT, dtype=torch.float64).to(dtype)
            yield Case(f"{name}.{kind}", lambda x, y, f=found: f(x, y) * 0.5, (_values(name, dtype), y))
    for dtype in (torch.int32, torch.int64):
        kind = str(dtype).removeprefix("torch.")
        x, y = torch.randint(-1000, 1000, (COUNT,), dtype=dtype), torch.randint(1, 9, (COUNT,), dtype=dtype)
        yield Case(f"floor_divide.{kind}", lambda x, y: (x // y) * 2, (x, y))
        yield Case(f"remainder.{kind}", lambda x, y: (x % y) * 2, (x, y))
        yield Case(f"divide_by_7.{kind}", lambda x: (x // 7) * 2, (x,))
        yield Case(f"shift.{kind}", lambda x, y: (x >> y) * 2, (x, y))


def _drawn(dtype: torch.dtype) -> Tensor:
    if dtype.is_floating_point:
        return (torch.randn(COUNT) * 3).to(dtype)
    if dtype == torch.bool:
        return torch.rand(COUNT) < 0.5
    low = 0 if dtype == torch.uint8 else -100
    return torch.randint(low, 100, (COUNT,), dtype=dtype)


def _conversions() -> Iterator[Case]:
    for name in SMALL:
        dtype = getattr(torch, name)
        yield Case(f"{name}_to_float32", lambda x: x.to(torch.float32) * 0.1, (_drawn(dtype),))
        if name not in ("float32", "bool"):
            yield Case(f"float32_to_{name}", lambda x, d=dtype: (x * 1.5).to(d), (_drawn(torch.float32),))
    yield Case("int8_to_bfloat16", lambda x: x.to(torch.bfloat16) * 0.1, (_drawn(torch.int8),))
    yield Case("int64_to_float64", lambda x: x.to(torch.float64) * 0.1, (_drawn(torch.int64),))
    yield Case("float64_to_int64", lambda x: (x * 1.5).to(torch.int64), (_drawn(torch.float64),))
    yield Case("float64_to_float32", lambda x: (x * 1.5).to(torch.float32), (_drawn(torch.float64),))
    yield Case("compare_to_bool", lambda x: (x * 1.5) > 0.5, (_drawn(torch.float32),))
    yield Case("int8_clamped", lambda x: (x * 17).round().clamp(-128, 127).to(torch.int8), (_drawn(torch.float32),))
    nibbles = torch.randint(0, 255, (1024, 256), dtype=torch.uint8)
    yield Case("nibbles", _unpacked, (nibbles, torch.randn(1024, 1)))
    weight = torch.randint(-128, 127, (1024, 1024), dtype=torch.int8)
    for dtype in (torch.float32, torch.bfloat16):
        kind = str(dtype).removeprefix("torch.")
        for rows in (1, 16):
            args = (torch.randn(rows, 1024).to(dtype), weight, torch.rand(1024).to(dtype))
            yield Case(f"int8_linear_{rows}.{kind}", _int8_linear, args)
            packed = torch.randint(0, 255, (1024, 512), dtype=torch.uint8)
            groups = (torch.randn(1024, 32, 1).to(dtype), torch.rand(1024, 32, 1).to(dtype))
            yield Case(f"int4_linear_{rows}.{kind}", _int4_linear, (args[0], packed, *groups))


def _unpacked(q: Tensor, s: Tensor) -> Tensor:
    return ((torch.stack([q & 15, q >> 4], -1).flatten(-2)).float() - 8) * s


def _int8_linear(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    return F.linear(x, w.to(x.dtype)) * scale


def _int4_linear(x: Tensor, packed: Tensor, zero: Tensor, scale: Tensor) -> Tensor:
    """Weights of four bits in groups of 32, as weight-only quantisation packs them."""
    q = torch.stack([packed & 15, packed >> 4], -1).reshape(packed.shape[0], -1, 32)
    return F.linear(x, ((q.to(x.dtype) - zero) * scale).flatten(1))


def _scans() -> Iterator[Case]:
    shapes = {"rows": ((256, 1024), -1), "columns": ((4, 256, 256), 1), "short": ((16384, 16), -1)}
    for training in (False, True):
        mode = "training" if training else "forward"
        for where, (shape, dim) in shapes.items():
            x, y = torch.randn(shape), torch.randn(shape)
            made: dict[str, Callable[..., Tensor]] = {
                "cumsum": lambda x, y, d=dim: torch.cumsum(x * 2, d) * y,
                "gate": lambda x, y, d=dim: torch.exp(torch.cumsum(F.logsigmoid(x), d)) * y,
                "cumprod": lambda x, y, d=dim: torch.cumprod(x.sigmoid() + 0.5, d) * y,
                "logcumsumexp": lambda x, y, d=dim: torch.logcumsumexp(x, d) * y,
                "cummax": lambda x, y, d=dim: torch.cummax(x * 2, d).values * y,
            }
            for name, function in made.items():
                yield Case(f"{name}_{where}.{mode}", function, (x, y), training)


def _places() -> Iterator[Case]:
    for training in (False, True):
        mode = "training" if training else "forward"
        rows, table = torch.randint(0, 4096, (8192,)), torch.randn(4096, 64)
        places = torch.randint(0, 64, (4096, 16))
        images, i, j = torch.randn(8, 64, 64, 64), torch.randint(0, 64, (2048,)), torch.randint(0, 64, (2048,))
        small = torch.randn(8, 32, 48, 48)
        bias = (torch.randn(8, 256, 256), torch.randn(961, 8), torch.randint(0, 961, (256, 256)))
        made: dict[str, tuple[Callable[..., Tensor], tuple[Any, ...]]] = {
            "gather": (lambda x, k: torch.gather(x * 2, 1, k) * 3, (table, places)),
            "index_select": (lambda x, k: torch.index_select(x, 0, k) * 3, (table, rows)),
            "embedding": (lambda x, k: F.embedding(k, x) * 3, (table, rows)),
            "repeat_interleave": (lambda x: x.repeat_interleave(4, 1) * 3, (table,)),
            "pixels": (lambda x, i, j: x[:, :, i, j] * 3, (images[:2, :16], i, j)),
            "reflect": (lambda x: F.pad(x, (2, 2, 2, 2), mode="reflect") * 2, (small,)),
            "replicate": (lambda x: F.pad(x, (2, 2, 2, 2), mode="replicate") * 2, (small,)),
            "bias": (lambda s, t, k: torch.softmax(s + t[k].permute(2, 0, 1), -1), bias),
            "topk": (lambda x: torch.softmax(x, -1).topk(64)[0], (torch.randn(256, 2048),)),
        }
        for name, (function, args) in made.items():
            yield Case(f"{name}.{mode}", function, args, training)


def _again() -> Iterator[Case]:
    """Values that several phases or a few readers need, and products that read what is computed beside them."""
    for training in (False, True):
        mode = "training" if training else "forward"
        row, columns = torch.randn(1, 2 * COUNT), torch.randn(17, 56, 255)
        image, states, weights = torch.randn(6, 32, 88, 88), torch.randn(16, 128, 256), torch.randn(16)
        made: dict[str, tuple[Callable[..., Tensor], tuple[Any, ...]]] = {
            "long_row": (lambda x: F.layer_norm(torch.expm1(torch.erf(x)), x.shape[1:]) * 2, (row,)),
            "costly_columns": (lambda x: torch.atan2(torch.erf(x), x.abs() + 0.5).logsumexp(0), (columns,)),
            "every_second_pixel": (lambda x: F.interpolate(torch.hypot(F.softplus(x), x), scale_factor=0.5), (image,)),
            "whole_window": (lambda x: F.avg_pool2d(x.clamp(min=1e-6).pow(3.0), 88).pow(1 / 3), (image,)),
            "bins": (_bins, (torch.randn(4, 64, 2100), weights)),
            "scores": (lambda x: (x * torch.sigmoid(torch.tanh(x) @ x[0, 0]).unsqueeze(-1)).sum(1), (states,)),
            "column_and_row": (lambda x: x[:, :64, None] @ x[:, None, 64:128], (states.flatten(0, 1)[:256],)),
        }
        for name, (function, args) in made.items():
            yield Case(f"{name}.{mode}", function, args, training)


def _bins(x: Tensor, places: Tensor) -> Tensor:
    bins = x.unflatten(1, (4, 16)).softmax(2)
    return torch.einsum("nsba,b->nsa", bins, places)


def cases() -> list[Case]:
    """Every row, in the order of the table."""
    torch.manual_seed(0)
    return [*_functions(), *_conversions(), *_scans(), *_places(), *_again()]


def _step(case: Case, compiled: Callable[..., Tensor]) -> Callable[[], Any]:
    if not case.training:
        return lambda: compiled(*case.args)
    args = [a.clone().requires_grad_() if a.is_floating_point() else a for a in case.args]
    leaves = [a for a in args if a.requires_grad]
    cotangent = torch.ones_like(case.function(*args))
    return lambda: torch.autograd.grad((compiled(*args),), leaves, (cotangent,))


def measure(case: Case, subject: str, rivals: Sequence[str], seconds: float, repeat: int) -> Row:
    """Time one case with every rival by turns, ``repeat`` times, and keep the median of these."""
    torch.compiler.reset()
    calls = {name: _step(case, compile_function(name)(case.function)) for name in rivals}
    tries = []
    for _ in range(repeat):
        timed = alternate(calls, seconds=seconds, warmup=4)
        speedups = {name: timed.ratio(name, subject) for name in rivals if name != subject}
        tries.append(Row(case.name, {name: timed[name].median * 1e6 for name in rivals}, speedups))
    tries.sort(key=lambda row: min(row.speedups.values()))
    return tries[len(tries) // 2]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="rows whose name contains one of these")
    parser.add_argument("--rivals", nargs="*", default=["torch"], help="besides eager")
    parser.add_argument("--seconds", type=float, default=0.25, help="time given to each rival of a row")
    parser.add_argument("--repeat", type=int, default=3, help="time each row so often, keep the median row")
    parser.add_argument("--json", type=Path, default=RESULTS / "elementwise.json", help="where to write the results")
    args = parser.parse_args(argv)
    subject = "lamina"
    rivals = list(dict.fromkeys(["eager", *args.rivals, subject]))
    rows = []
    for case in cases():
        if args.only and not any(part in case.name for part in args.only):
            continue
        rows.append(measure(case, subject, rivals, args.seconds, args.repeat))
        row = rows[-1]
        times = " ".join(f"{name} {row.microseconds[name]:.1f}" for name in rivals)
        print(f"{row.name:32s} {times}  vs best {min(row.speedups.values()):.2f}", flush=True)
    columns = ["row", *(f"{n} µs" for n in rivals), "vs best"]
    table = [[r.name, *(f"{r.microseconds[n]:.1f}" for n in rivals), f"{min(r.speedups.values()):.2f}"] for r in rows]
    print_table("Elementwise functions (above 1: faster than the best of the others)", columns, table)
    slower = [r.name for r in rows if min(r.speedups.values()) < 1 / TIE]
    means = {f"geomean_vs_{n}": geometric_mean(r.speedups[n] for r in rows) for n in rivals if n != subject}
    summary = {"rows": len(rows), "slower_than_best": slower, **means}
    write_results(args.json, {"subject": subject, "summary": summary, "rows": [asdict(r) for r in rows]})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
