"""Builds kernels from nests, runs them, and runs the interpreter beside them."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from lamina.base.dtypes import torch_dtype
from lamina.base.target import Target
from lamina.codegen.cpp.emit import emit
from lamina.codegen.cpp.prelude import prelude
from lamina.ir.index import Expr, as_expr
from lamina.ir.loops import Buffer, Nest, Store
from lamina.ir.loops_interp import run_nest
from lamina.ir.plan import Kernel, Schedule
from lamina.runtime.toolchain import compile_flags, find_compiler, link_flags
from lamina.schedule.cpu_space import choose
from lamina.schedule.flatten import Flat, flatten


def dense(name: str, dtype: str, shape: Sequence[Expr | int]) -> Buffer:
    """A contiguous buffer."""
    sizes = [as_expr(n) for n in shape]
    strides, step = [], as_expr(1)
    for n in reversed(sizes):
        strides.insert(0, step)
        step = step * n
    return Buffer(name, dtype, tuple(sizes), tuple(strides))


@dataclass
class Case:
    """Nests over buffers, with the kernel made of them."""

    nests: tuple[Nest, ...]
    buffers: dict[str, Buffer]
    kernel: Kernel
    flat: Flat


def case(
    name: str, nests: Sequence[Nest], buffers: Sequence[Buffer], target: Target, schedule: Schedule | None = None
) -> Case:
    """Schedule and name the kernel of some nests; threads share even the smallest."""
    table = {b.name: b for b in buffers}
    flat = flatten(nests, table)
    dtypes = {f"b{k}": d for k, d in enumerate(flat.dtypes)}
    schedules = tuple(replace(schedule or choose(n, dtypes, target), parallel=0) for n in flat.nests)
    sizes = tuple(f"s{k}" for k in range(len(flat.sizes)))
    return Case(tuple(nests), table, Kernel(name, flat.nests, schedules, flat.dtypes, sizes), flat)


def build(cases: Sequence[Case], target: Target, folder: Path, precise: bool = False) -> ctypes.CDLL:
    """All kernels as one library."""
    source = folder / "kernels.cpp"
    source.write_text(prelude(target.isa, precise) + "\n".join(emit(c.kernel, target) for c in cases))
    compiler = find_compiler()
    assert compiler is not None
    (folder / "libtorch_cpu.so").write_bytes(compiler.stub)
    output = folder / "kernels.so"
    rounded = ["-ffp-contract=off"] if precise else []
    flags = [*compile_flags(target.isa), *rounded, str(source), *link_flags(str(folder / "libtorch_cpu.so"))]
    done = subprocess.run([compiler.path, *flags, "-o", str(output)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[:6000])
    return ctypes.CDLL(str(output))


def call(case: Case, library: ctypes.CDLL, tensors: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> int:
    """Run a kernel in place on the tensors; its return code."""
    function = getattr(library, case.kernel.name)
    function.restype = ctypes.c_int64
    pointers = [ctypes.c_void_p(tensors[b].data_ptr()) for b in case.flat.buffers]
    values = [ctypes.c_int64(int(s.evaluate(sizes))) for s in case.flat.sizes]
    return int(function(*pointers, *values))


def interpret(case: Case, tensors: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> None:
    """Run the nests by the executable specification."""
    for nest in case.nests:
        run_nest(nest, tensors, sizes)


def empty(buffer: Buffer, sizes: Mapping[str, int]) -> torch.Tensor:
    """Uninitialised storage of a buffer's shape and strides."""
    shape = [int(e.evaluate(sizes)) for e in buffer.shape]
    strides = [int(e.evaluate(sizes)) for e in buffer.strides]
    return torch.empty_strided(shape, strides, dtype=torch_dtype(buffer.dtype))


def stored(case: Case) -> set[str]:
    """Buffers that the nests write."""
    return {e.buffer for n in case.nests for e in n.body if isinstance(e, Store)}


def both(
    case: Case, library: ctypes.CDLL, inputs: Mapping[str, torch.Tensor], sizes: Mapping[str, int]
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """What the kernel and what the interpreter leave in the written buffers."""
    written = stored(case)
    sides: list[dict[str, torch.Tensor]] = []
    for run in (lambda t: call(case, library, t, sizes), lambda t: interpret(case, t, sizes)):
        tensors: dict[str, torch.Tensor] = {}
        for name, buffer in case.buffers.items():
            given = inputs.get(name)
            if name not in written:
                assert given is not None
                tensors[name] = given
            else:
                tensors[name] = empty(buffer, sizes)
                tensors[name].copy_(given) if given is not None else tensors[name].zero_()
        assert run(tensors) in (0, None)
        sides.append({n: tensors[n] for n in written})
    return sides[0], sides[1]
