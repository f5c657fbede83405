"""Our own way from a functional graph to kernels: lowered, fused, planned and built for the device it is on."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import torch
from torch.fx import GraphModule

from lamina.aot.joint import prepare
from lamina.backends.api import Backend
from lamina.backends.attention_tiles import tile_attention
from lamina.backends.bodies import compile_bodies
from lamina.backends.cpu import CpuBackend
from lamina.backends.cuda import CudaBackend
from lamina.backends.first_call import checked_first_call
from lamina.backends.interp import run_interpreted
from lamina.backends.regions import Boxed, aten_calls, to_aten
from lamina.backends.segments import CannotCut, cut
from lamina.backends.torch_private import beside_tracing
from lamina.base.decision import Decision
from lamina.base.lowering import find_lowering
from lamina.base.recovery import recover
from lamina.base.rule import NestRule
from lamina.base.unwritten import set_unwritten
from lamina.decomp.table import decompositions
from lamina.errors import LaminaWarning, RuleFailed, StageFailed, WrongLowering
from lamina.ir.loops import LibraryCall, LoopProgram
from lamina.ir.loops_verify import verify_program
from lamina.lower.to_loops import CannotLower, lower
from lamina.options import Options
from lamina.record import Record
from lamina.rewrite.gelu_products import gelu_products
from lamina.rewrite.nests import rewrite_nests
from lamina.rewrite.own_passes import OwnPasses
from lamina.schedule.fuse import Fused, fuse

__all__ = ["KERNELS", "KERNEL_OPTIONS", "Executor", "begin", "compile_region", "executor", "is_ours"]

KERNEL_OPTIONS = ("mode", "simd", "cxx", "jobs", "progress")
"""Options that say how kernels are made, and mean nothing to a backend that makes none of ours."""

_MOST_CUTS = 4
"""Times that a segment is cut again, where what is left of it cannot be lowered either."""

Executor = Callable[[Fused, Record, GraphModule], Callable[[list[Any]], Any]]
"""Turns a fused program into a callable that takes one list of inputs and returns the list of outputs."""


def compile_region(
    gm: GraphModule, example_inputs: Sequence[Any], *, name: str, options: Options, record: Record, kernels: str
) -> Callable[..., Any]:
    """Lower, fuse and build one functional graph; run it as ATen calls, with one warning, when that fails."""
    del example_inputs
    return _compiled(gm, name, options, record, kernels)


def _compiled(
    gm: GraphModule,
    name: str,
    options: Options,
    record: Record,
    kernels: str,
    refused: Mapping[str, str] = MappingProxyType({}),
) -> Boxed:
    """A graph in one piece or in segments, the nodes ``refused`` being called between those."""
    try:
        pieces = cut(gm, name, refused)
    except CannotCut as refusal:
        return _as_aten(gm, name, str(refusal), record)
    except Exception as error:
        to_aten(error, "cutting the graph", name, options.strict, record)
        return aten_calls(gm)
    if pieces is None:
        return _whole(gm, name, options, record, kernels)
    record.add(name, "segments", 0.0, pieces, pieces.decisions)
    for piece in pieces.segments:
        setattr(pieces.outer, piece.name, _Call(_whole(piece.gm, piece.name, options, record, kernels)))

    def inner(body: GraphModule, inner: str) -> Boxed:
        return _compiled(body, inner, options, record, kernels)

    tiles = _tiled(pieces.outer, name, options, record, inner)
    bodies = (*tiles, *compile_bodies(pieces.outer, name, inner))
    if bodies:
        record.note(name, "bodies", *bodies)
    return aten_calls(pieces.outer)


def _tiled(
    outer: GraphModule, name: str, options: Options, record: Record, compile: Callable[[GraphModule, str], Boxed]
) -> tuple[Decision, ...]:
    """Attention with functions of scores in tiles. With ``numerics="eager"`` it is torch's: tiles round otherwise."""
    if options.numerics != "fast":
        return ()
    rules = decompositions(options.numerics)

    def tile(graph: GraphModule, inner: str) -> Boxed:
        prepare(graph)
        for change in OwnPasses(options, record, inner, dict(rules)).joint():
            graph = change(graph)
        return compile(graph, inner)

    try:
        with beside_tracing():
            return tile_attention(outer, name, rules, tile)
    except Exception as error:
        recover(
            error,
            doing="making tiles of attention",
            region=name,
            instead="it stays a call",
            strict=options.strict,
            note=record.noting(name, "bodies"),
            kind="body",
        )
        return ()


def _whole(gm: GraphModule, name: str, options: Options, record: Record, kernels: str) -> Boxed:
    """A graph all of whose numbers are inputs, in one piece."""
    try:
        if kernels in ("lamina", "cuda"):
            gm = _with_library_gelu(gm, name, options, record)
        record.add(name, "graph", 0.0, gm)
        program: LoopProgram = record.step(name, "lower", lower, gm, name, options.numerics)
        if decisions := _by_user(gm, program):
            record.note(name, "lower", *decisions)
        if any(isinstance(rule, NestRule) for rule in options.rules):
            program = record.step(name, "rewrite", rewrite_nests, program, options.rules).program
        if options.verify is True:
            record.step(name, "verify", verify_program, program)
        fused = record.step(name, "fuse", fuse, program, options.numerics)
        if options.verify is True:
            record.step(name, "verify", verify_program, fused.program)
        run = _with_numbers(gm, _with_floats(gm, executor(kernels, options)(fused, record, gm)))
        return checked_first_call(run, gm, name, options, record)
    except CannotLower as refusal:
        if refusal.nodes and name.count("_segment") < _MOST_CUTS:
            return _compiled(gm, name, options, record, kernels, refusal.nodes)
        return _as_aten(gm, name, str(refusal), record)
    except (RuleFailed, WrongLowering):
        raise
    except Exception as error:
        to_aten(error, "making kernels", name, options.strict, record)
    return aten_calls(gm)


def _as_aten(gm: GraphModule, name: str, why: str, record: Record) -> Boxed:
    """The graph as ATen calls, which is a stated limit and no failure: strict mode allows it."""
    warnings.warn(f"lamina runs {name} as ATen calls: {why}", LaminaWarning, stacklevel=3)
    decision = Decision("fallback", (name,), False, f"compiling failed: {why}; it runs as ATen calls")
    record.add(name, "aten", 0.0, why, (decision,))
    return aten_calls(gm)


class _Call(torch.nn.Module):
    """A compiled segment in the place of its graph."""

    def __init__(self, run: Boxed) -> None:
        super().__init__()
        self.run = run

    def forward(self, *inputs: Any) -> Any:
        try:
            return self.run(list(inputs))
        except Exception as error:
            set_unwritten(error, False)  # the segments before it may have written to inputs
            raise


def _with_floats(gm: GraphModule, run: Boxed) -> Boxed:
    """``run``, which takes floats that are inputs of ``gm`` as tensors of one element, taking them as they are."""
    inputs = gm.graph.find_nodes(op="placeholder")
    places = [i for i, node in enumerate(inputs) if isinstance(node.meta.get("val"), torch.SymFloat)]
    if not places:
        return run

    def call(args: list[Any]) -> Any:
        for place in places:
            args[place] = torch.tensor(args[place], dtype=torch.float64, device="cpu")
        return run(args)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _with_numbers(gm: GraphModule, run: Boxed) -> Boxed:
    """``run``, which gives None for results that are truth values or floats, giving those of ``gm``'s output."""
    results = gm.graph.output_node().args[0]
    kept = {i: r for i, r in enumerate(results) if isinstance(r, bool | float)} if isinstance(results, Sequence) else {}
    if not kept:
        return run

    def call(args: list[Any]) -> Any:
        return tuple(kept.get(i, value) for i, value in enumerate(run(args)))

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _with_library_gelu(gm: GraphModule, name: str, options: Options, record: Record) -> GraphModule:
    """The graph of a region of a GPU with GELU left to the library where that is faster; ``gm`` itself elsewhere."""
    values = [node.meta.get("val") for node in gm.graph.find_nodes(op="placeholder")]
    devices = {v.device for v in values if isinstance(v, torch.Tensor) and v.device.type == "cuda"}
    if len(devices) != 1 or options.numerics != "fast":
        return gm
    device, note = devices.pop().index or 0, record.noting(name, "epilogues")
    try:
        return gelu_products(gm, lambda *question: _cuda(options, device).gelu_choice(note)(*question))
    except Exception as error:
        instead = "kernels compute GELU"
        doing = "choosing between kernels and library epilogues"
        recover(
            error,
            doing=doing,
            region=name,
            instead=instead,
            strict=options.strict,
            note=note,
            kind="library epilogue",
        )
        return gm


def _by_user(gm: GraphModule, program: LoopProgram) -> tuple[Decision, ...]:
    """Of each call that has a lowering on loop nests by the user, whether that was used."""
    left = {(step.origin, step.op): step.reason for step in program.steps if isinstance(step, LibraryCall)}
    decisions = []
    for node in gm.graph.nodes:
        found = find_lowering(node.target, "scalar", "nest") if node.op == "call_function" else None
        if found is not None:
            why = left.get(((node.name,), str(node.target)))
            reason = f"lowered as {found.place} says" if why is None else why
            decisions.append(Decision("lowering", (str(node.target), node.name), why is None, reason))
    return tuple(decisions)


@lru_cache(maxsize=32)
def executor(name: str, options: Options) -> Executor:
    """How fused programs run: "interp", or kernels for the region's device ("lamina", "cpu", "cuda")."""
    return run_interpreted if name == "interp" else _by_device(options)


def _by_device(options: Options) -> Executor:
    """Kernels for the GPU that holds tensors of the region, for the CPU where none does.

    Numbers and small computations that a region of a GPU keeps on the CPU stay there. Tensors of two GPUs, or of
    another kind of device, are left to ATen (``StageFailed``).
    """

    def run(fused: Fused, record: Record, gm: GraphModule) -> Callable[[list[Any]], Any]:
        devices = {b.device for b in fused.program.buffers} - {"cpu"}
        if not devices:
            return _cpu(options)(fused, record, gm)
        device = torch.device(devices.pop())
        if devices or device.type != "cuda":
            raise StageFailed(f"a region on {', '.join(sorted({str(device), *devices}))}")
        return _cuda(options, device.index or 0)(fused, record, gm)

    return run


def begin(backend: Backend, example_inputs: Sequence[Any], options: Options) -> None:
    """Let what kernels for a GPU wait for (Triton's processes, the launcher) start before there is a graph for them."""
    devices = {x.device for x in example_inputs if isinstance(x, torch.Tensor) and x.device.type == "cuda"}
    if len(devices) == 1 and backend.name in ("lamina", "cuda") and is_ours(backend):
        with contextlib.suppress(Exception):  # raised again when a region asks for it, and is run without
            _cuda(options, devices.pop().index or 0)


@lru_cache(maxsize=32)
def _cpu(options: Options) -> CpuBackend:
    return CpuBackend(options)


@lru_cache(maxsize=32)
def _cuda(options: Options, device: int) -> CudaBackend:
    return CudaBackend(options, device)


def _backend(name: str, devices: tuple[str, ...] = ()) -> Backend:
    compile = functools.partial(compile_region, kernels=name)
    return Backend(name, compile, devices=devices, writes=True, takes=KERNEL_OPTIONS)


KERNELS = (_backend("lamina"), _backend("cpu", ("cpu",)), _backend("cuda", ("cuda",)), _backend("interp"))
"""Kernels for the device of the region, for one kind of device only, or the loop program evaluated as it is."""


def is_ours(backend: Backend) -> bool:
    """Whether ``backend`` is one of these, with passes in front or without: what it gives back is not checked again."""
    return any(backend.compile is kernels.compile for kernels in KERNELS)
