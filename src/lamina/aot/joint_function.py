"""A joint graph as a callable: its compiled inference graph, or its forward and a backward compiled when needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule

from lamina.aot.backwards import Backward, Boxed, CompileBackward, Strides, Tangent
from lamina.aot.captured import Captured
from lamina.aot.differentiable import Rerun
from lamina.aot.eager_history import held_by_eager
from lamina.aot.engine.again import Again
from lamina.aot.function import inference_function, training_function
from lamina.aot.graph_compiler import GraphCompiler, role
from lamina.aot.joint_tracing import JointGraph
from lamina.aot.norm_statistics import kept_by_norms
from lamina.aot.overlap import how_often_written
from lamina.aot.partition import Partition
from lamina.aot.tangents import restrided
from lamina.aot.torch_private import without_autocast
from lamina.aot.undefined_gradients import needs_saved, read_or_telling, without_saved, without_undefined
from lamina.base.collector import collector_held

__all__ = ["inputs_of", "with_training", "without_training"]


def inputs_of(joint: GraphModule) -> list[Any]:
    """The fake inputs of a joint graph, without its tangents."""
    return [n.meta["val"] for n in joint.graph.find_nodes(op="placeholder") if role(n, "") != "tangent"]


def without_training(traced: JointGraph, captured: Captured, compiled: Boxed) -> Callable[..., Any]:
    """A joint graph without gradients as a function of its inputs."""
    return inference_function(compiled, _versions_raised(traced, captured.graph), traced.trained)


def with_training(
    graphs: GraphCompiler, traced: JointGraph, captured: Captured, halves: Partition, forward: Boxed
) -> Callable[..., Any]:
    """A joint graph as a differentiable function of its inputs, of its compiled ``forward``.

    The backward is compiled when it is first needed. Others may follow it as eager's may.
    """
    tangents = [n.meta["val"] for n in traced.joint.graph.find_nodes(op="placeholder") if role(n, "") == "tangent"]
    places: list[Tangent | None] = [None] * traced.results
    for place, fake in zip(traced.differentiable, tangents, strict=True):
        places[place] = Tangent(tuple(fake.shape), tuple(fake.stride()), fake.dtype, fake.device)
    results = [("result", i) for i in traced.differentiable]
    again = Again(held_by_eager(captured.graph, captured.example_inputs, results), graphs.notes)
    reached = [s is not None for s in traced.tangents_of]
    rerun = Rerun(captured.graph, reached, traced.mutated, graphs.notes, graphs.differentiable)
    usual = _compile_backward(graphs, halves.backward)
    rereading = None if halves.rereading is None else _compile_backward(graphs, halves.rereading)
    return training_function(
        forward,
        usual,
        traced.results,
        places,
        traced.tangents_of,
        _versions_raised(traced, captured.graph),
        rereads=halves.rereads,
        compile_rereading=rereading,
        again=again,
        rerun=rerun,
        name=graphs.name,
        where=graphs.notes.place,
    )


def _versions_raised(traced: JointGraph, gm: GraphModule) -> tuple[int, ...]:
    """The inputs whose version rises where the graph is called, each as often as calls of the graph write to it."""
    if not traced.mutated:
        return ()
    kept, times = kept_by_norms(gm), how_often_written(gm)
    return tuple(i for i in traced.mutated if i not in kept for _ in range(max(1, times[i])))


def _compile_backward(graphs: GraphCompiler, backward: GraphModule) -> CompileBackward:
    """Compiles a backward of a joint graph for gradients of any strides."""
    gradients = [n.name for n in backward.graph.find_nodes(op="placeholder") if role(n, "") == "tangent"]

    def graph_for(strides: Strides | None) -> GraphModule | None:
        if strides is None:
            return backward
        there = {name: stride for name, stride in zip(gradients, strides, strict=True) if stride is not None}
        undefined = [name for name in gradients if name not in there]
        graph = without_undefined(backward, gradients, undefined) if undefined else backward
        if graph is None:
            return None
        given = graph.graph.find_nodes(op="placeholder")
        if all(n.meta["val"].stride() == there[n.name] for n in given if n.name in there):
            return graph
        return restrided(graph, there)

    def compile(strides: Strides | None) -> Backward | None:
        try:
            with torch.no_grad(), without_autocast(), collector_held(lasting=True):
                graph = graph_for(strides)
                if graph is None:
                    return None
                alone = strides is not None and not needs_saved(graph, gradients)
                if alone:
                    graph = without_saved(graph, gradients)
                places = graph.graph.find_nodes(op="placeholder")
                read = read_or_telling(graph).difference(gradients)
                reads = tuple(i for i, n in enumerate(places) if n.name in read)
                partial = strides is not None and None in strides
                run = graphs.compiled("backward", graph, [n.meta["val"] for n in places])
                return Backward(run, alone, partial, reads)
        except Exception as error:
            graphs.without(error, "backward", f"{graphs.name}_backward")
        return Backward(graphs.as_aten(backward)) if strides is None else None

    return compile
