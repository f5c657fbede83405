"""Ends a graph that is recorded: it runs, in one or in parts, and what was pending is computed."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import torch
from torch.fx import Node

from lamina.capture.own.autocast import switch_autocast
from lamina.capture.own.blocks import Parts, part_of_graph, parts_of
from lamina.capture.own.checkpoints.torch_private import checkpointed_parts
from lamina.capture.own.frame import Unhandled
from lamina.capture.own.pending import Pending
from lamina.capture.own.running import compile_ahead, fill, rescue
from lamina.capture.own.segment import Segment
from lamina.capture.own.torch_private import SET_GRAD, without_function_modes

__all__ = ["flush"]


def flush(recorder: Any, last: bool) -> None:
    """Run what a recorder has recorded; the tensors that anybody still holds become ordinary ones.

    So they do where an interrupt of the program ends this, if that is possible. ``last``: the call has returned.
    """
    segment = recorder.segment
    if segment is None:
        return
    if recorder.attempt is not None:
        recorder.attempt.refuse()
    segment.is_part = not last or recorder.flushed
    recorder.flushed = True
    grad, waiting, made = torch.is_grad_enabled(), segment.pending, None
    alive: list[Pending] = []
    outputs: list[Node] = []
    try:
        recorder.segment, segment.pending = None, []
        if segment.records:
            recorder.regions.of_thread.fakes = None  # a write may have given a history to what stands for inputs
        with without_function_modes():
            recorder.casts.note(segment.inputs, *segment.state[:2])
            parts = None if recorder.whole else parts_of(segment, recorder.regions.in_parts)
        crossing = set() if parts is None else parts.crossing
        while waiting:
            made = waiting.pop()
            seen = sys.getrefcount(made) > 2  # this variable and the argument of getrefcount
            if seen or segment.nodes[id(made._fake)] in crossing:
                alive.append(made)
            if seen and parts is not None:
                parts.seen.add(segment.nodes[id(made._fake)])
        if parts is not None:
            with without_function_modes():
                parts.see_bases()
        alive.reverse()
        outputs += [segment.nodes[id(one._fake)] for one in alive]
        if parts is None:
            _fill(recorder, segment, alive, outputs)
        else:
            _fill_parts(recorder, segment, parts, dict(zip(outputs, alive, strict=True)))
        for function, args, kwargs in segment.marks:
            function(*args, **kwargs)
    except BaseException as error:
        if not segment.failed:  # else it is as at the call that raised
            SET_GRAD(grad)
        if segment.left_at is not None:
            switch_autocast(segment.state[1], segment.depth)
        recorder.unhandled = type(error) if isinstance(error, Unhandled) else recorder.unhandled
        nodes = dict(zip(map(id, alive), outputs, strict=False))
        left = {id(one): one for one in (*alive, *waiting, made) if type(one) is Pending}
        recorder.segment = None
        recorder.escaped("an interrupted graph")
        rescue(segment, [*left.values()], nodes, error, recorder.hooks)
        raise


def _fill(recorder: Any, segment: Segment, alive: list[Pending], outputs: list[Node]) -> None:
    key = _key(recorder.regions_entered, segment, outputs)
    fill(recorder.regions, recorder.trace, recorder.hooks, segment, key, alive, outputs)


def _fill_parts(recorder: Any, segment: Segment, parts: Parts, alive: dict[Node, Pending]) -> None:
    """The same part by part; what an exception leaves of the whole can be drawn and computed again."""
    recorder.regions.told_parts(parts.blocks, parts.calls)
    with without_function_modes():
        segment.begin()
        key_of = partial(_key, recorder.regions_entered)
        compile_ahead(recorder.regions, recorder.hooks, segment, parts, alive, key_of)
    for nodes in parts.nodes:
        with without_function_modes():
            part, wanted, outputs = part_of_graph(segment, nodes, alive, parts.seen)
        try:
            _fill(recorder, part, [alive[node] for node in wanted], outputs)
        finally:
            segment.failed, segment.left_at = part.failed, part.left_at


def _key(checkpointed: Any, segment: Segment, outputs: list[Node]) -> Any:
    """What tells a graph from others; calls of it may be ``checkpointed``."""
    regions = checkpointed_parts(segment.graph) if checkpointed else ()
    wanted = tuple(segment.numbers[n] for n in outputs)
    return tuple(segment.key), tuple(segment.looks), segment.state, wanted, regions
