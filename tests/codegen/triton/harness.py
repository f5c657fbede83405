"""Runs generated Triton kernels in Triton's interpreter beside the executable specification."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lamina.base.target import Target, nvidia
from lamina.codegen.triton.emit import emit
from lamina.codegen.triton.source import TritonSource
from lamina.ir.loops import Buffer, Nest
from lamina.ir.loops_interp import run_nest
from lamina.ir.plan import GpuSchedule, Kernel
from lamina.schedule.flatten import Flat, flatten
from lamina.schedule.gpu import choose
from tests.codegen.harness import empty

TARGET = nvidia(approximate=False)


class Interpreter:
    """A process with Triton's interpreter."""

    def __init__(self) -> None:
        env = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
        self.folder = tempfile.TemporaryDirectory()
        command = [sys.executable, "-W", "ignore", "-m", "tests.codegen.triton.worker", self.folder.name]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)

    def run(
        self, source: TritonSource, tensors: Sequence[torch.Tensor], sizes: Sequence[int]
    ) -> tuple[list[torch.Tensor], int]:
        """Launch a kernel; its tensors afterwards and the number of a failed Check."""
        values = {f"s{k}": n for k, n in enumerate(sizes)}
        if source.uneven is not None and any(values[name] % 16 for name in source.lengths):
            source = source.uneven
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        eights = [t.dtype if t.is_floating_point() and t.element_size() == 1 else None for t in tensors]
        job: dict[str, Any] = {
            "text": source.text,
            "name": source.name,
            "tensors": [t.view(torch.uint8) if d else t for t, d in zip(tensors, eights, strict=True)],  # not pickled
            "eights": eights,
            "sizes": list(sizes),
            "checks": source.checks,
            "rounds": 1 + source.text.count("meet("),
            "grid": int(source.grid[0].evaluate(values)),
            "workspace": [(int(nbytes.evaluate(values)), zero) for nbytes, zero in source.workspace],
            "then": None,
        }
        if source.then is not None:
            then = source.then
            job["then"] = {"text": then.text, "name": then.name, "grid": int(then.grid[0].evaluate(values))}
        pickle.dump(job, self.process.stdin)
        self.process.stdin.flush()
        answer = pickle.load(self.process.stdout)
        if "error" in answer:
            raise RuntimeError(f"{answer['error']}\n{source.text}")
        done = [t.view(d) if d else t for t, d in zip(answer["tensors"], eights, strict=True)]
        return done, answer["failed"]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.folder.cleanup()


@dataclass
class Case:
    """Nests over buffers, with the kernel made of them and its source."""

    nests: tuple[Nest, ...]
    buffers: dict[str, Buffer]
    kernel: Kernel
    flat: Flat
    source: TritonSource


def case(
    name: str,
    nests: Sequence[Nest],
    buffers: Sequence[Buffer],
    target: Target = TARGET,
    schedule: GpuSchedule | None = None,
) -> Case:
    """Schedule and write the kernel of some nests."""
    table = {b.name: b for b in buffers}
    flat = flatten(nests, table)
    dtypes = {f"b{k}": d for k, d in enumerate(flat.dtypes)}
    schedules = tuple(schedule or choose(n, dtypes, target) for n in flat.nests)
    sizes = tuple(f"s{k}" for k in range(len(flat.sizes)))
    kernel = Kernel(name, flat.nests, schedules, flat.dtypes, sizes)
    return Case(tuple(nests), table, kernel, flat, emit(kernel, target))


def both(
    made: Case, interpreter: Interpreter, inputs: Mapping[str, torch.Tensor], sizes: Mapping[str, int]
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """What the kernel and what the specification leave in the written buffers."""
    written = {e.buffer for n in made.nests for e in n.body if type(e).__name__ == "Store"}
    sides = []
    for _ in range(2):
        tensors: dict[str, torch.Tensor] = {}
        for name, buffer in made.buffers.items():
            given = inputs.get(name)
            if name not in written:
                assert given is not None
                tensors[name] = given
                continue
            tensors[name] = empty(buffer, sizes)
            tensors[name].copy_(given) if given is not None else tensors[name].zero_()
        sides.append(tensors)
    ours, theirs = sides
    values = [int(s.evaluate(sizes)) for s in made.flat.sizes]
    done, failed = interpreter.run(made.source, [ours[b] for b in made.flat.buffers], values)
    assert failed == 0
    ours.update(zip(made.flat.buffers, done, strict=True))
    for nest in made.nests:
        run_nest(nest, theirs, sizes)
    return {n: ours[n] for n in written}, {n: theirs[n] for n in written}
