"""Every private torch name that ahead-of-time autograd uses, with the versions it was read in (2.11 to 2.13)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch._functorch.config as functorch_config
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext
from torch.fx import Graph, GraphModule, Node
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.fx.experimental.symbolic_shapes import find_symbol_binding_fx_nodes, free_symbols

__all__ = [
    "binding_nodes",
    "graph_module",
    "hint",
    "is_checkpointed",
    "run_aot_autograd",
    "static_input_indices",
    "symbols_of",
    "torch_partition",
]

Compiler = Callable[[GraphModule, Sequence[Any]], Callable[..., Any]]
Partition = Callable[..., tuple[GraphModule, GraphModule]]

_SETTINGS = {
    # A donated buffer makes backward(retain_graph=True) an error where eager allows it.
    "donated_buffer": False,
}


def run_aot_autograd(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    forward: Compiler,
    backward: Compiler,
    inference: Compiler,
    partition: Partition,
    decompositions: dict[Any, Callable[..., Any]],
) -> Callable[..., Any]:
    """Trace, differentiate and partition ``gm`` with torch's AOTAutograd and compile the pieces with the given ones."""
    backend = aot_autograd(
        fw_compiler=forward,
        bw_compiler=backward,
        inference_compiler=inference,
        partition_fn=partition,
        decompositions=decompositions,
        keep_inference_input_mutations=True,
    )
    with _settings():
        compiled: Callable[..., Any] = backend(gm, example_inputs)
    return compiled


@contextlib.contextmanager
def _settings() -> Iterator[None]:
    """AOTAutograd's settings for one compilation; those this torch does not know are left out."""
    with functorch_config.patch({k: v for k, v in _SETTINGS.items() if hasattr(functorch_config, k)}):
        yield


def static_input_indices() -> frozenset[int]:
    """Positions of parameters and buffers among the inputs of the graph being compiled."""
    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    return frozenset() if metadata is None else frozenset(metadata.static_input_indices or ())


def graph_module(root: GraphModule, graph: Graph) -> GraphModule:
    """A graph module whose Python code is only generated when something runs or prints it."""
    return _LazyGraphModule(root, graph)


def hint(size: int | torch.SymInt) -> int:
    """A likely value of ``size``, with no guard added; 4096 for a size nobody knows."""
    if not isinstance(size, torch.SymInt):
        return int(size)
    value = size.node._hint
    return 4096 if value is None else int(value)


def symbols_of(value: Any) -> list[Any]:
    """The symbols in the sizes, strides and offset of ``value``, in name order."""
    return sorted(free_symbols(value), key=lambda s: str(s.name))


def binding_nodes(graph: Graph) -> dict[Any, Node]:
    """Symbol to the node of ``graph`` whose value it is."""
    return dict(find_symbol_binding_fx_nodes(graph))


def is_checkpointed(node: Node) -> bool:
    """Whether the user's activation checkpointing has a say on ``node``."""
    return node.meta.get("recompute") is not None


def torch_partition(joint: GraphModule, inputs: Any, **keywords: Any) -> tuple[GraphModule, GraphModule]:
    """Torch's own min-cut partitioner, for what ours leaves to it."""
    forward, backward = min_cut_rematerialization_partition(joint, inputs, **keywords)
    return forward, backward
