"""One graph run by one backend: what it takes goes to its ``compile``, what it does not to its fallback."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from lamina.aot.region import Region
from lamina.backends.api import Backend, accepted
from lamina.backends.graph_cache import cached_graph
from lamina.backends.kernels import is_ours
from lamina.backends.reasons import GRAPH_REFUSED
from lamina.backends.regions import Boxed
from lamina.backends.registry import as_backend
from lamina.backends.results import check_callable, checked, checked_once
from lamina.backends.subgraphs import Subgraph, split, without_writes
from lamina.backends.torch_private import outside_of_tracing
from lamina.base.decision import Decision
from lamina.base.identity import place_of
from lamina.base.torch_private import boxed, versions_kept
from lamina.errors import BackendFailed, LaminaError
from lamina.first_call.check import checked_first_call
from lamina.options import Options
from lamina.record import Record
from lamina.tuning.backends import fastest

__all__ = ["run_captured", "run_region", "willing"]


CompileKernels = Callable[[GraphModule, str, Backend], Boxed]
"""Compiles a graph that a backend of ours takes, under a name."""


def run_region(
    backend: Backend, region: Region, options: Options, record: Record, compile_kernels: CompileKernels
) -> Boxed:
    """A functional graph compiled by ``backend`` and, where that does not take it, by its fallback.

    What is for a backend whose ``kernels`` follow stages of the driver's own, goes to ``compile_kernels``.
    """
    job = _Job(region.name, region.kind, options, record, compile_kernels)
    return job.whole(backend, region.gm, region.example_inputs)


def willing(
    backend: Backend,
    gm: GraphModule,
    example_inputs: Sequence[Any],
    record: Record,
    name: str,
    refused: tuple[Backend, ...] = (),
) -> Backend:
    """``backend``, or if it asks for graphs of torch calls and does not take this one, the first fallback that does."""
    if backend.graph != "torch":
        return backend
    tensors = [x for x in example_inputs if isinstance(x, torch.Tensor)]
    training = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    why = backend.refuses_graph(gm, "forward" if training else "inference")
    if not why:
        why = next(filter(None, (_refuses(backend, node) for node in gm.graph.nodes)), "")
    if not why:
        return backend
    fallback, refused = as_backend(backend.fallback), (*refused, backend)
    if fallback in refused:
        raise _nobody(refused, name, why)
    decision = Decision("backend", (backend.name, fallback.name), False, GRAPH_REFUSED(why=why))
    record.note(name, "backend", decision)
    return willing(fallback, gm, example_inputs, record, name, refused)


def run_captured(
    backend: Backend, gm: GraphModule, example_inputs: Sequence[Any], options: Options, record: Record, name: str
) -> Callable[..., Any]:
    """A graph of torch calls compiled by a backend that asks for such."""
    compiled = _Job(name, "captured", options, record).compiled(backend, gm, example_inputs, name)
    return compiled if compiled == gm.forward else checked_once(compiled, gm, backend.name, name)


def _nobody(refused: Sequence[Backend], name: str, why: str) -> BackendFailed:
    names = " nor ".join(repr(backend.name) for backend in refused)
    return BackendFailed(
        f"neither {names} takes {name}, and the last falls back to one of them: {why}"
        if len(refused) > 1
        else f"backend {names} does not take {name}, nor does its fallback: {why}",
        remedy='give one of them a fallback that takes every graph, such as "eager"',
    )


def _refuses(backend: Backend, node: Node) -> str:
    return backend.refuses(node) if node.op in ("call_function", "call_method", "call_module") else ""


class _Call(torch.nn.Module):
    """A compiled part in the place of its graph."""

    def __init__(self, run: Boxed) -> None:
        super().__init__()
        self.run = run

    def forward(self, *inputs: Any) -> Any:
        return self.run(list(inputs))


class _Job:
    """The compilation of one graph: what every backend with a part in it is told."""

    def __init__(
        self, name: str, kind: str, options: Options, record: Record, compile_kernels: CompileKernels | None = None
    ) -> None:
        self.name, self.kind, self.options, self.record = name, kind, options, record
        self.compile_kernels = compile_kernels
        self.refused: list[Backend] = []

    def whole(self, backend: Backend, gm: GraphModule, example_inputs: Sequence[Any]) -> Boxed:
        """The graph, its writes to inputs made outside of backends that do not know them."""
        why = backend.refuses_graph(gm, self.kind)
        if why:
            fallback = self.declined(backend, self.name, why)
            return self.whole(fallback, gm, example_inputs)
        functional, writes = (gm, ()) if backend.writes else without_writes(gm)
        if backend.takes_all:
            run = self.one(backend, functional, example_inputs, self.name)
        else:
            run = self.subgraphs(backend, functional, example_inputs)
        return _writing(run, writes) if writes else run

    def subgraphs(self, backend: Backend, gm: GraphModule, example_inputs: Sequence[Any]) -> Boxed:
        """The graph split by what ``backend`` takes; undivided when it takes everything."""
        answers = [_refuses(backend, n) for n in gm.graph.nodes if n.op == "call_function" and _has_tensor(n)]
        if not any(answers):
            return self.one(backend, gm, example_inputs, self.name)
        if all(answers):
            return self.whole(self.declined(backend, self.name, answers[0]), gm, example_inputs)
        start = time.perf_counter()
        found = split(gm, self.name, backend.refuses)
        fallback = as_backend(backend.fallback)
        self.record.add(self.name, "split", time.perf_counter() - start, found, found.decisions)
        for subgraph in found.subgraphs:
            self._place(found.gm, subgraph, backend if subgraph.taken else fallback)
        outer = found.gm

        def call(args: list[Any]) -> Any:
            inputs = list(args)
            args.clear()
            return list(outer.forward(*inputs))

        return boxed(call)

    def _place(self, outer: GraphModule, subgraph: Subgraph, backend: Backend) -> None:
        inputs = [node.meta["val"] for node in subgraph.gm.graph.find_nodes(op="placeholder")]
        if subgraph.taken:
            run = self.one(backend, subgraph.gm, inputs, subgraph.name)
        else:
            inner = _Job(subgraph.name, self.kind, self.options, self.record, self.compile_kernels)
            run = inner.whole(backend, subgraph.gm, inputs)
        setattr(outer, subgraph.name, _Call(run))

    def one(self, backend: Backend, gm: GraphModule, example_inputs: Sequence[Any], name: str) -> Boxed:
        """A graph that ``backend`` takes as a whole, or declines after all."""
        start = time.perf_counter()
        try:
            compiled = self.compiled(backend, gm, example_inputs, name)
        except NotImplementedError as why:
            return self.whole(self.declined(backend, name, str(why) or "it declines the graph"), gm, example_inputs)
        if is_ours(backend):
            return compiled
        self.record.add(name, backend.name, time.perf_counter() - start)
        run = checked_first_call(checked(compiled, gm, backend.name, name), gm, name, self.options, self.record)
        if backend.candidates is None or not self.options.mode.startswith("max-autotune"):
            return run
        others = [other for other in backend.candidates(gm, example_inputs) if other != backend]
        runs = {other.name: self._candidate(other, gm, example_inputs, name) for other in others}
        return fastest({backend.name: run, **runs}, name, self.record)

    def _candidate(self, backend: Backend, gm: GraphModule, example_inputs: Sequence[Any], name: str) -> Boxed:
        return checked(self.compiled(backend, gm, example_inputs, name), gm, backend.name, name)

    def compiled(self, backend: Backend, gm: GraphModule, example_inputs: Sequence[Any], name: str) -> Boxed:
        """What ``backend`` compiles the graph to. Raises ``NotImplementedError`` where it declines it."""
        if backend.compile is None:
            assert self.compile_kernels is not None
            return self.compile_kernels(gm, name, backend)
        told = {"name": name, "kind": self.kind, "options": self.options, "record": self.record}
        inputs, function = list(example_inputs), backend.compile

        def compile() -> Boxed:
            compiled: Boxed = function(gm, inputs, **accepted(function, told))
            check_callable(compiled, function, backend.name, name)
            return compiled

        if backend.graph == "torch":
            return compile()
        try:
            with outside_of_tracing():
                if backend.save is None:
                    return compile()
                return cached_graph(backend, gm, inputs, self.options, compile, name, self.kind)
        except (LaminaError, NotImplementedError):
            raise
        except Exception as error:
            raise BackendFailed(
                f"backend {backend.name!r} failed to compile {name}: {type(error).__name__}: {error}",
                where=place_of(backend.compile),
                remedy="raise NotImplementedError in it for a graph that it does not take, or give it a supports=",
            ) from error

    def declined(self, backend: Backend, name: str, why: str) -> Backend:
        """The fallback of ``backend``, after a note of why it is called for."""
        fallback = as_backend(backend.fallback)
        self.refused.append(backend)
        if fallback in self.refused:
            raise _nobody(self.refused, name, why)
        decision = Decision("backend", (name, backend.name, fallback.name), False, GRAPH_REFUSED(why=why))
        self.record.note(name, "backend", decision)
        return fallback


def _has_tensor(node: Node) -> bool:
    return not isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool))


def _writing(run: Boxed, writes: tuple[tuple[int, int], ...]) -> Boxed:
    """``run``, whose last outputs are new values of inputs, with those written at the end of each call."""

    def call(args: list[Any]) -> list[Any]:
        written = [args[destination] for destination, _ in writes]
        outputs = list(run(args))
        with torch.no_grad(), versions_kept(written):
            for tensor, (_, source) in zip(written, writes, strict=True):
                tensor.copy_(outputs[source])
        return outputs[: len(outputs) - len(writes)]

    return boxed(call)
