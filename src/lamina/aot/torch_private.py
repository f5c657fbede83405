"""Every private torch name that ahead-of-time autograd uses, with the versions it was read in (2.11 to 2.13)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch._functorch.config as functorch_config
import torch.utils._pytree as pytree
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import preserve_rng_state
from torch._functorch._aot_autograd.functional_utils import from_fun, has_data_mutation, has_metadata_mutation, to_fun
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext, detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx
from torch.fx.experimental.symbolic_shapes import find_symbol_binding_fx_nodes, free_symbols

__all__ = [
    "ENTER_AUTOCAST",
    "SET_GRAD",
    "STATELESS",
    "CallTrace",
    "autocast_enabled",
    "backend_fakes",
    "binding_nodes",
    "flatten",
    "graph_module",
    "hint",
    "is_checkpointed",
    "is_fake",
    "plain_dispatch",
    "run_aot_autograd",
    "static_input_indices",
    "symbols_of",
    "torch_partition",
    "trace_call",
    "tracing_state",
    "unflatten",
    "without_autocast",
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


SET_GRAD = torch._C._set_grad_enabled
"""The call by which a captured graph switches gradients on and off."""

ENTER_AUTOCAST = torch.amp.autocast_mode._enter_autocast
"""The call by which a captured graph enters an autocast region; its fourth argument is whether that is enabled."""

STATELESS = (torch.amp.autocast_mode._exit_autocast, torch._C._log_api_usage_once)
"""Calls of captured graphs that compute nothing."""


def flatten(value: Any) -> tuple[list[Any], Any]:
    """The leaves of nested tuples, lists and dicts, and how they nest."""
    leaves, spec = pytree.tree_flatten(value)
    return leaves, spec


def unflatten(leaves: Sequence[Any], spec: Any) -> Any:
    """The inverse of ``flatten``."""
    return pytree.tree_unflatten(list(leaves), spec)


def backend_fakes(inputs: Sequence[torch.Tensor]) -> tuple[Any, list[torch.Tensor]]:
    """The FakeTensorMode Dynamo gives backends (None without one) and, of it, a fake of static size for each input."""
    mode = detect_fake_mode(list(inputs))
    if mode is None:
        return None, []
    return mode, [x if is_fake(x) else mode.from_tensor(x, static_shapes=True) for x in inputs]


def is_fake(value: object) -> bool:
    """Whether ``value`` is a FakeTensor."""
    return isinstance(value, FakeTensor)


def plain_dispatch() -> bool:
    """Whether operations mean what they mean without modes: no autocast, no function transform, no active mode."""
    return (
        not autocast_enabled()
        and torch._C._functorch.peek_interpreter_stack() is None
        and torch._C._len_torch_dispatch_stack() == 0
    )


@contextlib.contextmanager
def tracing_state(fake_mode: Any) -> Iterator[None]:
    """What tracing needs around it: the fake mode, Python decompositions, and the random generators left alone."""
    with preserve_rng_state(), fake_mode, enable_python_dispatcher():
        yield


def autocast_enabled() -> bool:
    """Whether autocast is on for any device."""
    return bool(torch._C._is_any_autocast_enabled())


def without_autocast() -> contextlib.AbstractContextManager[Any]:
    """Compiled graphs hold their casts already; library calls in them must not cast again."""
    disabled: contextlib.AbstractContextManager[Any] = torch._C._DisableAutocast()
    return disabled


@dataclass(frozen=True, slots=True)
class CallTrace:
    """One torch call as ATen operations.

    ``graph`` takes the ``primals`` tensors; ``calls`` are its calls in order: those of the forward, then one
    ``empty_strided`` for each tangent, then the backward's, ``forward_calls`` and ``tangents`` counting the first
    two. ``results`` are the call's tensors and then the tensors it wrote to, each once, as nodes of ``graph``,
    ``requires_grad`` whether each does, and ``structure`` the call's value with integers for tensors: i for
    result i, -1-i for primal i itself. ``updates`` maps a primal to the result that is its new value.
    ``gradients`` has a node or None for each primal that requires one.
    """

    calls: tuple[Node, ...]
    primals: tuple[Node, ...]
    forward_calls: int
    tangents: int
    results: tuple[Any, ...]
    requires_grad: tuple[bool, ...]
    structure: Any
    updates: tuple[tuple[int, int], ...]
    gradients: tuple[Any, ...]


def trace_call(
    call: Callable[[list[Any]], Any],
    primals: Sequence[torch.Tensor],
    written: Sequence[int],
    tangents: Sequence[Any] | None,
    decompositions: dict[Any, Callable[..., Any]],
) -> CallTrace | None:
    """Trace ``call`` on fake ``primals`` and its gradient, within ``tracing_state``; None when that cannot be plain.

    ``written`` are primals that the call is known to write to: where they require a gradient it gets a copy.
    ``tangents`` has for each result None or (size, stride, dtype); by default every result that requires a gradient
    has a tangent laid out as the result is.
    """
    found = _Found(call, written, tangents)
    with FunctionalTensorMode():
        gm = make_fx(found.run, decomposition_table=decompositions)(*primals)
    if found.irregular:
        return None
    nodes = list(gm.graph.nodes)
    calls = tuple(n for n in nodes if n.op == "call_function")
    if len(calls) + len(primals) + 1 != len(nodes):
        return None
    flat = list(nodes[-1].args[0])
    count = len(found.requires)
    return CallTrace(
        calls,
        tuple(nodes[: len(primals)]),
        found.forward_end - len(primals),
        found.tangents_end - found.forward_end,
        tuple(flat[:count]),
        tuple(found.requires),
        found.structure,
        tuple(found.updates),
        tuple(flat[count:]),
    )


class _Found:
    """What ``trace_call`` learns while the call runs."""

    def __init__(self, call: Callable[[list[Any]], Any], written: Sequence[int], tangents: Sequence[Any] | None):
        self.call, self.written, self.tangents = call, written, tangents
        self.irregular = False
        self.forward_end = self.tangents_end = 0
        self.requires: list[bool] = []
        self.updates: list[tuple[int, int]] = []
        self.structure: Any = None

    def run(self, *primals: torch.Tensor) -> list[Any]:
        key = torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)
        with torch._C._ExcludeDispatchKeyGuard(key):
            leaves = [to_fun(p) for p in primals]
            trained = [p for p in leaves if p.requires_grad]
            given = [p.clone() if i in self.written and p.requires_grad else p for i, p in enumerate(leaves)]
            results = self._results(leaves, given, self.call(list(given)))
            self.irregular = self.irregular or any(
                has_metadata_mutation(f, p, check_only_storage_mutation=False)
                for f, p in zip(leaves, primals, strict=True)
            )
            gradients = self._gradients(trained, results)
            return [None if t is None else from_fun(t) for t in (*results, *gradients)]

    def _results(self, leaves: list[Any], given: list[Any], value: Any) -> list[Any]:
        """The tensors of ``value`` and the tensors written to, each once."""
        flat, spec = pytree.tree_flatten(value)
        results: list[Any] = []
        for i, (leaf, used) in enumerate(zip(leaves, given, strict=True)):
            if used is not leaf or has_data_mutation(leaf):
                self.updates.append((i, len(results)))
                results.append(used)
        places = {id(t): i for i, t in enumerate(results)}
        inputs = {id(t): -1 - i for i, t in enumerate(leaves)}
        indices: list[Any] = []
        for item in flat if value is not None else ():
            if not isinstance(item, torch.Tensor):
                self.irregular = True
                break
            if id(item) not in places and id(item) not in inputs:
                places[id(item)] = len(results)
                results.append(item)
            indices.append(places[id(item)] if id(item) in places else inputs[id(item)])
        if value is not None and not self.irregular:
            self.structure = pytree.tree_unflatten(indices, spec)
        self.irregular = self.irregular or not (indices or self.updates)
        self.requires = [bool(t.requires_grad) for t in results]
        return results

    def _gradients(self, wanted: list[Any], results: list[Any]) -> list[Any]:
        self.forward_end = self.tangents_end = _traced()
        if self.irregular or not wanted or not any(self.requires):
            return [None] * len(wanted)
        default = [(t.shape, t.stride(), t.dtype) if t.requires_grad else None for t in results]
        shapes = default if self.tangents is None else self.tangents
        outputs = [t for t, shape in zip(results, shapes, strict=True) if shape is not None]
        tangents = [
            torch.empty_strided(shape[0], shape[1], dtype=shape[2], device=t.device)
            for t, shape in zip(results, shapes, strict=True)
            if shape is not None
        ]
        self.tangents_end = _traced()
        return list(torch.autograd.grad(outputs, wanted, tangents, allow_unused=True))


def _traced() -> int:
    """How many nodes the trace in progress has."""
    mode = get_proxy_mode()
    return 0 if mode is None else len(mode.tracer.graph.nodes)
