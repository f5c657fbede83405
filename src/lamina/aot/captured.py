"""A captured graph as it is traced, and what goes around its compiled form."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule

from lamina.aot import eager_reasons
from lamina.aot.absent_gradients import hooks_of_arrivals
from lamina.aot.contiguous_operands import with_contiguous_operands
from lamina.aot.dependent_results import leading_on
from lamina.aot.draws import draws_numbers
from lamina.aot.engine.serving import raising_as_captured, serving_apart_in_history, shares_storage
from lamina.aot.errors import raising_assertions
from lamina.aot.function import detaching
from lamina.aot.identities import Distinct, distinct, without_identities
from lamina.aot.layouts import keeping_layouts
from lamina.aot.notes import Notes
from lamina.aot.overlap import inputs_written
from lamina.aot.refusals import refusal, refused_relation
from lamina.aot.relations import relations
from lamina.aot.replayed import Replayed, replayed_views
from lamina.aot.resampling import whole_resampling
from lamina.aot.shared_memory import (
    counting_writes,
    overlapping_inputs,
    serving_alike,
    serving_same_bases,
)
from lamina.aot.specialized_integers import with_numbers_as_data
from lamina.aot.state import State, read_state, undone
from lamina.aot.torch_private import guard_overlap
from lamina.aot.traits import is_static
from lamina.base.fx.torch_private import calls_of
from lamina.base.modes import SWITCHED_BY_HAND
from lamina.base.reasons import Reason
from lamina.base.source import place_in
from lamina.base.symbolic.environment.torch_private import LaterGuards
from lamina.options import Options

__all__ = ["Captured", "Compiled", "Differentiated", "read_captured", "surrounded"]


@dataclass(frozen=True, slots=True)
class Differentiated:
    """The graph of a ``Captured``, compiled: ``run``, or None if eager is to run it.

    ``written`` are the places of inputs that it writes to, ``outside`` those of inputs that require a gradient and get
    none from it, ``written_with_history`` those of inputs that get a history by being written to.
    """

    run: Callable[..., Any] | None
    written: tuple[int, ...] = ()
    outside: tuple[int, ...] = ()
    written_with_history: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Compiled:
    """What runs a captured graph; ``by_eager``: that is the graph itself."""

    run: Callable[..., Any]
    by_eager: bool = False


@dataclass(frozen=True, slots=True)
class Captured:
    """A captured graph ``gm`` with its inputs, and what of it is traced: the graph of its ``state``.

    ``once`` returns results that are one tensor once, ``replayed`` is without results that are views of written inputs,
    ``whole`` is what is left of the graph after both. ``parameters`` and ``differentiable`` say of each input whether
    it is a parameter or buffer, and whether it requires a gradient; ``empty`` are the places of inputs without
    elements: what results are views of them, nothing tells. ``by_hand``: the program switches the grad mode by other
    means than ``with`` statements. ``refused`` is why eager is to run it, None if it is not.
    """

    gm: GraphModule
    example_inputs: tuple[Any, ...]
    once: Distinct | None
    replayed: Replayed | None
    whole: GraphModule
    state: State
    parameters: tuple[bool, ...]
    differentiable: tuple[bool, ...]
    empty: frozenset[int]
    by_hand: bool
    refused: Reason | None
    guards: LaterGuards

    @property
    def graph(self) -> GraphModule:
        """What is traced."""
        return self.state.gm

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """The modes in which it is traced and compiled."""
        with self.state.entered(), whole_resampling():
            yield

    def as_captured(self) -> Compiled:
        """The graph run by eager, whose results are what they are: nothing makes them again."""
        run = raising_assertions(self.gm.forward if self.by_hand else undone(self.gm), self.gm)
        return Compiled(run, by_eager=True)

    def with_results(self, run: Callable[..., Any], found: Differentiated, notes: Notes) -> Compiled:
        """``run``, which computes what ``whole`` does, with the results and assertions of the captured graph."""
        run = run if self.replayed is None else self.replayed.applied(run)
        run = run if self.once is None else self.once.applied(run)
        related = relations(self.gm)
        run = run if related is None else related.applied(run)
        if any(self.differentiable):
            run = leading_on(run, self.gm, self.example_inputs, found.written, found.written_with_history, notes)
            run = hooks_of_arrivals(run, self.gm, self.example_inputs, found.written_with_history)
        return Compiled(raising_assertions(run, self.gm))


def read_captured(gm: GraphModule, example_inputs: Sequence[Any], options: Options, notes: Notes) -> Captured:
    """The graph as it is traced; where eager is to run it, as it was given, that is noted."""
    given, gm = gm, with_contiguous_operands(gm)
    plain = with_numbers_as_data(without_identities(gm))
    once = distinct(plain)
    graph = plain if once is None else once.gm
    replayed = replayed_views(graph)
    whole = graph if replayed is None else replayed.gm
    notes.place = _place(whole)
    limit = refusal(whole, options.numerics == "eager") or (refused_relation(graph) if replayed is not None else None)
    state = State(whole) if limit is not None else read_state(keeping_layouts(whole))
    limit = limit or state.refused
    if limit is not None:
        notes.refuse(limit)
    return Captured(
        gm if limit is None else given,
        tuple(example_inputs),
        once,
        replayed,
        whole,
        state,
        parameters=tuple(is_static(node) for node in whole.graph.find_nodes(op="placeholder")),
        differentiable=tuple(isinstance(x, torch.Tensor) and x.requires_grad for x in example_inputs),
        empty=frozenset(i for i, x in enumerate(example_inputs) if isinstance(x, torch.Tensor) and x.numel() == 0),
        by_hand=gm.meta.get(SWITCHED_BY_HAND, True),
        refused=limit,
        guards=LaterGuards(),
    )


def surrounded(captured: Captured, found: Differentiated, options: Options, notes: Notes) -> Compiled:
    """What was compiled, as the user calls it; the captured graph, with a note, if eager is to run it after all."""
    if found.run is None:
        return captured.as_captured()
    if captured.guards.unreadable():
        captured.guards.drop()
        notes.refuse(eager_reasons.BASE_OF_VIEW())
        return captured.as_captured()
    compiled, state, whole, example_inputs = found.run, captured.state, captured.whole, captured.example_inputs
    if found.outside:
        compiled = detaching(compiled, found.outside)
    if not found.written:
        again = calls_of(whole) if captured.by_hand else None
        return captured.with_results(state.applied(compiled, again), found, notes)
    written, eager = inputs_written(state.gm), calls_of(state.gm)
    if options.numerics == "fast" or not draws_numbers(state.gm):
        compiled = raising_as_captured(compiled, eager, written, notes.tell, options.strict)
    # Where gradients are wanted, a write tells of all that was saved of its storage, be it of other elements.
    tracks = torch.is_grad_enabled() and any(captured.differentiable)
    one_version = found.written if tracks else found.written_with_history
    if shares_storage(example_inputs, found.written):
        if any(isinstance(x, torch.SymInt) for x in example_inputs):
            # What is written gets a history, which all views of the memory then have and a functional graph has not.
            refused = tracks
            compiled = counting_writes(compiled, written)
            compiled = serving_same_bases(compiled, eager, example_inputs, notes.tell)
        else:
            refused = False
            for overlapping, apart in overlapping_inputs(example_inputs):
                guard_overlap(whole, overlapping, apart)
                refused = refused or not set(overlapping).isdisjoint(found.written)
            refused = refused or shares_storage(example_inputs, one_version)
        if refused:
            notes.refuse(eager_reasons.SHARED_INPUT())
            return captured.as_captured()
    if found.written_with_history:
        compiled = serving_apart_in_history(compiled, eager, found.written_with_history, notes.tell)
    compiled = serving_alike(compiled, eager, example_inputs, found.written, notes.tell, tracks)
    return captured.with_results(state.applied(compiled), found, notes)


def _place(gm: GraphModule) -> str:
    """The line of the first of the graph's calls that has one."""
    found = (place_in(n.meta.get("stack_trace") or "") for n in gm.graph.nodes if n.op.startswith("call"))
    return next((f"{place}, where it begins" for place in found if place), "")
