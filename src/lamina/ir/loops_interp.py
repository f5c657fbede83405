"""Runs a loop program with torch: the executable specification that every code generator is tested against.

Each equation is evaluated over the whole iteration space at once, a value being a tensor with one dimension for
each axis of its nest (size one where it does not vary). Slow and memory-hungry on purpose: nothing is clever.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch

from lamina.base.dtypes import torch_dtype
from lamina.base.philox import uniform
from lamina.base.torch_private import unseen_by_modes
from lamina.ir.index import Expr, Size
from lamina.ir.library import overload
from lamina.ir.loops import (
    ERRORS,
    Buffer,
    BufferView,
    Check,
    Compute,
    Constant,
    Equation,
    Index,
    LibraryCall,
    Load,
    LoopProgram,
    Nest,
    Random,
    Reduce,
    Scan,
    SizeInput,
    Step,
    Store,
)
from lamina.ir.ops import OPS, REDUCTIONS, SCANS

__all__ = ["ProgramRun", "run_library", "run_nest", "run_program"]

Values = dict[str, torch.Tensor]
_ERRORS: dict[str, type[Exception]] = {name: getattr(builtins, name) for name in ERRORS}
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
"""Dtypes that torch's ``index_put_`` lacks, as those of the same bits that it has; sums wrap alike."""
_broadcast_shapes: Callable[..., torch.Size] = cast(Any, torch.broadcast_shapes)


def run_program(program: LoopProgram, args: Sequence[Any]) -> list[Any]:
    """Run a program on real inputs; input buffers that it overwrites are overwritten."""
    return ProgramRun(program, args).run()


class ProgramRun:
    """One run of a program: ``tensors`` holds its buffers by name, ``sizes`` the sizes that its inputs bind."""

    def __init__(self, program: LoopProgram, args: Sequence[Any]) -> None:
        self.program, self.buffers = program, program.buffer_map()
        self.sizes: dict[str, int] = {}
        self.tensors: dict[str, torch.Tensor] = {}
        for given, value in zip(program.inputs, args, strict=True):
            if isinstance(given, SizeInput):
                _bind_size(given.expr, int(value), self.sizes)
            elif given is not None:
                self.tensors[given] = value
        for name, tensor in self.tensors.items():
            for expr, size in zip(self.buffers[name].shape, tensor.shape, strict=True):
                _bind_size(expr, int(size), self.sizes)
        for name, tensor in self.tensors.items():
            for expr, size, stride in zip(self.buffers[name].strides, tensor.shape, tensor.stride(), strict=True):
                if size > 1:  # the stride of a dimension of one element may be any number
                    _bind_size(expr, int(stride), self.sizes)
        for buffer in program.buffers:
            if buffer.name not in self.tensors:
                self.tensors[buffer.name] = _allocate(buffer, self.sizes)

    def run(self) -> list[Any]:
        """All steps; the results."""
        for step in self.program.steps:
            self.step(step)
        made = {out: _output(out, self.tensors, self.sizes) for out in dict.fromkeys(self.program.outputs)}
        return [made[out] for out in self.program.outputs]  # one object for one result, as autograd may need

    def step(self, step: Step) -> None:
        """Run one step, after those before it."""
        if isinstance(step, Nest):
            run_nest(step, self.tensors, self.sizes)
        else:
            run_library(step, self.tensors, self.buffers, self.sizes)


def run_nest(nest: Nest, tensors: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> None:
    """Run one nest on buffers given as tensors of their logical shape, writing its stores in place.

    No mode sees what it calls: a kernel, of which it is the specification, calls nothing.
    """
    with unseen_by_modes():
        _run_nest(nest, tensors, sizes)


def _run_nest(nest: Nest, tensors: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> None:
    extents = [int(axis.extent.evaluate(sizes)) for axis in nest.axes]
    if 0 in extents and not any(isinstance(e, Reduce) for e in nest.body):
        return
    env: dict[str, Any] = dict(sizes)
    device = _device_of(nest, tensors)
    for position, axis in enumerate(nest.axes):
        shape = [1] * len(extents)
        shape[position] = extents[position]
        env[axis.name] = torch.arange(extents[position], device=device).reshape(shape)
    _Runner(nest, extents, env, tensors, device).run()


def _device_of(nest: Nest, tensors: Mapping[str, torch.Tensor]) -> torch.device:
    """Where the nest runs: where it writes, else where it reads."""
    accessed = [e.buffer for kind in (Store, Load) for e in nest.body if isinstance(e, kind)]
    return next((tensors[name].device for name in accessed), torch.device("cpu"))


class _Runner:
    def __init__(
        self,
        nest: Nest,
        extents: list[int],
        env: dict[str, Any],
        tensors: Mapping[str, torch.Tensor],
        device: torch.device,
    ) -> None:
        self.extents, self.env, self.tensors, self.device = extents, env, tensors, device
        self.nest = nest
        self.dims = {axis.name: i for i, axis in enumerate(nest.axes)}

    def run(self) -> None:
        for eqn in self.nest.body:
            self.step(eqn)

    def index(self, expr: Expr) -> torch.Tensor:
        value = expr.evaluate(self.env)
        return torch.as_tensor(value, dtype=torch.int64, device=self.device)

    def step(self, eqn: Equation) -> None:
        env = self.env
        if isinstance(eqn, Load):
            env[eqn.out] = self.load(eqn)
        elif isinstance(eqn, Constant):
            env[eqn.out] = torch.tensor(eqn.value, dtype=torch_dtype(eqn.dtype), device=self.device)
        elif isinstance(eqn, Index):
            env[eqn.out] = self.index(eqn.expr).to(torch_dtype(eqn.dtype))
        elif isinstance(eqn, Compute):
            ins = [env[name] for name in eqn.ins]
            env[eqn.out] = OPS[eqn.op].reference(*ins).to(torch_dtype(eqn.dtype))
        elif isinstance(eqn, Random):
            seed = int(env[eqn.seed].reshape(-1)[0])
            stream = eqn.stream if isinstance(eqn.stream, int) else int(eqn.stream.evaluate(env))
            env[eqn.out] = uniform(self.index(eqn.index), seed, stream).to(torch_dtype(eqn.dtype))
        elif isinstance(eqn, Reduce):
            for name, result in zip(eqn.outs, self.reduce(eqn), strict=True):
                env[name] = result
        elif isinstance(eqn, Scan):
            env[eqn.out] = self.scan(eqn)
        elif isinstance(eqn, Store):
            self.store(eqn)
        elif isinstance(eqn, Check) and not bool(torch.as_tensor(env[eqn.cond]).all()):
            raise _ERRORS[eqn.error](eqn.message)

    def load(self, eqn: Load) -> torch.Tensor:
        source = self.tensors[eqn.buffer]
        index = [self.index(e) for e in eqn.index]
        if eqn.mask is None:
            return source[tuple(index)] if index else source
        mask = self.env[eqn.mask]
        if source.numel() == 0:
            return torch.full(mask.shape, eqn.fill, dtype=source.dtype, device=self.device)
        index = [torch.where(mask, e, torch.zeros_like(e)) for e in index]
        value = source[tuple(index)] if index else source
        return torch.where(mask, value, torch.tensor(eqn.fill, dtype=source.dtype, device=self.device))

    def spread(self, value: torch.Tensor, axes: Sequence[str]) -> torch.Tensor:
        """The value with its full extent along ``axes``."""
        shape = list(value.shape) if value.dim() else [1] * len(self.extents)
        for name in axes:
            shape[self.dims[name]] = self.extents[self.dims[name]]
        return value.expand(shape)

    def reduce(self, eqn: Reduce) -> tuple[torch.Tensor, ...]:
        dims = sorted(self.dims[a] for a in eqn.axes)
        value = self.spread(self.env[eqn.value], eqn.axes)
        keep = [1 if i in dims else n for i, n in enumerate(value.shape)]
        rest = [i for i in range(value.dim()) if i not in dims]
        rows = value.permute(*rest, *dims).flatten(len(rest))
        results = REDUCTIONS[eqn.op].reference(rows, torch_dtype(eqn.dtype))
        return tuple(r.reshape(keep) for r in results)

    def scan(self, eqn: Scan) -> torch.Tensor:
        dim = self.dims[eqn.axis]
        value = self.spread(self.env[eqn.value], (eqn.axis,))
        if eqn.reverse:
            return SCANS[eqn.op](value.flip(dim), dim).flip(dim)
        return SCANS[eqn.op](value.contiguous(), dim)

    def store(self, eqn: Store) -> None:
        target = self.tensors[eqn.buffer]
        value = torch.as_tensor(self.env[eqn.value], device=self.device).to(target.dtype)
        if value.untyped_storage().data_ptr() == target.untyped_storage().data_ptr():
            value = value.clone()  # a load that nothing was computed from
        index = [self.index(e) for e in eqn.index]
        if not index:
            if eqn.mode == "set":
                target.copy_(value.reshape(()))
            elif target.dtype is torch.bool:
                target.logical_or_(value.any())
            else:
                target.add_(value.sum())
            return
        shape = _broadcast_shapes(value.shape, *(e.shape for e in index))
        index = [e.expand(shape) for e in index]
        value = value.expand(shape)
        if eqn.mask is not None:
            mask = self.env[eqn.mask].expand(shape)
            index, value = [e[mask] for e in index], value[mask]
        if eqn.mode == "add" and target.dtype is torch.bool:
            total = target.int().index_put_(tuple(index), value.int(), accumulate=True)
            target.copy_(total != 0)
            return
        twin = _SIGNED.get(target.dtype)
        if twin is not None:
            target, value = target.view(twin), value.view(twin)
        target.index_put_(tuple(index), value, accumulate=eqn.mode == "add")


def _bind_size(expr: Expr, value: int, sizes: dict[str, int]) -> None:
    atoms = expr.atoms()
    if len(atoms) == 1 and expr == Expr((((next(iter(atoms)),), 1),), 0):
        atom = next(iter(atoms))
        if isinstance(atom, Size):
            sizes.setdefault(atom.name, value)


def _allocate(buffer: Buffer, sizes: Mapping[str, int]) -> torch.Tensor:
    shape = [int(e.evaluate(sizes)) for e in buffer.shape]
    strides = [int(e.evaluate(sizes)) for e in buffer.strides]
    return torch.empty_strided(shape, strides, dtype=torch_dtype(buffer.dtype), device=buffer.device)


def _concrete(arg: Any, tensors: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> Any:
    if isinstance(arg, BufferView):
        return _output(arg, tensors, sizes)
    if isinstance(arg, Expr):
        return int(arg.evaluate(sizes))
    if isinstance(arg, tuple):
        return [_concrete(a, tensors, sizes) for a in arg]
    return arg


def run_library(
    call: LibraryCall, tensors: dict[str, torch.Tensor], buffers: Mapping[str, Buffer], sizes: Mapping[str, int]
) -> None:
    """Run one library call; its results become the tensors of their buffers."""
    function = overload(call.op)
    args = [_concrete(a, tensors, sizes) for a in call.args]
    kwargs = {key: _concrete(a, tensors, sizes) for key, a in call.kwargs}
    result = function(*args, **kwargs)
    results = list(result) if isinstance(result, tuple | list) else [result]
    for out, value in zip(call.outs, results, strict=False):
        if out is not None:
            made = value if isinstance(value, torch.Tensor) else torch.tensor(value)
            planned = _allocate(buffers[out], sizes)
            if made.shape != planned.shape and not made.numel():
                tensors[out] = made  # of which ATen has no use here, whatever the fake says (_embedding_bag)
                continue
            if made.shape != planned.shape:
                raise ValueError(f"{call.op} gave shape {list(made.shape)} for {out} of shape {list(planned.shape)}")
            tensors[out] = made if made.stride() == planned.stride() else planned.copy_(made)


def _output(out: BufferView | Expr | None, tensors: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> Any:
    if out is None:
        return None
    if isinstance(out, Expr):
        return int(out.evaluate(sizes))
    base = tensors[out.buffer]
    shape = [int(e.evaluate(sizes)) for e in out.shape]
    if not base.numel() and 0 not in shape:
        return base  # of which ATen has no use, see above
    strides = [int(e.evaluate(sizes)) for e in out.strides]
    return base.as_strided(shape, strides, base.storage_offset() + int(out.offset.evaluate(sizes)))
