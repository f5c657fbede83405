"""The driver: the whole compiler as one straight line, from a Python callable to a compiled one."""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch.fx import GraphModule

from lamina.aot.errors import raising_assertions
from lamina.aot.joint import prepare
from lamina.aot.region import Region
from lamina.aot.run import compile_captured
from lamina.aot.torch_private import asks_for_another_capture, never_captured, without_function_modes
from lamina.backends.api import Backend
from lamina.backends.attention_tiles import cleared, tilings
from lamina.backends.bodies import bodies_in
from lamina.backends.device import Boxed
from lamina.backends.first_call import checked_first_call
from lamina.backends.frozen import note_unfrozen, run_frozen
from lamina.backends.kernels import begin, is_ours, with_library_gelu
from lamina.backends.pieces import as_aten, lowered_by_user, put_segment, with_numbers
from lamina.backends.proved import proved
from lamina.backends.regions import aten_calls, to_aten
from lamina.backends.registry import as_backend, is_torch_name
from lamina.backends.run import run_captured, run_region, willing
from lamina.backends.segments import CannotCut, cut
from lamina.backends.settings import check_arguments, options_for, torch_settings
from lamina.backends.torch_private import beside_tracing
from lamina.base.decision import Decision
from lamina.base.lowering import lowerings_key
from lamina.base.recovery import is_internal, recover
from lamina.base.rule import NestRule
from lamina.base.torch_private import fresh_symbols_dropped
from lamina.capture.dynamo import compile_callable, guarded
from lamina.capture.facts.torch_private import guard_unguarded
from lamina.capture.modes.torch_private import has_function_modes
from lamina.capture.torch_private import name_backend, passed_through, serve_without_tangents
from lamina.decomp.table import decompositions
from lamina.errors import BadArgument, LaminaError, LaminaWarning, RuleFailed, WrongLowering
from lamina.ir.loops import LoopProgram
from lamina.ir.loops_verify import verify_program
from lamina.lower.to_loops import CannotLower, lower
from lamina.options import Options
from lamina.record import Record
from lamina.rewrite.inlined import inlined
from lamina.rewrite.nests import rewrite_nests
from lamina.rewrite.own_passes import OwnPasses
from lamina.rewrite.rewriting import Rewriting
from lamina.rewrite.user_rules import check_rules
from lamina.schedule.fuse import Fused, fuse

__all__ = ["compile", "compile_graph", "compile_kernels", "lamina_backend"]

_MOST_CUTS = 4
"""Times that a segment is cut again, where what is left of it cannot be lowered either."""


def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Backend | Callable[..., Any] = "lamina",
    mode: str | None = None,
    options: Mapping[str, Any] | Options | None = None,
    disable: bool = False,
) -> Any:
    """Compile a function, method, module or module class; as ``torch.compile``, and usable as a decorator.

    ``backend`` is "lamina" (kernels for this machine), the name of another backend (those built in, registered,
    installed, or known to torch.compile), a ``Backend`` or a function ``(gm, example_inputs) -> callable``, which is
    given functional ATen graphs. ``mode`` is one of torch.compile's four modes, ``options`` an ``Options`` or a mapping
    of its fields. The result has a ``record``. Raises ``BadArgument`` or ``UnknownOption`` for wrong arguments.
    """
    if model is None:
        return _decorator(
            fullgraph=fullgraph, dynamic=dynamic, backend=backend, mode=mode, options=options, disable=disable
        )
    check_arguments(model, fullgraph, dynamic, disable)
    if isinstance(backend, str) and is_torch_name(backend):
        known = functools.partial(torch.compile, backend=backend, fullgraph=fullgraph, dynamic=dynamic)
        known = functools.partial(known, **torch_settings(backend, mode, options))
        return model if disable else known(model)
    chosen = as_backend(backend)
    settings = options_for(chosen, mode, options)
    check_rules(settings)
    if disable:
        return model
    record = Record(getattr(model, "__name__", type(model).__name__))
    compiled = compile_callable(
        model,
        backend_callable=_Compiler(settings, chosen, record),
        fullgraph=fullgraph,
        dynamic=dynamic if chosen.dynamic or dynamic is not None else False,
        record=record,
        strict=settings.strict,
    )
    # A module has it already, and shares its attributes with the original.
    if not isinstance(compiled, torch.nn.Module):
        compiled.record = record
    return compiled


def _decorator(**settings: Any) -> Callable[[Any], Any]:
    """``lamina.compile`` with all but its first argument."""

    def decorate(model: Any) -> Any:
        if model is None:
            raise BadArgument("lamina.compile was given None", remedy="pass a function, a method or a torch.nn.Module")
        return compile(model, **settings)

    return decorate


def lamina_backend(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """The backend behind ``torch.compile(model, backend="lamina")``.

    Within a level of forward-mode differentiation graphs run as they are.
    """
    if not serve_without_tangents():
        return gm.forward
    lamina = as_backend("lamina")
    try:
        settings = options_for(lamina, mode, options)
        check_rules(settings)
        guarded(gm, functools.partial(guard_unguarded, gm), settings.strict)
        return _Compiler(settings, lamina, Record())(gm, example_inputs)
    except LaminaError as error:
        raise passed_through(error) from error.__cause__


name_backend("lamina", "lamina.compile:lamina_backend")


_DUMPED: dict[Path, int] = {}
_GUARD = threading.Lock()


def _own_folder(folder: Path) -> Path:
    """``folder`` for the first function of the process that dumps there; its folders function2, .. for others."""
    with _GUARD:
        number = _DUMPED[folder] = _DUMPED.get(folder, 0) + 1
    return folder if number == 1 else folder / f"function{number}"


class _Compiler:
    """The backend of one ``compile`` call. Equal settings compare equal, so that instances share graphs."""

    def __init__(self, options: Options, backend: Backend, record: Record) -> None:
        self.options, self.backend, self.record = options, backend, record
        self._key: tuple[object, ...] = (options, backend, lowerings_key())
        self.graphs = 0

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        self.graphs += 1
        name = f"graph{self.graphs - 1}"
        compiled = compile_graph(gm, example_inputs, self.options, self.record, self.backend, name)
        compiled = _past_function_modes(compiled) if has_function_modes() else compiled
        if self.options.dump_dir:
            self.record.folder = self.record.folder or _own_folder(Path(self.options.dump_dir))
            try:
                self.record.dump(self.record.folder)
            except OSError as refusal:
                what = f"the option dump_dir is {self.options.dump_dir!r}, which cannot be written: {refusal.strerror}"
                raise BadArgument(what, remedy="name a folder that can be made and written") from refusal
        return compiled

    def __eq__(self, other: object) -> bool:
        if self.options.verify == "first" and self is not other:
            return False  # each checks the first calls of graphs of its own
        if not isinstance(other, _Compiler) or (self._key is not other._key and self._key != other._key):
            return False
        self._key = other._key  # Dynamo asks at each call of an instance whose graphs another one had compiled
        return True

    def __hash__(self) -> int:
        return hash(self._key)


def _past_function_modes(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """``compiled`` where modes do not see the functions of torch that it calls: the graph has what they do already."""

    def run(*inputs: Any) -> Any:
        with without_function_modes():
            return compiled(*inputs)

    never_captured(run)
    return run


def compile_graph(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    options: Options,
    record: Record,
    backend: Backend,
    name: str = "graph0",
) -> Callable[..., Any]:
    """Compile one captured graph: torch.compile's backend contract.

    Where something of ours fails, which no backend, rule or pass of the user's is to blame for, the graph runs as it
    was captured, and a warning and the record say why; with the option strict ``StageFailed`` is raised.
    """
    try:
        gm = _with_bodies(gm, example_inputs, record, name)
        compile = functools.partial(_compiled, gm, example_inputs, options, record, backend, name)
        return proved(gm, example_inputs, compile, backend, options, record, name)
    except Exception as error:
        if not is_internal(error) or asks_for_another_capture(error):
            raise
        recover(
            error,
            doing="compiling it",
            region=name,
            instead="it runs as it was captured",
            strict=options.strict,
            note=lambda decision: record.add(name, "aten", 0.0, decision.reason, (decision,)),
        )
    return raising_assertions(gm.forward, gm)


def _with_bodies(gm: GraphModule, example_inputs: Sequence[Any], record: Record, name: str) -> GraphModule:
    """``gm`` with the regions that its user marked to be compiled once in the place of their calls."""
    with fresh_symbols_dropped(example_inputs):
        found = inlined(gm)
    if found is None:
        return gm
    why = f"{found.calls} calls of marked regions inlined: what is alike is traced and built once in any case"
    decisions = [Decision("nested region", (name,), True, why)] if found.calls else []
    if found.kept:
        decisions.append(Decision("nested region", found.kept, False, "a size in it is known only at run time"))
    record.note(name, "inline", *decisions)
    return found.gm


def _compiled(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    options: Options,
    record: Record,
    backend: Backend,
    name: str,
) -> Callable[..., Any]:
    table = dict(decompositions(options.numerics))
    rewriting = Rewriting(options, record, name, table)
    with fresh_symbols_dropped(example_inputs):  # rules and passes compute with fake tensors
        gm = rewriting.captured(gm)
    backend = willing(backend, gm, example_inputs, record, name)
    if backend.graph == "torch":
        rewriting.check_expected()
        if options.freeze:
            note_unfrozen(record, name, f"backend {backend.name!r} takes graphs as they were captured")
        return run_captured(backend, gm, example_inputs, options, record, name)

    begin(backend, example_inputs, options)
    own = OwnPasses(options, record, name, table, is_ours(backend))
    return compile_captured(
        gm,
        example_inputs,
        compile_region=lambda region: _region(region.with_graph(rewriting.lowered), backend, options, record),
        decompositions=table,
        record=record,
        options=options,
        name=name,
        passes=(rewriting.joint, *own.joint()),
        partitioned=rewriting.partitioned,
        rereads=is_ours(backend),
    )


def _region(region: Region, backend: Backend, options: Options, record: Record) -> Callable[..., Any]:
    """One graph on its way through the backend. A backward comes after the stages of its forward were written."""
    compiled = run_frozen(
        region, options, record, lambda main: run_region(backend, main, options, record, compile_kernels)
    )
    if region.kind == "backward" and record.folder is not None:
        try:
            record.dump(record.folder)
        except OSError as refusal:
            said = f"lamina cannot write the stages of {region.name} to {record.folder}: {refusal.strerror}"
            warnings.warn(said, LaminaWarning, stacklevel=2)
    return compiled


def compile_kernels(
    gm: GraphModule,
    name: str,
    backend: Backend,
    options: Options,
    record: Record,
    refused: Mapping[str, str] = MappingProxyType({}),
) -> Boxed:
    """A functional graph to a callable: in one piece or in segments, the nodes ``refused`` being called between those.

    What cannot be cut, and what fails, runs as ATen calls.
    """
    try:
        pieces = cut(gm, name, refused)
    except CannotCut as refusal:
        return as_aten(gm, name, str(refusal), record)
    except Exception as error:
        to_aten(error, "cutting the graph", name, options.strict, record)
        return aten_calls(gm)
    if pieces is None:
        return _piece(gm, name, backend, options, record)
    record.add(name, "segments", 0.0, pieces, pieces.decisions)
    for segment in pieces.segments:
        put_segment(pieces, segment, _piece(segment.gm, segment.name, backend, options, record))
    bodies = _tiles(pieces.outer, name, backend, options, record)
    for body in bodies_in(pieces.outer, name):
        if not body.why:
            body.put(compile_kernels(body.graph, body.name, backend, options, record))
        bodies.append(body.decision())
    if bodies:
        record.note(name, "bodies", *bodies)
    return aten_calls(pieces.outer)


def _piece(gm: GraphModule, name: str, backend: Backend, options: Options, record: Record) -> Boxed:
    """A graph all of whose numbers are inputs, from lowering to a callable that loads its kernels when it is called.

    Where it cannot be lowered, it is cut there; where a stage fails, it runs as ATen calls.
    """
    assert backend.kernels is not None
    try:
        gm = with_library_gelu(gm, name, backend, options, record)
        record.add(name, "graph", 0.0, gm)
        program: LoopProgram = record.step(name, "lower", lower, gm, name, options.numerics)
        if decisions := lowered_by_user(gm, program):
            record.note(name, "lower", *decisions)
        if any(isinstance(rule, NestRule) for rule in options.rules):
            program = record.step(name, "rewrite", rewrite_nests, program, options.rules).program
        if options.verify is True:
            record.step(name, "verify", verify_program, program)
        fused: Fused = record.step(name, "fuse", fuse, program, options.numerics)
        if options.verify is True:
            record.step(name, "verify", verify_program, fused.program)
        device = backend.kernels(fused.program, options)
        plan = device.plan(fused, gm, record)
        sources = device.codegen(plan, gm, record)
        building = device.build(sources, gm, record)
        run = device.load(building, gm, record)
        return checked_first_call(with_numbers(gm, run), gm, name, options, record)
    except CannotLower as refusal:
        if refusal.nodes and name.count("_segment") < _MOST_CUTS:
            return compile_kernels(gm, name, backend, options, record, refusal.nodes)
        return as_aten(gm, name, str(refusal), record)
    except (RuleFailed, WrongLowering):
        raise
    except Exception as error:
        to_aten(error, "making kernels", name, options.strict, record)
    return aten_calls(gm)


def _tiles(outer: GraphModule, name: str, backend: Backend, options: Options, record: Record) -> list[Decision]:
    """Attention with functions of scores in tiles. With ``numerics="eager"`` it is torch's: tiles round otherwise."""
    found: list[Decision] = []
    if options.numerics != "fast":
        return found
    try:
        with beside_tracing():
            for tiling in tilings(outer, name, decompositions(options.numerics)):
                if tiling.tile is not None:
                    ranges = (
                        None
                        if tiling.ranges is None
                        else _tile(tiling.ranges, f"{tiling.name}_ranges", backend, options, record)
                    )
                    tiling.put(ranges, _tile(tiling.tile, f"{tiling.name}_tile", backend, options, record))
                found.append(tiling.decision())
            if any(decision.taken for decision in found):
                cleared(outer)
        return found
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
    return []


def _tile(gm: GraphModule, name: str, backend: Backend, options: Options, record: Record) -> Boxed:
    """A graph that computes a tile of attention, or which keys are read for it."""
    prepare(gm)
    for change in OwnPasses(options, record, name, dict(decompositions(options.numerics))).joint():
        gm = change(gm)
    return compile_kernels(gm, name, backend, options, record)
