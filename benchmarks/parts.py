"""What a part that no loop nest computes costs the program around it.

``python -m benchmarks.parts``: each program has such a part (control flow, a call with a graph of its own, complex
numbers, tensors of other kinds, unusual inputs) between parts that fuse. For each, forward and training: how many of
its operations run in our own kernels, in library calls of a region, and between segments; whether values and
gradients are eager's; how fast it is against eager and ``torch.compile``; and what was left, with the reason.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import lamina
from benchmarks.compilers import compile_function
from benchmarks.part_programs import PROGRAMS, Program
from benchmarks.patterns import private_copy
from benchmarks.report import RESULTS, geometric_mean, print_table, write_results
from lamina.bench import alternate
from lamina.errors import LaminaWarning
from lamina.ir.loops import LibraryCall, Nest
from lamina.record import Record
from lamina.schedule.fuse import Fused

__all__ = ["main"]

_SHOWN = ("fallback", "segments", "body", "nested region", "eager", "capture")


def counted(record: Record) -> dict[str, int]:
    """How many operations run in kernels of ours, in library calls, and between segments."""
    own: set[tuple[str, str]] = set()
    library = 0
    for stage in record.stages:
        if stage.name == "fuse" and isinstance(stage.value, Fused):
            for step in stage.value.program.steps:
                if isinstance(step, Nest):
                    own |= {(stage.region, name) for eqn in step.body for name in eqn.origin}
                library += isinstance(step, LibraryCall)
    between = sum(len(d.subject) - 1 for d in record.decisions("segments") if not d.taken)
    return {"kernels": len(own), "library": library, "between": between}


def _run(function: Callable[..., Any], inputs: Sequence[Any], training: bool) -> list[Any]:
    """The results and, in training, the gradients of all floating inputs."""
    if not training:
        with torch.no_grad():
            return _tensors(function(*inputs))
    leaves = [x.detach().requires_grad_(_floats(x)) if isinstance(x, Tensor) else x for x in inputs]
    results = _tensors(function(*leaves))
    wanted = [x for x in leaves if isinstance(x, Tensor) and x.requires_grad]
    total = sum((r.abs() if r.is_complex() else r).mean() for r in results if r.requires_grad)
    return [*results, *torch.autograd.grad(total, wanted, allow_unused=True)]  # type: ignore[arg-type]


def _floats(x: Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


def _tensors(value: Any) -> list[Tensor]:
    return [v for v in pytree.tree_leaves(value) if isinstance(v, Tensor)]


def difference(ours: Sequence[Any], eager: Sequence[Any]) -> str:
    """How results differ from eager's; "" if they do not."""
    for one, other in zip(ours, eager, strict=True):
        if (one is None) != (other is None) or type(one) is not type(other):
            return f"{type(one).__name__} for {type(other).__name__}"
        if one is None:
            continue
        if one.layout is torch.strided and one.stride() != other.stride():
            return f"strides {one.stride()} for {other.stride()}"
        try:
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
        except AssertionError as error:
            return str(error).splitlines()[0]
    return ""


def measure(program: Program, training: bool, dynamic: bool, rivals: Sequence[str], seconds: float) -> dict[str, Any]:
    """One row: equality and what ran where, and with ``seconds`` the speed against the ``rivals``."""
    torch.compiler.reset()
    torch.manual_seed(0)
    inputs = program.inputs()
    row: dict[str, Any] = {"name": program.name, "mode": "training" if training else "forward", "dynamic": dynamic}
    expected = _run(program.function, inputs, training)
    compiled: Any = lamina.compile(private_copy(program.function), dynamic=dynamic or None)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            row["difference"] = difference(_run(compiled, inputs, training), expected)
        except Exception as error:
            row["difference"] = f"raised {type(error).__name__}: {str(error).splitlines()[0]}"
    row["warnings"] = [str(w.message)[:300] for w in warned if issubclass(w.category, LaminaWarning)]
    left = [d for kind in _SHOWN for d in compiled.record.decisions(kind) if not d.taken]
    row["left"] = sorted({f"{d.kind} {d.subject[0] if d.subject else ''}: {d.reason}" for d in left})
    row |= counted(compiled.record)
    if seconds and not row["difference"].startswith("raised"):
        calls = {"lamina": lambda: _run(compiled, inputs, training)}
        for rival in rivals:
            other = compile_function(rival)(private_copy(program.function))
            try:
                _run(other, inputs, training)
            except Exception as error:
                row[rival] = f"{type(error).__name__}"
                continue
            calls[rival] = lambda other=other: _run(other, inputs, training)  # type: ignore[misc]
        timed = alternate(calls, seconds=seconds, warmup=2)
        row |= {rival: round(timed.ratio(rival, "lamina"), 3) for rival in calls if rival != "lamina"}
    return row


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write JSON; 1 if something differs from eager."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="programs whose name contains one of these")
    parser.add_argument("--rivals", nargs="*", default=["eager", "torch"])
    parser.add_argument("--seconds", type=float, default=0.2, help="time given to each rival of a row")
    parser.add_argument("--json", type=Path, default=RESULTS / "parts.json", help="where to write the results")
    asked = parser.parse_args(argv)
    chosen = [p for p in PROGRAMS if not asked.only or any(o in p.name for o in asked.only)]
    rows = []
    for program in chosen:
        for training in (False, True) if program.trains else (False,):
            for dynamic in (True,) if program.dynamic else (False, True):
                seconds = 0.0 if dynamic and not program.dynamic else asked.seconds
                rows.append(measure(program, training, dynamic, asked.rivals, seconds))
                print(rows[-1], flush=True)
    numbers = {r: [row[r] for row in rows if isinstance(row.get(r), float)] for r in asked.rivals}
    means = {r: geometric_mean(found) for r, found in numbers.items()}
    columns = ("kernels", "library", "between", *asked.rivals)
    table = [
        (f"{r['name']} {r['mode']}{' dynamic' if r['dynamic'] else ''}", *(str(r.get(c, "")) for c in columns))
        for r in rows
    ]
    print_table(f"times as fast as: {means}", ("program", *columns), table)
    write_results(asked.json, {"geometric_means": means, "rows": rows})
    return int(any(row["difference"] for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
