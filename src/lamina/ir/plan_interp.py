"""Runs a Plan with torch: what host programs and generated kernels are tested against.

Buffers are flat memory, as kernels see them, and temporaries really share the bytes of one workspace. All memory
starts as 0xFF bytes (NaN, and an index out of any range), so that reading what nobody wrote shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lamina.base.dtypes import DTYPES, torch_dtype
from lamina.ir.index import Expr, Size, as_expr
from lamina.ir.library import OUT_VARIANTS, overload
from lamina.ir.loops import Buffer, BufferView, LibraryCall, SizeInput
from lamina.ir.loops_interp import run_nest
from lamina.ir.plan import KernelCall, Plan, PlanStep

__all__ = ["PlanRun", "run_plan"]


def run_plan(plan: Plan, args: Sequence[Any]) -> list[Any]:
    """The plan's outputs for these inputs; inputs that the plan overwrites are overwritten."""
    return PlanRun(plan, args).run()


class PlanRun:
    """One run of a plan: ``tensors`` holds its buffers by name, inputs from the beginning."""

    def __init__(self, plan: Plan, args: Sequence[Any]) -> None:
        self.plan = plan
        self.buffers = plan.buffer_map()
        self.places = {p.buffer: p for p in plan.places}
        self.kernels = {k.name: k for k in plan.kernels}
        self.sizes: dict[str, int] = {}
        self.tensors: dict[str, torch.Tensor] = {}
        for given, value in zip(plan.inputs, args, strict=True):
            if isinstance(given, SizeInput):
                self._bind(given.expr, int(value))
            elif given is not None:
                self.tensors[given] = value
                buffer = self.buffers[given]
                for expr, n in zip((*buffer.shape, *buffer.strides), (*value.shape, *value.stride()), strict=True):
                    self._bind(expr, n)
        arena = next((p.buffer for p in plan.places if p.where == "arena"), None)
        self.device = next((b.device for b in plan.buffers if not b.on_cpu), "cpu")
        # A plan for another machine may be given tensors of this one's memory: then all of it is there.
        real = {self.buffers[name].device: tensor.device.type for name, tensor in self.tensors.items()}
        where = self.buffers[arena].device if arena is not None else self.device
        where = real.get(where, where)
        workspace = torch.full((self.number(plan.arena_bytes),), 0xFF, dtype=torch.uint8, device=where)
        for place in plan.places:
            buffer = self.buffers[place.buffer]
            if place.where == "output":
                there = real.get(buffer.device, buffer.device)
                size = self.span(buffer) * DTYPES[buffer.dtype].size
                memory = torch.full((size,), 0xFF, dtype=torch.uint8, device=there)
                self._at(buffer, memory, 0)
            elif place.where == "arena":
                assert place.offset is not None
                self._at(buffer, workspace, self.number(place.offset))

    def run(self) -> list[Any]:
        for step in self.plan.steps:
            self.step(step)
        made = {out: self.value(out) for out in dict.fromkeys(self.plan.outputs)}
        return [made[out] for out in self.plan.outputs]  # what is returned twice is one object

    def step(self, step: PlanStep) -> None:
        """Run one step, after those before it."""
        if isinstance(step, KernelCall):
            self.launch(step)
        else:
            self.library(step)

    def number(self, expr: Expr) -> int:
        return int(expr.evaluate(self.sizes))

    def numbers(self, exprs: Sequence[Expr]) -> list[int]:
        return [self.number(e) for e in exprs]

    def span(self, buffer: Buffer) -> int:
        """Elements from the buffer's first to its last."""
        shape, strides = self.numbers(buffer.shape), self.numbers(buffer.strides)
        return 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))

    def _bind(self, expr: Expr, value: int) -> None:
        atoms = expr.atoms()
        atom = next(iter(atoms)) if len(atoms) == 1 else None
        if isinstance(atom, Size) and expr == as_expr(atom):
            self.sizes.setdefault(atom.name, value)

    def _at(self, buffer: Buffer, memory: torch.Tensor, start: int) -> None:
        size = self.span(buffer) * DTYPES[buffer.dtype].size
        if start + size > memory.numel():
            raise IndexError(f"{buffer.name} needs bytes {start} to {start + size} of {memory.numel()}")
        flat = memory[start : start + size].view(torch_dtype(buffer.dtype))
        self.tensors[buffer.name] = flat.as_strided(self.numbers(buffer.shape), self.numbers(buffer.strides))

    def flat(self, name: str) -> torch.Tensor:
        """The buffer's memory from its first element on, in one dimension."""
        return self.tensors[name].as_strided((self.span(self.buffers[name]),), (1,))

    def launch(self, step: KernelCall) -> None:
        kernel = self.kernels[step.kernel]
        flats = {f"b{i}": self.flat(name) for i, name in enumerate(step.buffers)}
        sizes = dict(zip(kernel.sizes, self.numbers(step.sizes), strict=True))
        for nest in kernel.nests:
            run_nest(nest, flats, sizes)

    def value(self, item: Any) -> Any:
        if isinstance(item, BufferView):
            base = self.tensors[item.buffer]
            start = base.storage_offset() + self.number(item.offset)
            return base.as_strided(self.numbers(item.shape), self.numbers(item.strides), start)
        if isinstance(item, Expr):
            return self.number(item)
        if isinstance(item, tuple | list):
            return [self.value(i) for i in item]
        return item

    def library(self, step: LibraryCall) -> None:
        result = overload(step.op)(*map(self.value, step.args), **{key: self.value(v) for key, v in step.kwargs})
        results = list(result) if isinstance(result, tuple | list) else [result]
        for out, made in zip(step.outs, results, strict=bool(step.outs)):
            if out is None:
                continue
            buffer = self.buffers[out]
            if self.places[out].where != "library":
                assert step.op in OUT_VARIANTS, f"{step.op} cannot write to {out}"
                self.tensors[out].copy_(made)
                continue
            strides = self.numbers(buffer.strides)
            if list(made.stride()) != strides:
                copy = torch.empty_strided(self.numbers(buffer.shape), strides, dtype=made.dtype, device=made.device)
                made = copy.copy_(made)
            self.tensors[out] = made
