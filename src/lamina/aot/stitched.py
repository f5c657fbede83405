"""Compiles a stitched graph: its inference graph, or its forward now and its backward when first needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from lamina.aot.absent import needs_saved, without_absent, without_saved
from lamina.aot.asked import mark_asked
from lamina.aot.backwards import Backward, CompileBackward, Strides, Tangent
from lamina.aot.differentiable import Rerun
from lamina.aot.eager_history import Again
from lamina.aot.function import inference_function, training_function
from lamina.aot.graph_compiler import GraphCompiler, role
from lamina.aot.stitch import Stitched
from lamina.aot.tangents import restrided
from lamina.aot.torch_private import without_autocast
from lamina.base.collector import collector_held

__all__ = ["compile_stitched"]


def compile_stitched(
    graphs: GraphCompiler, stitched: Stitched, captured: GraphModule, again: Again
) -> Callable[..., Any]:
    """Partition and compile what was stitched of ``captured``; backwards may follow others as ``again`` knows."""
    graphs.static = frozenset(stitched.static)
    inputs = [n.meta["val"] for n in stitched.joint.graph.find_nodes(op="placeholder") if role(n, "") != "tangent"]
    if not stitched.differentiable:
        compiled = graphs.compiler("inference")(stitched.joint, inputs)
        return inference_function(compiled, stitched.mutated, stitched.trained)
    tangents = [n.meta["val"] for n in stitched.joint.graph.find_nodes(op="placeholder") if role(n, "") == "tangent"]
    mark_asked(stitched.joint, stitched.results)
    joint = graphs.prepared(stitched.joint)
    reached = [s is not None for s in stitched.tangents_of]
    rerun = Rerun(captured, reached, stitched.mutated, graphs.notes, graphs.differentiable)
    return _training(graphs, stitched, joint, inputs, tangents, again, rerun)


def _training(
    graphs: GraphCompiler,
    stitched: Stitched,
    joint: GraphModule,
    inputs: Sequence[Any],
    tangents: Sequence[torch.Tensor],
    again: Again,
    rerun: Rerun,
) -> Callable[..., Any]:
    graphs.begun = True
    forward, backward = graphs.split(joint, None, stitched.results, stitched.static)
    compiled = graphs.compiler("forward")(forward, inputs)
    places: list[Tangent | None] = [None] * stitched.results
    for place, fake in zip(stitched.differentiable, tangents, strict=True):
        places[place] = Tangent(tuple(fake.shape), tuple(fake.stride()), fake.dtype, fake.device)

    usual = _compile_backward(graphs, backward)
    rereading = None if graphs.rereading is None else _compile_backward(graphs, graphs.rereading)
    return training_function(
        compiled,
        usual,
        stitched.results,
        places,
        stitched.tangents_of,
        stitched.mutated,
        rereads=graphs.reread,
        compile_rereading=rereading,
        again=again,
        rerun=rerun,
        name=graphs.name,
        where=graphs.notes.place,
    )


def _compile_backward(graphs: GraphCompiler, backward: GraphModule) -> CompileBackward:
    """Compiles a backward of a stitched graph for gradients of any strides."""
    gradients = [n.name for n in backward.graph.find_nodes(op="placeholder") if role(n, "") == "tangent"]

    def graph_for(strides: Strides | None) -> GraphModule | None:
        if strides is None:
            return backward
        there = {name: stride for name, stride in zip(gradients, strides, strict=True) if stride is not None}
        absent = [name for name in gradients if name not in there]
        graph = without_absent(backward, gradients, absent) if absent else backward
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
                reads = tuple(i for i, n in enumerate(places) if n.users and n.name not in gradients)
                partial = strides is not None and None in strides
                run = graphs.compiler("backward")(graph, [n.meta["val"] for n in places])
                return Backward(run, alone, partial, reads)
        except Exception as error:
            graphs.without(error, "backward", f"{graphs.name}_backward")
        return Backward(graphs.as_aten(backward)) if strides is None else None

    return compile
