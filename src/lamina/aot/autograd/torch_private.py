"""Private torch names for AOTAutograd and for autograd functions, as read in torch 2.11 to 2.13."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch._functorch.config as functorch_config
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd import runtime_wrappers
from torch._functorch._aot_autograd.descriptors import (
    InputMutationAOTOutput,
    IntermediateBaseAOTOutput,
    PlainAOTInput,
    PlainAOTOutput,
)
from torch._functorch._aot_autograd.runtime_wrappers import RuntimeWrapper
from torch._functorch._aot_autograd.schemas import OutputType, PlainTensorMeta
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import HANDLED_TYPES

from lamina.aot.scalars.torch_private import exact_integers
from lamina.aot.torch_private import never_captured

__all__ = [
    "Applied",
    "differentiable_places",
    "gives_results",
    "history_of_results",
    "noted_writes",
    "only_viewed",
    "results_keep_versions",
    "run_aot_autograd",
    "static_input_indices",
    "torch_partition",
    "without_donations",
    "written_inputs",
]

Compiler = Callable[[GraphModule, Sequence[Any]], Callable[..., Any]]
Partition = Callable[..., tuple[GraphModule, GraphModule]]

_SETTINGS = {
    # A donated buffer makes backward(retain_graph=True) an error where eager allows it.
    "donated_buffer": False,
    # Gradients are computed where the user calls backward, as a rule outside of the forward's autocast.
    "backward_pass_autocast": "off",
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
    applied: Callable[[Applied], None],
    as_results: bool = True,
    unversioned: Collection[int] = (),
) -> Callable[..., Any]:
    """Trace, differentiate and partition ``gm`` with torch's AOTAutograd and compile the pieces with the given ones.

    ``applied`` is told the autograd function that it makes, if it differentiates. ``as_results``: gradients that arrive
    get the strides of the results they belong to. The versions of inputs that are ``unversioned`` do not rise.
    """
    backend = aot_autograd(
        fw_compiler=forward,
        bw_compiler=backward,
        inference_compiler=inference,
        partition_fn=partition,
        decompositions=decompositions,
        keep_inference_input_mutations=True,
    )
    now = _Compilation(applied, len(example_inputs), unversioned, any(map(_is_of_a_class, example_inputs)))
    with _settings(guess_tangent_strides_as_outputs=as_results), _compiling(now), exact_integers():
        compiled: Callable[..., Any] = backend(gm, example_inputs)
    return compiled


def _is_of_a_class(value: object) -> bool:
    """Whether ``value`` is a tensor of a class of the user's."""
    return (
        isinstance(value, torch.Tensor) and type(value) not in HANDLED_TYPES and type(value.data) not in HANDLED_TYPES
    )


class Applied:
    """AOTAutograd's autograd ``function`` for a graph, and what the graph ``call``s with its inputs: its ``apply``.

    Another may be put in its place. It returns the new values of the inputs that are written to, the results, and what
    results are views of: before inputs are written to and views are made again, which then happens to what it returns.
    """

    __slots__ = ("call", "function")

    def __init__(self, apply: Any) -> None:
        self.call: Callable[..., Any] = apply
        self.function: Any = apply.__self__


@dataclass(frozen=True, slots=True)
class _Compilation:
    """What holds for one compilation by AOTAutograd.

    ``told`` is given each autograd function that it makes. Of ``count`` inputs the ``unversioned`` are written to
    without a rise of their versions, where they are told apart. ``unwatched``: no mode looks at the first call of what
    is compiled.
    """

    told: Callable[[Applied], None]
    count: int
    unversioned: Collection[int]
    unwatched: bool


class _Thread(threading.local):
    """The compilation of this thread: another one may compile for another compiler meanwhile."""

    now: _Compilation | None = None


_thread = _Thread()


@contextlib.contextmanager
def _compiling(compilation: _Compilation) -> Iterator[None]:
    before, _thread.now = _thread.now, compilation
    try:
        yield
    finally:
        _thread.now = before


def _hear_of_functions() -> None:
    usual: Any = RuntimeWrapper.post_compile

    @functools.wraps(usual)
    def post_compile(self: RuntimeWrapper, compiled: Any, *arguments: Any, **keywords: Any) -> Any:
        now = _thread.now
        if now is None:
            return usual(self, compiled, *arguments, **keywords)
        metadata = keywords["runtime_metadata"]
        if len(metadata.input_info) == now.count:
            raised = metadata.mutated_graph_handled_indices_seen_by_autograd
            metadata.mutated_graph_handled_indices_seen_by_autograd = [i for i in raised if i not in now.unversioned]
        if not self.trace_joint or not hasattr(compiled, "__self__"):
            return usual(self, compiled, *arguments, **keywords)
        applied = Applied(compiled)

        def run(*inputs: Any) -> Any:
            return applied.call(*inputs)

        never_captured(run)
        now.told(applied)
        return usual(self, run, *arguments, **keywords)

    RuntimeWrapper.post_compile = post_compile  # type: ignore[method-assign, assignment]


def _leave_first_calls_unwatched() -> None:
    """Let what is compiled for tensors of the user's classes not run in a mode at first.

    The mode (2.13) looks for results of custom operators that share memory with operands. It refuses operations on
    tensors of other classes, which have no answer of their own.
    """
    kind: Any = getattr(runtime_wrappers, "_FirstInvocationContext", None)
    if kind is None:
        return
    usual = kind.__init__

    @functools.wraps(usual)
    def begin(self: Any) -> None:
        usual(self)
        if _thread.now is not None and _thread.now.unwatched:
            self._is_first = False

    kind.__init__ = begin


_hear_of_functions()
_leave_first_calls_unwatched()


@contextlib.contextmanager
def _settings(**more: bool) -> Iterator[None]:
    """AOTAutograd's settings for one compilation; those this torch does not know are left out."""
    with functorch_config.patch({k: v for k, v in (_SETTINGS | more).items() if hasattr(functorch_config, k)}):
        yield


def written_inputs(count: int) -> tuple[int, ...]:
    """Places of the inputs, ``count`` in all, that the graph just compiled by AOTAutograd writes to.

    All of them where some lie in one storage that it writes to: it takes these as one input.
    """
    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    if metadata is None:
        return tuple(range(count))
    places = tuple(i for i, info in enumerate(metadata.input_info) if info.mutates_data or info.mutates_metadata)
    return places if len(metadata.input_info) == count or not places else tuple(range(count))


def noted_writes(count: int) -> tuple[int, ...] | None:
    """Inputs whose versions rise where what AOTAutograd has just compiled is its graph as it stands; None where not.

    The graph, of ``count`` inputs and without gradients, does all writes to inputs itself, each result is a tensor of
    its own, and no mode is switched.
    """
    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    if metadata is None or len(metadata.input_info) != count or torch._C._is_any_autocast_enabled():
        return None
    if metadata.num_intermediate_bases or metadata.grad_enabled_mutation is not None or metadata.tokens:
        return None
    if metadata.mutated_inp_runtime_indices or any(info.mutates_metadata for info in metadata.input_info):
        return None
    plain = all(type(one) is PlainTensorMeta for one in metadata.subclass_inp_meta)
    if not plain or any(info.output_type is not OutputType.non_alias for info in metadata.output_info):
        return None
    return tuple(metadata.mutated_graph_handled_indices_seen_by_autograd)


def results_keep_versions() -> None:
    """Have results of the forward being compiled for AOTAutograd come back as the tensors that the forward gives.

    AOTAutograd gives a view of a value inside the graph a version of its own, as autograd lets nobody write to a view
    that a custom function returns. What forwards give here are views of nothing, and a write to one that is saved as
    well must be seen.
    """
    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    if metadata is not None:
        metadata.unsafe_view_out_indices, metadata.num_unsafe_view_outputs = [], 0


def without_donations(function: Any) -> None:
    """Note that AOTAutograd's ``function`` donates no buffer: it asks for the setting again when it runs.

    What it does not know it takes for donated, and refuses a backward that retains the graph.
    """
    function.metadata.bw_donated_idxs = []


def differentiable_places(function: Any, alike: bool) -> tuple[tuple[tuple[str, int], ...], tuple[int, ...]] | None:
    """What each gradient that AOTAutograd's ``function`` takes is of, and where its node gets it.

    That is the "result", or the written "input", at a place; for a result, which may be a view of what the gradient is
    of. None if that is not known. ``alike``: the function has the inputs of the graph; else it counts them differently.
    """
    metadata = function.metadata
    written = list(metadata.mutated_inp_runtime_indices)
    bases = len(written) + len(metadata.output_info)
    places, given = [], []
    for description in getattr(metadata, "traced_tangents_descs", ()):
        output: Any = getattr(description, "output", None)
        if alike and isinstance(output, InputMutationAOTOutput) and isinstance(output.mutated_input, PlainAOTInput):
            places.append(("input", output.mutated_input.idx))
            given.append(written.index(output.mutated_input.idx))
        elif isinstance(output, PlainAOTOutput):
            places.append(("result", output.idx))
            given.append(len(written) + output.idx)
        elif isinstance(output, IntermediateBaseAOTOutput) and isinstance(output.base_of, PlainAOTOutput):
            places.append(("result", output.base_of.idx))
            given.append(bases)
            bases += 1
        else:
            return None
    return (tuple(places), tuple(given)) if places else None


def gives_results(function: Any, count: int) -> bool:
    """Whether AOTAutograd's ``function`` gives just the ``count`` results of the graph, each a tensor of its own."""
    metadata = function.metadata
    own = (OutputType.non_alias, OutputType.unsafe_view_alias)
    plain = not metadata.mutated_inp_runtime_indices and not metadata.num_intermediate_bases
    plain = plain and not metadata.tokens and all(type(one) is PlainTensorMeta for one in metadata.subclass_inp_meta)
    return plain and [one.output_type in own for one in metadata.output_info] == [True] * count


def history_of_results() -> frozenset[int]:
    """Inputs that results of the graph being compiled by AOTAutograd are views of, or are, and those it writes to."""
    bases, written = _bases_and_written()
    return bases | written


def only_viewed() -> frozenset[int]:
    """Inputs that results of that graph are views of, or are, without those it writes to."""
    bases, written = _bases_and_written()
    return bases - written


def _bases_and_written() -> tuple[frozenset[int], frozenset[int]]:
    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    if metadata is None:
        return frozenset(), frozenset()
    bases = {info.base_idx for info in metadata.output_info if info.base_idx is not None}
    written = {i for i, info in enumerate(metadata.input_info) if info.mutates_data or info.mutates_metadata}
    return frozenset(bases), frozenset(written)


def static_input_indices() -> frozenset[int]:
    """Positions of parameters and buffers among the inputs of the graph being compiled."""
    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    return frozenset() if metadata is None else frozenset(metadata.static_input_indices or ())


def torch_partition(joint: GraphModule, inputs: Any, **keywords: Any) -> tuple[GraphModule, GraphModule]:
    """Torch's own min-cut partitioner, for what ours leaves to it; states of generators are passed as tensors."""
    with functorch_config.patch(graphsafe_rng_functionalization=False):
        forward, backward = min_cut_rematerialization_partition(joint, inputs, **keywords)
    return forward, backward
