"""The driver: the whole compiler as one straight line, from a Python callable to a compiled one."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from lamina.aot.region import Region
from lamina.aot.run import compile_captured
from lamina.backends.regions import aten_calls
from lamina.backends.registry import Executor, executor
from lamina.capture.dynamo import compile_callable
from lamina.capture.torch_private import name_backend
from lamina.decomp.table import decompositions
from lamina.errors import BadArgument, StageFailed, UnknownOption
from lamina.ir.loops import LoopProgram
from lamina.ir.loops_verify import verify_program
from lamina.lower.to_loops import CannotLower, lower
from lamina.options import Options
from lamina.record import Record, Stage
from lamina.rewrite.layouts import channels_last
from lamina.rewrite.losses import open_log_softmax
from lamina.rewrite.passes import clean
from lamina.rewrite.products import widen_products
from lamina.runtime.toolchain import ISAS, host_isa
from lamina.schedule.fuse import fuse

__all__ = ["compile", "compile_graph", "lamina_backend"]


def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] = "lamina",
    mode: str | None = None,
    options: Mapping[str, Any] | Options | None = None,
    disable: bool = False,
) -> Any:
    """Compile a function, method, module or module class; as ``torch.compile``, and usable as a decorator.

    ``backend`` is "lamina" (kernels for this machine), "interp" (the loop program run by its reference
    interpreter: slow, for checking) or anything ``torch.compile`` takes. ``mode`` is one of torch.compile's four
    modes, ``options`` an ``Options`` or a mapping of its fields. The result has a ``record`` of what was done.
    Raises ``BadArgument`` or ``UnknownOption`` for wrong arguments.
    """
    if model is None:
        return functools.partial(
            compile, fullgraph=fullgraph, dynamic=dynamic, backend=backend, mode=mode, options=options, disable=disable
        )
    for name, value, allowed in (("fullgraph", fullgraph, (True, False)), ("dynamic", dynamic, (True, False, None))):
        if not any(value is one for one in allowed):
            raise BadArgument(f"{name} is {value!r}", remedy=f"use one of {', '.join(map(str, allowed))}")
    if not isinstance(backend, str) and not callable(backend):
        raise BadArgument(f"backend is {backend!r}", remedy='pass "lamina", another backend\'s name or a callable')
    if not callable(model):
        raise BadArgument(
            f"lamina.compile was given a {type(model).__name__}",
            remedy="pass a function, a method or a torch.nn.Module",
        )
    if disable:
        return model
    if backend not in ("lamina", "interp"):
        given = dict(options) if isinstance(options, Mapping) else None
        return torch.compile(model, fullgraph=fullgraph, dynamic=dynamic, backend=backend, mode=mode, options=given)
    chosen = _options(mode, options)
    record = Record(getattr(model, "__name__", type(model).__name__))
    compiled = compile_callable(
        model,
        backend_callable=_Compiler(chosen, str(backend), record),
        fullgraph=fullgraph,
        dynamic=dynamic,
        record=record,
    )
    # A module has it already, and shares its attributes with the original.
    if not isinstance(compiled, torch.nn.Module):
        compiled.record = record
    return compiled


def lamina_backend(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """The backend behind ``torch.compile(model, backend="lamina")``."""
    return _Compiler(_options(mode, options), "lamina", Record())(gm, example_inputs)


name_backend("lamina", "lamina.compile:lamina_backend")


def _options(mode: str | None, options: Mapping[str, Any] | Options | None) -> Options:
    chosen = Options.of(mode, options)
    if chosen.simd != "auto" and ISAS.index(chosen.simd) < ISAS.index(host_isa()):
        raise UnknownOption(
            f"option 'simd' is {chosen.simd!r}, which this machine does not have", remedy=f"use auto or {host_isa()}"
        )
    return chosen


class _Compiler:
    """The backend of one ``compile`` call. Equal settings compare equal, so that instances share graphs."""

    def __init__(self, options: Options, backend: str, record: Record) -> None:
        self.options, self.backend, self.record = options, backend, record
        self.graphs = 0

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        self.graphs += 1
        name = f"graph{self.graphs - 1}"
        return compile_graph(gm, example_inputs, self.options, self.record, name, self.backend)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Compiler) and (self.options, self.backend) == (other.options, other.backend)

    def __hash__(self) -> int:
        return hash((self.options, self.backend))


def compile_graph(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    options: Options,
    record: Record,
    name: str = "graph0",
    backend: str = "lamina",
) -> Callable[..., Any]:
    """Compile one captured graph: torch.compile's backend contract."""
    execute = executor(backend, options)

    def layouts(graph: GraphModule) -> GraphModule:
        return channels_last(graph, lambda choice: record.stages.append(Stage(name, "layout", None, 0.0, (choice,))))

    return compile_captured(
        gm,
        example_inputs,
        compile_region=lambda region: compile_region(region, options, record, execute),
        decompositions=dict(decompositions(options.numerics)),
        record=record,
        options=options,
        name=name,
        passes=(widen_products, open_log_softmax, layouts, clean) if options.numerics == "fast" else (clean,),
    )


def compile_region(region: Region, options: Options, record: Record, execute: Executor) -> Callable[..., Any]:
    """Lower, fuse and build one functional graph; run it as ATen calls, with one warning, when that fails."""
    name = region.name
    try:
        program: LoopProgram = record.step(name, "lower", lower, region.gm, name, options.numerics)
        if options.verify:
            record.step(name, "verify", verify_program, program)
        fused = record.step(name, "fuse", fuse, program, options.numerics)
        if options.verify:
            record.step(name, "verify", verify_program, fused.program)
        return execute(fused, record, region.gm)
    except CannotLower as refusal:
        why = str(refusal)
    except Exception as error:
        if options.strict:
            raise StageFailed(f"compiling {name} failed: {error}", remedy="unset the option strict") from error
        why = f"{type(error).__name__}: {error}"
    warnings.warn(f"lamina runs {name} as ATen calls: {why}", stacklevel=2)
    record.add(name, "aten", 0.0, why)
    return aten_calls(region.gm)
