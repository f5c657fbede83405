"""The driver: the whole compiler as one straight line, from a Python callable to a compiled one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch.fx import GraphModule

from lamina.aot.captured import Captured, Compiled, Differentiated, read_captured, surrounded
from lamina.aot.errors import raising_assertions
from lamina.aot.function_modes import outside_function_modes
from lamina.aot.graph_compiler import GraphCompiler, Stages
from lamina.aot.joint import prepare
from lamina.aot.joint_function import inputs_of, with_training, without_training
from lamina.aot.joint_tracing import JointGraph
from lamina.aot.notes import Notes
from lamina.aot.region import Region
from lamina.aot.run import best_by_eager, differentiated, joint_of, through_autograd
from lamina.aot.torch_private import asks_for_another_capture
from lamina.aot.trial_calls import other_kind_in_eager, refused_in_eager
from lamina.artefacts.front import compile, own_callable
from lamina.backends.api import Backend
from lamina.backends.device import Boxed
from lamina.backends.dumping import dump_backward, dump_graph
from lamina.backends.kernels import begin, is_ours, with_library_gelu
from lamina.backends.regions import aten_calls, to_aten
from lamina.backends.registry import as_backend, is_torch_name
from lamina.backends.run import run_captured, run_region, willing
from lamina.backends.settings import check_arguments, options_for, torch_settings
from lamina.backends.torch_private import beside_tracing
from lamina.base.collector import collector_held
from lamina.base.decision import Decision
from lamina.base.lowering import lowerings_key
from lamina.base.recovery import brief, is_internal, recover
from lamina.base.region_names import callable_name, graph_name
from lamina.base.rule import NestRule
from lamina.base.torch_private import fresh_symbols_dropped
from lamina.base.user_frames import with_users_frames
from lamina.capture.behind_torch import log_behind_torch
from lamina.capture.dynamo import compile_callable, compiled_graph, guarded, note_behind_torch
from lamina.capture.entry.torch_private import compiling_alone
from lamina.capture.frame_reasons import BY_EAGER
from lamina.capture.modes.torch_private import has_function_modes
from lamina.capture.own.callable import interprets
from lamina.capture.torch_private import name_backend, passed_through, serve_without_tangents
from lamina.decomp.table import decompositions
from lamina.eager_comparison.trial import trial_of
from lamina.errors import BadArgument, LaminaError, RuleFailed, WrongLowering
from lamina.first_call.check import checked_first_call
from lamina.flex_attention.tiles import cleared, staying_calls, tilings
from lamina.freezing.reasons import OTHER_BACKEND
from lamina.freezing.region import freeze, note_unfrozen
from lamina.ir.loops import LoopProgram
from lamina.ir.loops_verify import verify_program
from lamina.ir.plan import Plan
from lamina.lower.library_decisions import library_decisions
from lamina.lower.to_loops import CannotLower, lower
from lamina.options import Options
from lamina.record import Record
from lamina.report.recording import kept_record, report, reported
from lamina.rewrite.inlined import with_inlined
from lamina.rewrite.nests import rewrite_nests
from lamina.rewrite.rewriting import Rewriting
from lamina.rewrite.user_rules import check_rules
from lamina.schedule.fuse import Fused, fuse
from lamina.segments.control_flow import bodies_in, decided_bodies
from lamina.segments.cut import CannotCut, cut
from lamina.segments.pieces import as_aten, lowered_by_user, put_segment, with_numbers
from lamina.stats import stats_of

__all__ = [
    "captured_by_dynamo",
    "compile",
    "compile_captured",
    "compile_graph",
    "compile_now",
    "compile_recorded",
    "interpreters_compiler",
    "lamina_backend",
    "other_kind_in_eager",
]

_MOST_CUTS = 4
"""Times that a segment is cut again, where what is left of it cannot be lowered either."""


@with_users_frames
def compile_now(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Backend | Callable[..., Any] = "lamina",
    mode: str | None = None,
    options: Mapping[str, Any] | Options | None = None,
    disable: bool = False,
) -> Any:
    """``compile`` by the compiler, whether calls are stored or not."""
    if model is None:
        return _decorator(
            fullgraph=fullgraph, dynamic=dynamic, backend=backend, mode=mode, options=options, disable=disable
        )
    check_arguments(model, fullgraph, dynamic, disable)
    if isinstance(backend, str) and is_torch_name(backend):
        known = partial(torch.compile, backend=backend, fullgraph=fullgraph, dynamic=dynamic)
        known = partial(known, **torch_settings(backend, mode, options))
        return model if disable else known(model)
    chosen = as_backend(backend)
    settings = options_for(chosen, mode, options)
    check_rules(settings)
    if disable:
        return model
    record = kept_record(callable_name(model), settings)
    dynamic = dynamic if chosen.dynamic or dynamic is not None else False
    return compile_recorded(model, settings, chosen, record, fullgraph, dynamic)


def compile_recorded(
    model: Any, settings: Options, backend: Backend, record: Record, fullgraph: bool, dynamic: bool | None
) -> Any:
    """``model`` compiled with ``settings`` by ``backend``; all that is noted on the way goes into ``record``."""
    compiler = _Compiler(settings, backend, record)
    if settings.capture == "own" and interprets(model, record):
        compiler.recaptures = False
        stored = backend == as_backend("lamina")
        return own_callable(model, settings, record, compiler, fullgraph, dynamic, stored)
    return captured_by_dynamo(model, settings, backend, record, fullgraph, dynamic)


def captured_by_dynamo(
    model: Any, settings: Options, backend: Backend | None, record: Record, fullgraph: bool, dynamic: bool | None
) -> Any:
    """``model`` with its graphs captured by Dynamo, and compiled by a backend, the default one if none is given."""
    attributes = {"record": record, "stats": partial(stats_of, record), "report": partial(report, record)}
    return compile_callable(
        model,
        backend_callable=_Compiler(settings, backend or as_backend("lamina"), record),
        fullgraph=fullgraph,
        dynamic=dynamic,
        record=record,
        refused_in_eager=refused_in_eager,
        strict=settings.strict,
        entry=settings.entry,
        attributes=attributes,
    )


def interpreters_compiler(settings: Options, record: Record) -> Callable[..., Any]:
    """What compiles the graphs of calls that are interpreted, by the backend "lamina"."""
    compiler = _Compiler(settings, as_backend("lamina"), record)
    compiler.recaptures = False
    return compiler


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

    ``gm`` is a graph of torch calls, ``example_inputs`` are what it is first called with. Within a level of
    forward-mode differentiation graphs run as they are. Raises ``BadArgument`` for what is no graph.
    """
    if not isinstance(gm, GraphModule):
        raise BadArgument(
            f"lamina_backend was given a {type(gm).__name__} in place of a graph",
            remedy='pass it to torch.compile, as backend="lamina", or use lamina.compile',
        )
    if not serve_without_tangents():
        return gm.forward
    lamina = as_backend("lamina")
    try:
        settings = options_for(lamina, mode, options)
        check_rules(settings)
        log = log_behind_torch()
        log.record = reported(log.record, settings)
        guarded(gm, partial(note_behind_torch, gm, log), refused_in_eager, settings.strict, log.record)
        compiler = _Compiler(settings, lamina, log.record)
        compiler.graphs = log.graphs
        return compiled_graph(compiler, gm, example_inputs, log, settings.strict)
    except LaminaError as error:
        raise passed_through(error) from error.__cause__


lamina_backend.log_of = log_behind_torch  # type: ignore[attr-defined]
name_backend("lamina", "lamina.compile:lamina_backend")


class _Compiler:
    """The backend of one ``compile`` call. Equal settings compare equal, so that instances share graphs."""

    def __init__(self, options: Options, backend: Backend, record: Record) -> None:
        self.options, self.backend, self.record = options, backend, record
        shared = object() if record.compares_stages else None
        self._key: tuple[object, ...] = (options, backend, lowerings_key(), shared)
        self.graphs = 0
        self.recaptures = True  # whether who captures graphs takes some errors for a wish to capture others
        self.told: set[str] = set()

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        self.graphs += 1
        name = graph_name(self.record.name, self.graphs - 1)
        try:
            compiled = compile_graph(gm, example_inputs, self.options, self.record, self.backend, name, self.told)
        except Exception as error:
            if self.recaptures or not asks_for_another_capture(error):
                raise
            self.record.note(name, "aten", Decision("fallback", (name,), False, BY_EAGER(error=brief(error))))
            return raising_assertions(gm.forward, gm)
        try:
            compiled = outside_function_modes(compiled) if has_function_modes() else compiled
            compiled = self.record.graph_entry(name, compiled)
            dump_graph(self.record, self.options)
        except Exception as error:
            return _as_captured(error, gm, "entering it", name, self.options, self.record)
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


def compile_graph(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    options: Options,
    record: Record,
    backend: Backend,
    name: str = "graph0",
    told: set[str] | None = None,
) -> Callable[..., Any]:
    """Compile one captured graph: torch.compile's backend contract.

    Where something of ours fails, which no backend, rule or pass of the user's is to blame for, the graph runs as it
    was captured, and a warning and the record say why; with the option strict ``StageFailed`` is raised. ``told`` are
    reasons for leaving a graph to eager of which the user was warned already, to which those of this graph are added.
    """
    plans: list[Plan] = []
    try:
        gm = with_inlined(gm, example_inputs, record, name)
        trial = trial_of(gm, example_inputs, backend, options, record, name, plans)
        if trial is not None and trial.eager is not None:
            return trial.eager
        with compiling_alone():
            compiled = _compiled(gm, example_inputs, options, backend, Notes(record, name, told), plans)
        return compiled.run if trial is None else trial.entry(compiled.run, compiled.by_eager)
    except Exception as error:
        return _as_captured(error, gm, "compiling it", name, options, record)


def _as_captured(
    error: Exception, gm: GraphModule, doing: str, name: str, options: Options, record: Record
) -> Callable[..., Any]:
    """The graph as it was captured, where something of ours failed; raises what is about what the user gave."""
    if not is_internal(error) or asks_for_another_capture(error):
        raise error
    note, instead = record.noting(name, "aten"), "it runs as it was captured"
    recover(error, doing=doing, region=name, instead=instead, strict=options.strict, note=note)
    return raising_assertions(gm.forward, gm)


def _compiled(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    options: Options,
    backend: Backend,
    notes: Notes,
    plans: list[Plan],
) -> Compiled:
    """Captured rewrites, then what the backend asks for: the captured graph, or all that follows."""
    record, name = notes.record, notes.name
    table = dict(decompositions(options.numerics))
    rewriting = Rewriting(options, record, name, table)
    with fresh_symbols_dropped(example_inputs):  # rules and passes compute with fake tensors
        gm = rewriting.captured(gm)
    backend = willing(backend, gm, example_inputs, record, name)
    if backend.graph == "torch":
        rewriting.check_expected()
        if options.freeze:
            note_unfrozen(record, name, OTHER_BACKEND(backend=repr(backend.name)))
        return Compiled(run_captured(backend, gm, example_inputs, options, record, name))
    begin(backend, example_inputs, options)
    stages = _Stages(rewriting, backend, plans)
    return compile_captured(gm, example_inputs, stages, table, options, notes)


def compile_captured(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    stages: Stages,
    table: dict[Any, Callable[..., Any]],
    options: Options,
    notes: Notes,
) -> Compiled:
    """A captured graph differentiated and compiled: joint, joint rewrites, partition, then each region.

    Where joint tracing does not apply, AOTAutograd makes the joint graph and calls the same stages in the same order. A
    backward is compiled when it is first needed. What a functional graph cannot say is left to eager.
    """
    captured = read_captured(gm, example_inputs, options, notes)
    if captured.refused is not None:
        return captured.as_captured()
    graphs = GraphCompiler(stages, notes, options, captured)
    with captured.entered(), collector_held(lasting=True):
        joint = joint_of(captured, table, options, notes)
        if joint is None:
            found = through_autograd(captured, table, graphs)
        elif best_by_eager(joint, notes):
            found = Differentiated(None)
        else:
            found = differentiated(captured, joint, _compiled_joint(captured, joint, graphs), notes)
    return surrounded(captured, found, options, notes)


def _compiled_joint(captured: Captured, joint: JointGraph, graphs: GraphCompiler) -> Callable[..., Any]:
    """A joint graph as a function: joint rewrites, partition and forward, or the one inference graph."""
    graphs.static, inputs = frozenset(joint.static), inputs_of(joint.joint)
    if not joint.differentiable:
        graph = graphs.prepared(graphs.marked(joint.joint))
        return without_training(joint, captured, graphs.compiled("inference", graph, inputs))
    graph = graphs.prepared(joint.joint)
    halves = graphs.split(graph, None, joint.results, joint.static)
    halves = graphs.rewritten(halves)
    forward = graphs.compiled("forward", halves.forward, inputs)
    return with_training(graphs, joint, captured, halves, forward)


class _Stages:
    """The stages of one captured graph from the joint one on: AOTAutograd, or a backward that is needed now, calls."""

    def __init__(self, rewriting: Rewriting, backend: Backend, plans: list[Plan]) -> None:
        self.options, self.record = rewriting.options, rewriting.record
        self.rewriting, self.backend, self.plans = rewriting, backend, plans  # each region adds its plan
        self.rereads = is_ours(backend)

    def rewrite_joint(self, gm: GraphModule) -> GraphModule:
        """Joint rewrites: rules and passes on forward and backward in one, or on a graph without gradients."""
        return self.rewriting.device(self.rewriting.joint(gm), is_ours(self.backend))

    def rewrite_half(self, gm: GraphModule, kind: str) -> GraphModule:
        """The user's passes on the forward or the backward."""
        return self.rewriting.partitioned(gm, kind)

    def compile_region(self, region: Region) -> Boxed:
        """Lowering rewrites, freezing, and the backends that take it; for those of ours, ``compile_kernels``."""
        options, record = self.options, self.record
        region = region.with_graph(self.rewriting.lowered)
        freezing = freeze(region, options, record)
        main = region if freezing is None else freezing.region
        compiled = run_region(self.backend, main, options, record, self.compile_kernels)
        if freezing is not None:
            compiled = freezing.applied(compiled)
        dump_backward(record, region)
        return compiled

    def compile_kernels(
        self, gm: GraphModule, name: str, backend: Backend, refused: Mapping[str, str] = MappingProxyType({})
    ) -> Boxed:
        """A functional graph to a callable: in one piece, or in segments between which nodes ``refused`` are called.

        What cannot be cut, and what fails, runs as ATen calls.
        """
        try:
            pieces = cut(gm, name, refused)
        except CannotCut as refusal:
            return as_aten(gm, name, str(refusal), self.record)
        except Exception as error:
            to_aten(error, "cutting the graph", name, self.options.strict, self.record)
            return aten_calls(gm)
        if pieces is None:
            return self._piece(gm, name, backend)
        self.record.add(name, "segments", 0.0, pieces, pieces.decisions)
        for segment in pieces.segments:
            put_segment(pieces, segment, self._piece(segment.gm, segment.name, backend))
        tiled = self._tiles(pieces.outer, name, backend)
        bodies = []
        for body in bodies_in(pieces.outer, name):
            bodies.append(body)
            if not body.why:
                body.put(self.compile_kernels(body.graph, body.name, backend))
        self.record.told(name, "bodies", decided_bodies, tiled, bodies)
        return aten_calls(pieces.outer)

    def _piece(self, gm: GraphModule, name: str, backend: Backend) -> Boxed:
        """A graph whose numbers are inputs, from lowering to a callable that loads its kernels when it is called.

        Where it cannot be lowered, it is cut there; where a stage fails, it runs as ATen calls.
        """
        assert backend.kernels is not None
        options, record = self.options, self.record
        try:
            gm = with_library_gelu(gm, name, backend, options, record)
            record.add(name, "graph", 0.0, gm)
            program: LoopProgram = record.step(name, "lower", lower, gm, name, options.numerics)
            record.told(name, "lower", lowered_by_user, gm, program)
            record.told(name, "lower", library_decisions, program)
            if any(isinstance(rule, NestRule) for rule in options.rules):
                program = record.step(name, "rewrite", rewrite_nests, program, options.rules).program
            if options.verify is True:
                record.step(name, "verify", verify_program, program)
            fused: Fused = record.step(name, "fuse", fuse, program, options.numerics, partial(record.fused, name))
            if options.verify is True:
                record.step(name, "verify", verify_program, fused.program)
            device = backend.kernels(fused.program, options)
            plan = device.plan(fused, gm, record)
            self.plans.extend(device.plans(plan))
            sources = device.codegen(plan, gm, record)
            building = device.build(sources, gm, record)
            steps = partial(device.steps, building)
            run = record.region_entry(name, gm, with_numbers(gm, device.load(building, gm, record)), steps)
            return checked_first_call(run, gm, name, options, record, steps)
        except CannotLower as refusal:
            if refusal.nodes and name.count("_segment") < _MOST_CUTS:
                return self.compile_kernels(gm, name, backend, refusal.nodes)
            return as_aten(gm, name, str(refusal), record)
        except (RuleFailed, WrongLowering):
            raise
        except Exception as error:
            to_aten(error, "making kernels", name, options.strict, record)
        return aten_calls(gm)

    def _tiles(self, outer: GraphModule, name: str, backend: Backend) -> list[Decision]:
        """Attention with functions of scores in tiles; torch's with ``numerics="eager"``, as tiles round otherwise."""
        options, found = self.options, list[Decision]()
        if options.numerics != "fast":
            return found
        with staying_calls(name, options, self.record, found), beside_tracing():
            for tiling in tilings(outer, name, decompositions(options.numerics)):
                if tiling.tile is not None:
                    of = tiling.ranges
                    ranges = None if of is None else self._tile(of, f"{tiling.name}_ranges", backend)
                    tiling.put(ranges, self._tile(tiling.tile, f"{tiling.name}_tile", backend))
                found.append(tiling.decision())
            if any(decision.taken for decision in found):
                cleared(outer)
        return found

    def _tile(self, gm: GraphModule, name: str, backend: Backend) -> Boxed:
        """A graph that computes a tile of attention, or which keys are read for it."""
        prepare(gm)
        table = dict(decompositions(self.options.numerics))
        gm = Rewriting(self.options, self.record, name, table).device(gm)
        return self.compile_kernels(gm, name, backend)
