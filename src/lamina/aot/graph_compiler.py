"""Compiles the forward, backward or inference graph that joint tracing or AOTAutograd makes of a captured graph."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch.fx import GraphModule, Node

from lamina.aot import reasons
from lamina.aot.autograd.torch_private import results_keep_versions, static_input_indices
from lamina.aot.backward_operands import mark_backward_operands
from lamina.aot.backwards import Boxed
from lamina.aot.captured import Captured
from lamina.aot.checkpointed import partition_checkpointed
from lamina.aot.defined_gradients import DefinedGradients
from lamina.aot.function import apart, without_gradients
from lamina.aot.joint import prepare, unsupported
from lamina.aot.notes import Notes
from lamina.aot.partition import Partition, partition
from lamina.aot.region import Region, RegionInput
from lamina.aot.saved_tensors import with_planned_strides
from lamina.aot.source import annotate_sources
from lamina.aot.tangents import copied
from lamina.aot.torch_private import asks_for_another_capture, without_autocast
from lamina.base.captured import OF_A_MODULE, may_be_alike
from lamina.base.collector import collector_held
from lamina.base.decision import Decision
from lamina.base.devices import kind_of
from lamina.base.graph_pair import pair_graphs
from lamina.base.recovery import recover
from lamina.base.retryable import set_retryable_unless_told
from lamina.base.symbolic.environment.torch_private import answers_settled
from lamina.base.torch_private import boxed, is_boxed, memory_of, without_bases
from lamina.errors import LaminaError
from lamina.ops import overloads
from lamina.ops.aliasing import viewed
from lamina.ops.row import KEPT, RESHAPED
from lamina.options import Options

__all__ = ["GraphCompiler", "Stages", "device_of", "role"]


class Stages(Protocol):
    """Stages of the driver's that other stages wait for: AOTAutograd, or a backward that is first needed now.

    ``rereads``: on a GPU the backward may read returned tensors while they are unchanged, with
    ``lamina::unless_changed``.
    """

    rereads: bool

    def rewrite_joint(self, gm: GraphModule) -> GraphModule:
        """The joint graph, or a graph without gradients, rewritten."""

    def rewrite_half(self, gm: GraphModule, kind: str) -> GraphModule:
        """The "forward" or the "backward" graph, rewritten."""

    def compile_region(self, region: Region) -> Callable[..., Any]:
        """A graph as a callable that takes one list of inputs, which it may empty, and returns the outputs."""


_COPIES = overloads(lambda row: row.elements in (KEPT, RESHAPED))
"""Calls whose result may be their operand in kernels."""


class GraphCompiler:
    """The graphs that come of one captured graph, from the joint one on, and the seconds that their compiling took.

    The driver calls its methods one after the other, or AOTAutograd does.
    """

    def __init__(self, stages: Stages, notes: Notes, options: Options, captured: Captured) -> None:
        self.stages, self.notes, self.options, self.name = stages, notes, options, notes.name
        self.parameters, self.differentiable = captured.parameters, captured.differentiable
        # Where AOTAutograd is not told, the inputs are plain tensors, and fewer if some are joined.
        self.all_told = any(OF_A_MODULE in node.meta for node in captured.gm.graph.find_nodes(op="placeholder"))
        self.start, self.seconds = time.perf_counter(), 0.0
        self.defined_gradients = DefinedGradients()
        """Which gradients are not there in a backward that AOTAutograd runs."""
        self.begun = False
        """Whether the graph is differentiated, so that what fails now is ours."""
        self.saves = False
        """Whether there is a graph that saves something for a backward."""
        self.static_names: frozenset[str] = frozenset()
        self.static: frozenset[int] | None = None
        self.inference: Boxed | None = None
        """The graph without gradients that AOTAutograd had compiled."""
        self.written: tuple[int, ...] = ()
        """Places of the inputs that the graph writes to."""
        self.results = 0
        """How many results the forward has before what it saves."""
        self.reached: list[bool] = []
        """Which inputs get a gradient in the joint graph."""

    def kept_backward(self, gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """What AOTAutograd, which keeps the saved tensors, calls to compile a backward."""
        tangents = [n.name for n in gm.graph.find_nodes(op="placeholder") if role(n, "") == "tangent"]
        pristine = copied(gm) if len(tangents) > 1 else None
        usual = self._planned(gm, example_inputs)
        return usual if pristine is None else self.defined_gradients.served(usual, pristine, tangents, self._partial)

    def _planned(self, gm: GraphModule, example_inputs: Sequence[Any]) -> Boxed:
        compiled = self.compiled("backward", gm, example_inputs)
        saved = [v if role(n, "") != "tangent" else None for n, v in _placeholder_values(gm)]
        return with_planned_strides(compiled, saved)

    def _partial(self, gm: GraphModule) -> Boxed | None:
        """A backward compiled while another runs, for fewer gradients; None where that fails."""
        try:
            with torch.no_grad(), without_autocast(), collector_held(lasting=True):
                return self._planned(gm, [value for _, value in _placeholder_values(gm)])
        except Exception as error:
            self.without(error, "backward", f"{self.name}_backward")
        return None

    def compiled_forward(self, gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """What AOTAutograd calls to compile a forward."""
        results_keep_versions()
        return self.compiled("forward", gm, example_inputs)

    def compiled_inference(self, gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """What AOTAutograd calls to compile a graph without gradients."""
        self.begun, start = True, time.perf_counter()
        gm = self.prepared(self.marked(gm))
        self.seconds += time.perf_counter() - start
        self.inference = self.compiled("inference", gm, example_inputs)
        return self.inference

    def compiled(self, kind: str, gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """A graph of ``kind`` as a callable."""
        self.begun, start, before = True, time.perf_counter(), self.notes.record.booked()
        self.saves = self.saves or kind == "forward"
        inputs = self._inputs(gm, kind)
        region = Region(gm, tuple(example_inputs), kind, f"{self.name}_{kind}", inputs)
        compiled = self._compiled_region(region)
        if kind == "forward":
            pairs = _in_one_memory(gm, self.results)
            compiled = apart(compiled, pairs) if pairs else compiled
        if kind == "inference" and any(self.differentiable):
            compiled = without_gradients(compiled)
        spent = time.perf_counter() - start
        self.seconds += spent
        if kind == "backward":  # which is compiled when it is first called: nobody else counts what is no stage's
            self.notes.record.add(region.name, "other", max(0.0, spent - (self.notes.record.booked() - before)))
        return compiled

    def _compiled_region(self, region: Region) -> Callable[..., Any]:
        """The region compiled, or run as ATen calls where something of ours fails in it."""
        try:
            with answers_settled(region.example_inputs):
                return _boxed(self.stages.compile_region(region))
        except Exception as error:
            self.without(error, region.kind, region.name)
        return self.as_aten(region.gm)

    def as_aten(self, gm: GraphModule) -> Callable[..., Any]:
        """The graph as its ATen calls."""

        def call(arguments: list[Any]) -> list[Any]:
            inputs = _emptied(arguments)
            try:
                return without_bases(gm.forward(*inputs), memory_of(inputs))
            except Exception as error:
                set_retryable_unless_told(error)  # the graph writes to its inputs after all else
                raise

        return _boxed(call)

    def without(self, error: Exception, kind: str, region: str) -> None:
        """Note that something of ours failed in a graph, which runs as ATen calls; raise what is not ours."""
        if isinstance(error, LaminaError) or asks_for_another_capture(error):
            raise error
        recover(
            error,
            doing=f"compiling the {kind} graph",
            region=region,
            instead="it runs as ATen calls",
            strict=self.options.strict,
            note=self.notes.add,
        )

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
        mark_backward_operands(joint, num_fwd_outputs)
        joint = self.prepared(joint)
        halves = self.split(joint, joint_inputs, num_fwd_outputs, static_lifetime_input_indices or ())
        halves = self.rewritten(halves)
        return halves.forward, halves.backward

    def split(
        self, joint: GraphModule, joint_inputs: Any, num_fwd_outputs: int, static_inputs: Sequence[int]
    ) -> Partition:
        """The forward and the backward of a joint graph."""
        start = time.perf_counter()
        self.notes.record.add(self.name, "joint", 0.0, joint)
        self.results = num_fwd_outputs
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
            decision = Decision("partition", (self.name,), False, reasons.TORCHS_PARTITIONER(why=refusal))
            annotate_sources(forward.graph)
            annotate_sources(backward.graph)
            result = Partition(forward, backward, (), 0, (), (decision,))
        else:
            device = device_of(joint)
            # AOTAutograd knows only saved tensors.
            rereads = self.stages.rereads and self.static is not None and kind_of(device).grids
            later = () if self.static is not None else self.written
            result = partition(joint, num_fwd_outputs, static, device, rereads, later)
            self.static_names -= set(result.copied)
        seconds = time.perf_counter() - start
        self.notes.record.add(self.name, "partition", seconds, result, result.decisions)
        self.seconds += seconds
        return result

    def rewritten(self, halves: Partition) -> Partition:
        """The halves after the rewrites of each; they know of each other while they run."""
        rereading = halves.rereading
        if rereading is not None:
            rereading = self.stages.rewrite_half(rereading, "backward")
        forward = self.stages.rewrite_half(halves.forward, "forward")
        backward = self.stages.rewrite_half(halves.backward, "backward")
        pair_graphs(forward, backward, *([] if rereading is None else [rereading]))
        return replace(halves, forward=forward, backward=backward, rereading=rereading)

    def prepared(self, gm: GraphModule) -> GraphModule:
        """The graph in normal form, rewritten."""
        prepare(gm)
        return self.stages.rewrite_joint(gm)

    def marked(self, gm: GraphModule) -> GraphModule:
        """The inference graph ``gm`` with a note in ``meta["parameter"]`` of inputs that are parameters or buffers.

        Only where they are the inputs that were captured: tensor subclasses taken apart, or inputs that share memory
        joined, have other places.
        """
        placeholders = gm.graph.find_nodes(op="placeholder")
        static = static_input_indices() if self.static is None else self.static
        if len(placeholders) == len(self.parameters):
            for place, node in enumerate(placeholders):
                if self.parameters[place] and (place in static or self.all_told):
                    node.meta["parameter"] = True
        return gm

    def _inputs(self, gm: GraphModule, kind: str) -> tuple[RegionInput, ...]:
        placeholders = gm.graph.find_nodes(op="placeholder")
        if kind == "backward":
            return tuple(RegionInput(n.name, role(n, "saved"), n.name in self.static_names) for n in placeholders)
        static = static_input_indices() if self.static is None else self.static
        return tuple(RegionInput(n.name, role(n, "primal"), i in static) for i, n in enumerate(placeholders))


def _placeholder_values(gm: GraphModule) -> list[tuple[Node, Any]]:
    return [(n, n.meta.get("val")) for n in gm.graph.find_nodes(op="placeholder")]


def role(node: Node, otherwise: str) -> str:
    """What an input of a joint or backward graph is: a tangent, a symbol or, a tensor, ``otherwise``."""
    if "tangents" in str(node.target):
        return "tangent"
    return otherwise if _is_tensor(node.meta.get("val")) else "symbol"


def device_of(gm: GraphModule) -> str:
    """The type of device most of the graph's inputs live on."""
    types = [n.meta["val"].device.type for n in gm.graph.find_nodes(op="placeholder") if _is_tensor(n.meta.get("val"))]
    return max(types, key=types.count, default="cpu")


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def _in_one_memory(gm: GraphModule, results: int) -> tuple[tuple[int, int], ...]:
    """Pairs of the first ``results`` outputs that kernels may return as one tensor: one is ``detach`` of the other."""
    outputs: Any = gm.graph.output_node().args[0]
    memories: dict[Node, list[int]] = {}
    for place, node in enumerate(outputs[:results]):
        if isinstance(node, Node) and _is_tensor(node.meta.get("val")):
            memories.setdefault(_of_one_value(node), []).append(place)
    pairs = (pair for places in memories.values() for pair in itertools.combinations(places, 2))
    return tuple((i, j) for i, j in pairs if may_be_alike(outputs[i].meta["val"], outputs[j].meta["val"]))


def _of_one_value(node: Node) -> Node:
    """The first of the values that ``node`` is a view or a copy of: kernels may return one tensor for several."""
    node = viewed(node)
    while node.target in _COPIES and isinstance(node.args[0], Node):
        node = viewed(node.args[0])
    return node


def _emptied(arguments: list[Any]) -> list[Any]:
    """What is in a list that is handed over."""
    inputs = list(arguments)
    arguments.clear()
    return inputs


def _boxed(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """``compiled`` marked as taking one list, which AOTAutograd then hands over without copying it."""
    if is_boxed(compiled):
        return compiled

    def call(args: list[Any]) -> Any:
        return compiled(args)

    return boxed(call)
