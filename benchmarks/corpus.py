"""What the compiler writes for many programs, as texts: to see whether a change of its source changes any of them.

``python -m benchmarks.corpus before`` compiles generated programs, operators of torch's database, the named
patterns and a model, and leaves in the folder ``before`` a file for each: the stages that the record holds
(graphs, loop programs, plans, kernels, host programs, decisions) for this machine's instruction set or the one given,
and plan, kernels and host program of the same loop programs for an H100. Nothing is built or timed, so that no GPU and
no C++ compiler are needed. ``python -m benchmarks.corpus after --against before`` does so again and prints, for each
program whose texts differ (in more than comments), the first lines that do.
"""

from __future__ import annotations

import argparse
import difflib
import re
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._pytree import tree_iter

import lamina
import lamina.backends.cpu as cpu_backend
from benchmarks.gpt import GPT, batch
from benchmarks.gpu_idle import H100
from benchmarks.patterns import PATTERNS, Data, Pattern
from benchmarks.sweeping.case import DTYPES, MODES, Variant
from benchmarks.sweeping.grammar import generated
from benchmarks.sweeping.neighbours import between
from lamina.base.files import text_of
from lamina.codegen.host_cuda import emit_cuda_host
from lamina.codegen.origins import triton_with_origins
from lamina.codegen.triton.emit import emit
from lamina.errors import StageFailed
from lamina.ir.loops import LoopProgram
from lamina.record import Record
from lamina.schedule.fuse import fuse
from lamina.schedule.plan import make_plan

__all__ = ["Program", "differences", "main", "programs", "texts"]

SCALE = 1 / 64
"""Times the elements of the sweep's generated programs: they are run by ATen once, for their results' gradients."""
LAYERS = 2
GENERATED = 70
OPERATORS = 4
ADDRESS = re.compile(r"0x[0-9a-f]{6,}")
SHOWN = 12
"""Lines of a difference that are printed."""


@dataclass(frozen=True, slots=True)
class Program:
    """A function with its arguments, made anew by each call of ``make``; ``training`` if gradients are asked for."""

    name: str
    training: bool
    make: Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]


def programs(count: int = GENERATED, operators: int = OPERATORS) -> list[Program]:
    """``count`` generated programs, every ``operators``th operator's largest sample, the patterns and a model."""
    found = [p for number in range(count) for p in _generated(number)]
    known = {op.name: op for op in op_db if op.dtypes}
    found += [p for name in sorted(known)[::operators] for p in _operator(known[name])]
    found += [_pattern(pattern, dtype, mode) for pattern in PATTERNS for dtype in DTYPES for mode in pattern.modes]
    found += [Program(f"gpt.{mode}", mode == "training", _gpt) for mode in MODES]
    return found


def _generated(number: int) -> Iterator[Program]:
    case, dtype = generated(number, SCALE), ("fp32", "bf16")[number % 2]
    for mode in MODES:

        def make(mode: str = mode) -> tuple[Callable[..., Any], tuple[Any, ...]]:
            problem = case.make(Variant(dtype, mode, "cpu", SCALE))
            return problem.function, problem.args

        yield Program(f"generated_{number}.{dtype}.{mode}", mode == "training", make)


def _operator(op: OpInfo) -> Iterator[Program]:
    dtypes = sorted(op.dtypes, key=lambda d: (d is not torch.float32, str(d)))
    for mode in MODES if dtypes[0] is torch.float32 and op.supports_autograd else MODES[:1]:

        def make(training: bool = mode == "training") -> tuple[Callable[..., Any], tuple[Any, ...]]:
            samples = list(op.sample_inputs("cpu", dtypes[0], requires_grad=training))
            sample = max(samples, key=lambda s: _elements(s.input))
            return partial(between, op.op), (sample.input, sample.args, sample.kwargs)

        yield Program(f"operator_{op.name}.{mode}", mode == "training", make)


def _elements(value: Any) -> int:
    return sum(leaf.numel() for leaf in tree_iter(value) if isinstance(leaf, Tensor))


def _pattern(pattern: Pattern, dtype: str, mode: str) -> Program:
    training = mode == "training"

    def make() -> tuple[Callable[..., Any], tuple[Any, ...]]:
        stored = DTYPES[dtype]
        problem = pattern.build(Data(stored, stored, training))
        return problem.function, problem.args

    return Program(f"pattern_{pattern.name}.{dtype}.{mode}", training, make)


def _gpt() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return GPT(LAYERS), batch()


def texts(program: Program, simd: str = "avx2") -> str:
    """Everything that is written on the way from the program to its kernels."""
    torch.manual_seed(0)
    torch.compiler.reset()
    function, args = program.make()
    options = {"simd": simd, "compare_eager": "off", "cache": False, "progress": False}
    compiled = lamina.compile(function, options=options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            out = compiled(*args)
            if program.training:
                _differentiate(out)
        except Exception as error:
            # What eager refuses is refused; what we refuse would be a line that differs.
            return f"# raised {type(error).__name__}: {_plain(str(error).splitlines()[0] if str(error) else '')}\n"
    return "".join(_sections(compiled.record))


def _differentiate(out: Any) -> None:
    leaves = [leaf for leaf in tree_iter(out) if isinstance(leaf, Tensor) and leaf.requires_grad]
    if leaves:
        torch.autograd.backward(leaves, [torch.ones_like(leaf) for leaf in leaves])


def _sections(record: Record) -> Iterator[str]:
    for stage in record.stages:
        title = f"{stage.region} {stage.name}"
        if stage.value is not None:
            yield f"==== {title}\n{_plain(text_of(stage.value))}\n"
        for d in stage.decisions:
            yield f"---- {title}: {d.kind} {' '.join(map(str, d.subject))} {d.taken}: {_plain(d.reason)}\n"
        if isinstance(stage.value, LoopProgram):
            yield f"==== {title} for an H100\n{_plain(_on_gpu(stage.value))}\n"


def _on_gpu(program: LoopProgram) -> str:
    """Plan, kernels and host program as they would be if all buffers were on a GPU."""
    on_gpu = replace(program, buffers=tuple(replace(b, device="cuda:0") for b in program.buffers))
    try:
        plan = make_plan(fuse(on_gpu), H100)
        sources = triton_with_origins({kernel.name: emit(kernel, H100) for kernel in plan.kernels}, plan)
        host = emit_cuda_host(plan, sources, 0)
    except Exception as error:
        return f"raised {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    kernels = "\n".join(f"{name}\n{source.text}" for name, source in sources.items())
    return f"{plan}\n{kernels}\n{host.text}"


def _plain(text: str) -> str:
    """A text without what differs from run to run."""
    return ADDRESS.sub("0x", text)


def _not_built(*args: Any, **kwargs: Any) -> Any:
    del args, kwargs
    raise StageFailed("kernels are not built here", remedy="run the program itself")


def _written(program: Program, folder: Path, simd: str) -> str:
    cpu_backend.build_together = _not_built  # type: ignore[attr-defined]
    (folder / f"{program.name}.txt").write_text(texts(program, simd), encoding="utf-8")
    return program.name


def differences(before: Path, after: Path) -> Iterator[tuple[str, list[str]]]:
    """Of each program whose texts differ, or that one folder lacks, the name and the first lines that differ."""
    for name in sorted({p.name for folder in (before, after) for p in folder.glob("*.txt")}):
        old, new = (_lines(folder / name) for folder in (before, after))
        if old != new:
            yield (
                name,
                [line for line in difflib.unified_diff(old, new, n=0, lineterm="") if line[:3] not in ("---", "+++")],
            )


def _lines(path: Path) -> list[str]:
    """The lines of a file but for those that are comments alone; what a program raised is none."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    comments = re.compile(r"\s*(// |# (?!raised ))")
    return [line for line in lines if not comments.match(line)]


def _work(part: int, parts: int, args: argparse.Namespace) -> int:
    torch.set_num_threads(1)
    chosen = [p for p in programs(args.programs, args.operators) if args.only in p.name][part::parts]
    for number, program in enumerate(chosen, 1):
        _written(program, args.folder, args.simd)
        if number % 50 == 0:
            print(f"part {part}: {number} of {len(chosen)}", flush=True)
    return len(chosen)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the texts; compare them, where asked to: 1 if any differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the texts are written")
    parser.add_argument("--against", type=Path, help="an earlier folder to compare with")
    parser.add_argument("--compare-only", action="store_true", help="write nothing")
    parser.add_argument("--programs", type=int, default=GENERATED, help="how many are generated")
    parser.add_argument("--operators", type=int, default=OPERATORS, metavar="N", help="every Nth operator")
    parser.add_argument("--only", default="", help="programs whose name contains this")
    parser.add_argument("--simd", default="avx2", choices=("avx512", "avx2", "plain"))
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args(argv)
    args.folder.mkdir(parents=True, exist_ok=True)
    if not args.compare_only:
        start, parts = time.perf_counter(), range(args.workers)
        with ProcessPoolExecutor(args.workers, mp_context=get_context("spawn")) as pool:
            counts = list(pool.map(partial(_work, parts=args.workers, args=args), parts))
        print(f"{sum(counts)} programs in {time.perf_counter() - start:.0f} s")
    if args.against is None:
        return 0
    found = list(differences(args.against, args.folder))
    for name, lines in found:
        print(f"{name}: {len(lines)} lines")
        print("\n".join(f"    {line[:160]}" for line in lines[:SHOWN]))
    print(f"{len(found)} programs differ")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
