"""Compilation with a record that keeps graphs between rewrites, and what graphs and regions are first called with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule

from lamina.aot.partition import Partition
from lamina.backends.registry import as_backend
from lamina.backends.settings import options_for
from lamina.base.decision import Decision
from lamina.base.devices import kind_of
from lamina.base.fx.copying import copy_nodes
from lamina.base.fx.torch_private import graph_module
from lamina.base.reference import copied
from lamina.base.rng_state import rng_state, set_rng_state
from lamina.base.symbolic.torch_private import is_fake
from lamina.base.torch_private import boxed
from lamina.compile import compile_recorded
from lamina.options import Options
from lamina.record import Record

__all__ = ["Generators", "GraphCall", "Observed", "RegionCall", "Snapshot", "compile_observed", "duplicate"]


def duplicate(gm: GraphModule) -> GraphModule:
    """A graph module of its own with equal nodes of the same names, which later changes of ``gm`` leave alone."""
    graph = Graph()
    copy_nodes(graph, gm.graph.nodes)
    return graph_module(gm, graph)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The ``graph`` of a place ("captured", "joint", ...) after a ``rewrite``; "" before the first."""

    graph: str
    place: str
    rewrite: str
    gm: GraphModule


class Generators:
    """The states of the devices' random generators, to draw the same numbers again."""

    def __init__(self, values: Any) -> None:
        devices = {x.device for x in values if isinstance(x, Tensor) and kind_of(x).queued}
        self.states = {device: rng_state(device) for device in (torch.device("cpu"), *devices)}

    def again(self) -> None:
        """Set the generators back."""
        for device, state in self.states.items():
            set_rng_state(state, device)


@dataclass(frozen=True, slots=True)
class GraphCall:
    """The first call of a captured graph: copies of its ``inputs``, and whether gradients were recorded."""

    inputs: list[Any]
    gradients: bool
    generators: Generators


@dataclass(frozen=True, slots=True)
class RegionCall:
    """The first call of a region: copies of its inputs before and after, and what it gave or raised.

    ``steps`` gives what runs its kernels one by one.
    """

    name: str
    gm: GraphModule
    inputs: list[Any]
    after: list[Any]
    outputs: list[Any]
    raised: Exception | None
    generators: Generators
    steps: Callable[[], Any]


@dataclass(slots=True, repr=False, eq=False)
class Observed(Record):
    """A record that keeps what finding a wrong stage takes."""

    compares_stages = True
    snapshots: list[Snapshot] = field(default_factory=list)
    graphs: dict[str, GraphCall] = field(default_factory=dict)
    regions: dict[str, RegionCall] = field(default_factory=dict)

    def add(
        self, region: str, name: str, seconds: float, value: object = None, decisions: Iterable[Decision] = ()
    ) -> None:
        if isinstance(value, Partition):  # late rewrites change its graphs
            value = replace(value, forward=duplicate(value.forward), backward=duplicate(value.backward))
        Record.add(self, region, name, seconds, value, decisions)

    def passed(self, graph: str, place: str, rewrite: str, gm: Any) -> None:
        self.snapshots.append(Snapshot(graph, place, rewrite, duplicate(gm)))

    def graph_entry(self, graph: str, run: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            if graph not in self.graphs and not any(map(is_fake, args)):
                self.graphs[graph] = GraphCall(copied(list(args)), torch.is_grad_enabled(), Generators(args))
            return run(*args)

        return call

    def region_entry(
        self, region: str, gm: Any, run: Callable[..., Any], steps: Callable[[], object]
    ) -> Callable[..., Any]:
        def call(args: list[Any]) -> Any:
            if region in self.regions or any(map(is_fake, args)):
                return run(args)
            given, before, generators = list(args), copied(list(args)), Generators(args)
            outputs: Any = None
            raised: Exception | None = None
            try:
                outputs = run(args)
            except Exception as error:
                raised = error
                raise
            finally:
                results = copied(list(outputs)) if isinstance(outputs, (tuple, list)) else [copied(outputs)]
                after = copied(given)
                self.regions[region] = RegionCall(region, gm, before, after, results, raised, generators, steps)
            return outputs

        return boxed(call)


def compile_observed(fn: Any, options: Mapping[str, Any], dynamic: bool | None = None) -> tuple[Any, Observed, Options]:
    """``fn`` compiled anew, with its record and settings: no option may make it another program than the user's."""
    chosen = as_backend("lamina")
    settings = options_for(chosen, None, {**options, "progress": False, "compare_eager": "off", "verify": False})
    record = Observed(getattr(fn, "__name__", type(fn).__name__))
    return compile_recorded(fn, settings, chosen, record, False, dynamic), record, settings
