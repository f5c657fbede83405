"""From a captured region to compiled forward and backward graphs, through torch's AOTAutograd."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from lamina.aot.calls import Unsuitable
from lamina.aot.checkpointed import partition_checkpointed
from lamina.aot.eager import eager_is_best
from lamina.aot.errors import draws_numbers, raising_as_captured
from lamina.aot.fixed_integers import fixed_integers, wants_numbers
from lamina.aot.function import (
    CompileBackward,
    Strides,
    Tangent,
    detaching,
    for_leaves,
    inference_function,
    training_function,
    without_gradients,
)
from lamina.aot.identities import distinct, without_identities
from lamina.aot.joint import prepare, unsupported
from lamina.aot.overlap import inputs_written
from lamina.aot.partition import Partition, partition
from lamina.aot.refusals import SHARED_INPUT, STATE_SWITCHED, Refusal, refusal
from lamina.aot.region import CompileRegion, Region, RegionInput
from lamina.aot.saved import with_planned_strides
from lamina.aot.shared_memory import overlapping_inputs, serving_alike, shares_storage
from lamina.aot.source import annotate_sources
from lamina.aot.state import read_state, undone, without_history
from lamina.aot.stitch import Stitched, stitch
from lamina.aot.tangents import restrided
from lamina.aot.torch_private import (
    DataDependentGuard,
    asks_for_another_capture,
    guard_overlap,
    history_of_results,
    run_aot_autograd,
    static_input_indices,
    without_autocast,
    written_inputs,
)
from lamina.aot.traits import is_static
from lamina.base.collector import collector_held
from lamina.base.decision import Decision
from lamina.base.halves import as_halves
from lamina.base.modes import SWITCHED_BY_HAND
from lamina.base.recovery import brief, raised_within, recover
from lamina.base.source import place_in
from lamina.base.torch_private import memory_of, without_bases
from lamina.errors import LaminaError, LaminaWarning
from lamina.options import Options
from lamina.record import Record, Stage

__all__ = ["compile_captured"]

Pass = Callable[[GraphModule], GraphModule]
PartPass = Callable[[GraphModule, str], GraphModule]

_TRACED_BY = (__name__, "lamina.aot.torch_private")
"""Modules that lead to AOTAutograd; others of Lamina's hold the rules that it applies while it traces."""


def _as_it_is(gm: GraphModule, kind: str) -> GraphModule:
    return gm


def compile_captured(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    compile_region: CompileRegion,
    decompositions: dict[Any, Callable[..., Any]],
    record: Record,
    options: Options,
    name: str = "graph",
    passes: Sequence[Pass] = (),
    partitioned: PartPass = _as_it_is,
    rereads: bool = False,
) -> Callable[..., Any]:
    """The callable that torch.compile's backend contract asks for.

    ``gm`` is made functional and differentiated: stitched from its single calls where that is sound (see ``stitch``),
    by AOTAutograd otherwise and whenever ``options.numerics`` is "eager". ``compile_region`` compiles each graph
    there is (one for inference, else the forward now and the backward when first needed). ``passes`` run on the joint
    graph before it is partitioned, and on an inference graph before it is compiled, ``partitioned`` on the forward
    and the backward, named by the second argument. ``rereads``: on a GPU the backward may read returned tensors while
    they are unchanged, with ``lamina::unless_changed``. Stages "aot" and "partition" of ``name`` go into ``record``.
    A graph that writes to a tensor whose elements share memory is returned as it is.
    Errors of AOTAutograd pass through, and must pass through the backend as well: some ask Dynamo to trace again.
    """
    job = _Job(compile_region, record, options, name, tuple(passes), partitioned, rereads)
    job.by_hand = gm.meta.get(SWITCHED_BY_HAND, True)
    captured = without_identities(gm)
    once = distinct(captured)
    if once is not None:
        return once.applied(_compiled(job, once.gm, example_inputs, decompositions))
    compiled = _compiled(job, captured, example_inputs, decompositions)
    return compiled if compiled != captured.forward else gm.forward if job.by_hand else undone(gm)


def _compiled(
    job: _Job,
    gm: GraphModule,
    example_inputs: Sequence[Any],
    decompositions: dict[Any, Callable[..., Any]],
) -> Callable[..., Any]:
    """The graph compiled, or its ``forward``."""
    job.parameters = tuple(is_static(node) for node in gm.graph.find_nodes(op="placeholder"))
    job.place = _place(gm)
    job.writable = tuple(not (isinstance(x, torch.Tensor) and x.requires_grad and x.is_leaf) for x in example_inputs)
    refused = refusal(gm, job.options.numerics == "eager")
    if refused is not None:
        job.refuse(refused)
        return gm.forward
    state = read_state(gm)
    if state.refused:
        job.refuse(Refusal(state.refused, STATE_SWITCHED))
        return gm.forward
    job.differentiable = tuple(isinstance(x, torch.Tensor) and x.requires_grad for x in example_inputs)
    job.empty = frozenset(i for i, x in enumerate(example_inputs) if isinstance(x, torch.Tensor) and x.numel() == 0)
    with state.entered():
        compiled = job.compiled(state.gm, example_inputs, decompositions)
    if compiled == state.gm.forward:
        return gm.forward
    if job.outside:
        compiled = detaching(compiled, job.outside)
    if not job.written:
        return state.applied(compiled, gm.forward if job.by_hand else None)
    if job.options.numerics == "fast" or not draws_numbers(state.gm):
        compiled = raising_as_captured(compiled, state.gm, job.tell, job.options.strict)
    sized = not any(isinstance(x, torch.SymInt) for x in example_inputs)
    if sized and shares_storage(example_inputs, job.written):
        overlapping, apart = overlapping_inputs(example_inputs)
        guard_overlap(gm, overlapping, apart)
        if not set(overlapping).isdisjoint(job.written):
            job.refuse(Refusal("an input that it writes to shares memory with another", SHARED_INPUT))
            return gm.forward
    return state.applied(serving_alike(compiled, state.gm.forward, example_inputs, job.written, job.tell))


def _stated_limit(error: Exception) -> str:
    """Why eager is to run a graph that AOTAutograd refused with ``error``; "" if something of Lamina's own failed.

    Eager computes what AOTAutograd cannot trace or differentiate, and where it cannot either, the error is its own.
    """
    if isinstance(error, DataDependentGuard):
        return f"tracing it asks what only a run tells: {brief(error)}"
    if isinstance(error, LaminaError) or asks_for_another_capture(error) or raised_within(error, _TRACED_BY):
        return ""
    return f"AOTAutograd does not take it: {brief(error)}"


class _Job:
    """One run of AOTAutograd: the callbacks it is given and the seconds they took."""

    def __init__(
        self,
        compile_region: CompileRegion,
        record: Record,
        options: Options,
        name: str,
        passes: tuple[Pass, ...],
        partitioned: PartPass,
        rereads: bool,
    ) -> None:
        self.compile_region, self.record, self.options = compile_region, record, options
        self.name, self.passes, self.partitioned, self.rereads = name, passes, partitioned, rereads
        self.reread: tuple[int, ...] = ()
        self.rereading: GraphModule | None = None
        self.seconds = 0.0
        self.begun = False
        """Whether the graph is differentiated, so that what fails now is ours."""
        self.saves = False
        """Whether there is a graph that saves something for a backward."""
        self.static_names: frozenset[str] = frozenset()
        self.static: frozenset[int] | None = None
        self.parameters: tuple[bool, ...] = ()
        self.place = ""
        """Where in the user's code the graph begins."""
        self.written: tuple[int, ...] = ()
        """Places of the inputs that the graph writes to."""
        self.writable: tuple[bool, ...] = ()
        """Which inputs the user may write to after the forward: not leaves that require a gradient, autograd says."""
        self.trusted: tuple[int, ...] = ()
        """Inputs that are saved only since nobody writes to leaves."""
        self.careful = False
        """Whether inputs that were leaves no longer are."""
        self.differentiable: tuple[bool, ...] = ()
        """Which inputs require a gradient."""
        self.reached: list[bool] = []
        """Which inputs get a gradient in the joint graph."""
        self.empty: frozenset[int] = frozenset()
        """Inputs without elements: what results are views of them, nothing tells."""
        self.by_hand = True
        """Whether the program switches the grad mode by other means than ``with`` statements."""
        self.outside: tuple[int, ...] = ()
        """Inputs that require a gradient and get none from this graph."""

    def compiled(
        self, gm: GraphModule, example_inputs: Sequence[Any], decompositions: dict[Any, Callable[..., Any]]
    ) -> Callable[..., Any]:
        """The graph compiled, or its own ``forward`` where eager is to run it; sets ``written``."""
        start = time.perf_counter()
        with collector_held():
            stitched = self.stitched(gm, example_inputs, decompositions)
            if stitched is not None:
                self.written = stitched.mutated
                self.outside = self._without_gradient([s is not None for s in stitched.tangents_of])
                self.record.add(self.name, "aot", time.perf_counter() - start)
                return self.finish(stitched) if not self.left_to_eager(stitched) else gm.forward
            self.written = inputs_written(gm)
            self.careful = True  # nothing asks whether inputs are leaves
            try:
                compiled = self.differentiated(gm, example_inputs, decompositions)
            except Exception as error:
                why = "" if self.begun else _stated_limit(error)
                if not why:
                    raise
                self.tell(why)
                return gm.forward
            self.written = written_inputs(len(example_inputs))
            kept = history_of_results()  # what AOTAutograd returns as a view of an input is so outside of the graph
            self.outside = self._without_gradient([g or i in kept for i, g in enumerate(self.reached)])
        self.record.add(self.name, "aot", time.perf_counter() - start - self.seconds)
        return without_history(compiled, gm.forward if self.by_hand else undone(gm)) if self.saves else compiled

    def _without_gradient(self, has: Sequence[bool]) -> tuple[int, ...]:
        """Inputs that require a gradient and, as ``has`` says, get none; none of a graph that gives no gradients."""
        if not any(has) or len(has) != len(self.differentiable):
            return ()
        found = enumerate(zip(self.differentiable, has, strict=True))
        return tuple(i for i, (wants, gets) in found if wants > gets and i not in self.empty)

    def stitched(
        self, gm: GraphModule, example_inputs: Sequence[Any], decompositions: dict[Any, Callable[..., Any]]
    ) -> Stitched | None:
        """The stitched graph, or None with the reason in the record."""
        if self.options.numerics == "eager":
            reason = "gradients are to be summed in the autograd engine's own order"
        else:
            try:
                found = stitch(gm, example_inputs, decompositions)
            except Unsuitable as why:
                reason = str(why)
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
            else:
                self._note(True, f"{found.traced} distinct calls traced")
                return found
        self._note(False, f"left to AOTAutograd: {reason}")
        return None

    def differentiated(
        self, gm: GraphModule, example_inputs: Sequence[Any], decompositions: dict[Any, Callable[..., Any]]
    ) -> Callable[..., Any]:
        """The graph through AOTAutograd; with numbers for run-time integers where gradients want them."""

        def compiled(graph: GraphModule) -> Callable[..., Any]:
            return run_aot_autograd(
                graph,
                example_inputs,
                forward=self.compiler("forward"),
                backward=self.kept_backward,
                inference=self.compiler("inference"),
                partition=self.partition,
                decompositions=decompositions,
            )

        try:
            return compiled(gm)
        except (RuntimeError, AttributeError) as error:
            if self.begun or not wants_numbers(error):
                raise
            refusal: Exception = error
        for graph in fixed_integers(gm):
            try:
                result = compiled(graph)
            except (RuntimeError, AttributeError) as error:
                if self.begun or not wants_numbers(error):
                    raise
            else:
                why = "torch knows a gradient or an operation for numbers only"
                decision = Decision("fixed integers", (self.name,), True, why)
                self.record.stages.append(Stage(self.name, "fixed integers", None, 0.0, (decision,)))
                return result
        raise refusal

    def _note(self, taken: bool, reason: str) -> None:
        decision = Decision("stitch", (self.name,), taken, reason)
        self.record.stages.append(Stage(self.name, "stitch", None, 0.0, (decision,)))

    def left_to_eager(self, stitched: Stitched) -> bool:
        """Whether the captured graph itself is the fastest program, which is then in the record."""
        if not stitched.differentiable or stitched.mutated or _device(stitched.joint) != "cuda":
            return False
        why = eager_is_best(stitched.joint)
        if why:
            self.note_eager(why)
        return bool(why)

    def note_eager(self, why: str) -> None:
        """Put into the record that the captured graph runs as it is."""
        decision = Decision("eager", (self.name,), True, why)
        self.record.stages.append(Stage(self.name, "eager", None, 0.0, (decision,)))

    def refuse(self, refused: Refusal) -> None:
        """Warn, once for each reason, that the captured graph is eager's to run, and note it."""
        known = {decision.reason for decision in self.record.decisions("eager")}
        self.note_eager(refused.why)
        if refused.why not in known:
            what = f"lamina leaves {self.place or self.name} to eager: {refused.why}; {refused.remedy}"
            warnings.warn(what, LaminaWarning, stacklevel=3)

    def tell(self, why: str) -> None:
        """Warn that the captured graph runs as it is, and note it."""
        self.note_eager(why)
        told = " ".join(why.split())[:400]
        warnings.warn(f"lamina runs {self.place or self.name} as ATen calls: {told}", LaminaWarning, stacklevel=3)

    def finish(self, stitched: Stitched) -> Callable[..., Any]:
        """Partition and compile a stitched graph."""
        self.static = frozenset(stitched.static)
        inputs = [n.meta["val"] for n in stitched.joint.graph.find_nodes(op="placeholder") if _role(n, "") != "tangent"]
        if not stitched.differentiable:
            compiled = self.compiler("inference")(stitched.joint, inputs)
            return inference_function(compiled, stitched.mutated, stitched.trained)
        tangents = [
            n.meta["val"] for n in stitched.joint.graph.find_nodes(op="placeholder") if _role(n, "") == "tangent"
        ]
        joint = self._prepared(stitched.joint)
        usual = self._training(stitched, joint, inputs, tangents)
        if not self.trusted:
            return usual

        def without_trust() -> Callable[..., Any]:
            with torch.no_grad(), without_autocast(), collector_held(lasting=True):
                self.careful, self.reread, self.rereading = True, (), None
                return self._training(stitched, joint, inputs, tangents)

        return for_leaves(usual, self.trusted, without_trust)

    def _training(
        self, stitched: Stitched, joint: GraphModule, inputs: Sequence[Any], tangents: Sequence[torch.Tensor]
    ) -> Callable[..., Any]:
        self.begun = True
        forward, backward = self._split(joint, None, stitched.results, stitched.static)
        compiled = self.compiler("forward")(forward, inputs)
        places: list[Tangent | None] = [None] * stitched.results
        for place, fake in zip(stitched.differentiable, tangents, strict=True):
            places[place] = Tangent(tuple(fake.shape), tuple(fake.stride()), fake.dtype, fake.device)

        usual = self._compile_backward(backward)
        rereading = None if self.rereading is None else self._compile_backward(self.rereading)
        return training_function(
            compiled,
            usual,
            stitched.results,
            places,
            stitched.tangents_of,
            stitched.mutated,
            rereads=self.reread,
            compile_rereading=rereading,
            name=self.name,
            where=self.place,
        )

    def _compile_backward(self, backward: GraphModule) -> CompileBackward:
        """Compiles a backward of a stitched graph for gradients of any strides."""
        gradients = [n.name for n in backward.graph.find_nodes(op="placeholder") if _role(n, "") == "tangent"]

        def graph_for(strides: Strides | None) -> GraphModule | None:
            return backward if strides is None else restrided(backward, dict(zip(gradients, strides, strict=True)))

        def compile(strides: Strides | None) -> Callable[..., Any] | None:
            try:
                with torch.no_grad(), without_autocast(), collector_held(lasting=True):
                    graph = graph_for(strides)
                    if graph is None:
                        return None
                    inputs = [n.meta["val"] for n in graph.graph.find_nodes(op="placeholder")]
                    return self.compiler("backward")(graph, inputs)
            except Exception as error:
                self._without(error, "backward", f"{self.name}_backward")
            return self._as_aten(backward) if strides is None else None

        return compile

    def kept_backward(self, gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """What AOTAutograd, which keeps the saved tensors, calls to compile a backward."""
        compiled = self.compiler("backward")(gm, example_inputs)
        saved = [v if _role(n, "") != "tangent" else None for n, v in _placeholder_values(gm)]
        return with_planned_strides(compiled, saved)

    def compiler(self, kind: str) -> Callable[[GraphModule, Sequence[Any]], Callable[..., Any]]:
        """What AOTAutograd calls to compile a graph of ``kind``."""

        def compile(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
            self.begun, start = True, time.perf_counter()
            self.saves = self.saves or kind == "forward"
            if kind == "inference":
                self._mark_parameters(gm)
                gm = self._prepared(gm)
            inputs = self._inputs(gm, kind)
            region = Region(gm, tuple(example_inputs), kind, f"{self.name}_{kind}", inputs)
            compiled = self._compiled_region(region)
            if kind == "inference" and any(self.differentiable):
                compiled = without_gradients(compiled)
            self.seconds += time.perf_counter() - start
            return compiled

        return compile

    def _compiled_region(self, region: Region) -> Callable[..., Any]:
        """The region compiled, or run as ATen calls where something of ours fails in it."""
        try:
            return _boxed(self.compile_region(region))
        except Exception as error:
            self._without(error, region.kind, region.name)
        return self._as_aten(region.gm)

    def _as_aten(self, gm: GraphModule) -> Callable[..., Any]:
        def call(arguments: list[Any]) -> list[Any]:
            inputs = _emptied(arguments)
            return without_bases(gm.forward(*inputs), memory_of(inputs))

        return _boxed(call)

    def _without(self, error: Exception, kind: str, region: str) -> None:
        """Note that something of ours failed in a graph, which runs as ATen calls; raise what is not ours."""
        if isinstance(error, LaminaError) or asks_for_another_capture(error):
            raise error
        recover(
            error,
            doing=f"compiling the {kind} graph",
            region=region,
            instead="it runs as ATen calls",
            strict=self.options.strict,
            note=self._decided,
        )

    def _decided(self, decision: Decision) -> None:
        self.record.stages.append(Stage(self.name, decision.kind, None, 0.0, (decision,)))

    def partition(
        self,
        joint: GraphModule,
        joint_inputs: Any,
        *,
        num_fwd_outputs: int,
        static_lifetime_input_indices: Sequence[int] | None = None,
        **_: Any,
    ) -> tuple[GraphModule, GraphModule]:
        """AOTAutograd's partition function."""
        self.begun = True
        return self._split(self._prepared(joint), joint_inputs, num_fwd_outputs, static_lifetime_input_indices or ())

    def _split(
        self, joint: GraphModule, joint_inputs: Any, num_fwd_outputs: int, static_inputs: Sequence[int]
    ) -> tuple[GraphModule, GraphModule]:
        start = time.perf_counter()
        static = list(static_inputs)
        gradients: Sequence[Any] = joint.graph.output_node().args[0][num_fwd_outputs:]  # type: ignore[index,assignment]
        self.reached = [g is not None for g in gradients]
        inputs = joint.graph.find_nodes(op="placeholder")
        self.static_names = frozenset(inputs[i].name for i in static if i < len(inputs))
        refusal = unsupported(joint)
        if refusal:
            forward, backward = partition_checkpointed(
                joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, static_lifetime_input_indices=static
            )
            decision = Decision("partition", (self.name,), False, f"left to torch's partitioner: {refusal}")
            annotate_sources(forward.graph)
            annotate_sources(backward.graph)
            result = Partition(forward, backward, (), 0, (), (decision,))
        else:
            device = _device(joint)
            rereads = self.rereads and self.static is not None and device == "cuda"  # AOTAutograd knows only saved ones
            later = () if self.static is not None else self.written
            writable = [i for i, may in enumerate(self.writable) if may or self.careful]
            result = partition(joint, num_fwd_outputs, static, device, rereads, writable, later)
            self.trusted = result.trusted
            self.reread = result.rereads
            if result.rereading is not None:
                self.rereading = self.partitioned(result.rereading, "backward")
        seconds = time.perf_counter() - start
        self.record.stages.append(Stage(self.name, "partition", result, seconds, result.decisions))
        self.seconds += seconds
        forward, backward = self.partitioned(result.forward, "forward"), self.partitioned(result.backward, "backward")
        as_halves(forward, backward, *([] if self.rereading is None else [self.rereading]))
        return forward, backward

    def _prepared(self, gm: GraphModule) -> GraphModule:
        prepare(gm)
        for change in self.passes:
            gm = change(gm)
        return gm

    def _mark_parameters(self, gm: GraphModule) -> None:
        """Note in ``meta["parameter"]`` which inputs of an inference graph are parameters or buffers.

        Only where they are the inputs that Dynamo captured: tensor subclasses taken apart, or inputs that share memory
        joined, have other places.
        """
        placeholders = gm.graph.find_nodes(op="placeholder")
        static = static_input_indices() if self.static is None else self.static
        if len(placeholders) == len(self.parameters):
            for place, node in enumerate(placeholders):
                if self.parameters[place] and place in static:
                    node.meta["parameter"] = True

    def _inputs(self, gm: GraphModule, kind: str) -> tuple[RegionInput, ...]:
        placeholders = gm.graph.find_nodes(op="placeholder")
        if kind == "backward":
            return tuple(RegionInput(n.name, _role(n, "saved"), n.name in self.static_names) for n in placeholders)
        static = static_input_indices() if self.static is None else self.static
        return tuple(RegionInput(n.name, _role(n, "primal"), i in static) for i, n in enumerate(placeholders))


def _placeholder_values(gm: GraphModule) -> list[tuple[Node, Any]]:
    return [(n, n.meta.get("val")) for n in gm.graph.find_nodes(op="placeholder")]


def _role(node: Node, otherwise: str) -> str:
    if "tangents" in str(node.target):
        return "tangent"
    return otherwise if _is_tensor(node.meta.get("val")) else "symbol"


def _place(gm: GraphModule) -> str:
    """The line of the first of the graph's calls that has one."""
    found = (place_in(n.meta.get("stack_trace") or "") for n in gm.graph.nodes if n.op.startswith("call"))
    return next((f"{place}, where it begins" for place in found if place), "")


def _device(gm: GraphModule) -> str:
    """The type of device most of the graph's inputs live on."""
    types = [n.meta["val"].device.type for n in gm.graph.find_nodes(op="placeholder") if _is_tensor(n.meta.get("val"))]
    return max(types, key=types.count, default="cpu")


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def _emptied(arguments: list[Any]) -> list[Any]:
    """What is in a list that is handed over."""
    inputs = list(arguments)
    arguments.clear()
    return inputs


def _boxed(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """``compiled`` marked as taking one list, which AOTAutograd then hands over without copying it."""
    if getattr(compiled, "_boxed_call", False):
        return compiled

    def call(args: list[Any]) -> Any:
        return compiled(args)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call
