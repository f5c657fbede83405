"""What surrounds the kernels of a graph: calls between segments, numbers among its inputs and results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from lamina.backends.device import Boxed
from lamina.backends.regions import aten_calls
from lamina.base.decision import Decision
from lamina.base.lowering import find_lowering
from lamina.base.retryable import is_retryable, set_retryable, writes_to_inputs
from lamina.base.torch_private import boxed
from lamina.base.user_warnings import warn_user
from lamina.ir.loops import LibraryCall, LoopProgram
from lamina.record import Record
from lamina.segments import reasons
from lamina.segments.cut import Segment, Segments

__all__ = ["as_aten", "lowered_by_user", "put_segment", "with_numbers"]


def as_aten(gm: GraphModule, name: str, why: str, record: Record) -> Boxed:
    """The graph as ATen calls, which is a stated limit and no failure: strict mode allows it."""
    warn_user(f"lamina runs {name} as ATen calls: {why}")
    decision = Decision("fallback", (name,), False, reasons.LEFT_TO_ATEN(why=why))
    record.note(name, "aten", decision)
    return aten_calls(gm)


def put_segment(pieces: Segments, segment: Segment, run: Boxed) -> None:
    """Put a compiled segment in the place of its graph."""
    setattr(pieces.outer, segment.name, _Call(run, writes_to_inputs(segment.gm)))


class _Call(torch.nn.Module):
    """A compiled segment in the place of its graph. Only the last, after all other calls, ``writes`` to inputs."""

    def __init__(self, run: Boxed, writes: bool) -> None:
        super().__init__()
        self.run, self.writes = run, writes

    def forward(self, *inputs: Any) -> Any:
        try:
            return self.run(list(inputs))
        except Exception as error:
            set_retryable(error, not self.writes or is_retryable(error))
            raise


def with_numbers(gm: GraphModule, run: Boxed) -> Boxed:
    """``run``, which knows of tensors and integers only, as ``gm``: floats go in, floats and truth values come out."""
    return _with_numbers(gm, _with_floats(gm, run))


def _with_floats(gm: GraphModule, run: Boxed) -> Boxed:
    """``run``, which takes floats that are inputs of ``gm`` as tensors of one element, taking them as they are."""
    inputs = gm.graph.find_nodes(op="placeholder")
    places = [i for i, node in enumerate(inputs) if isinstance(node.meta.get("val"), torch.SymFloat)]
    if not places:
        return run

    def call(args: list[Any]) -> Any:
        for place in places:
            args[place] = torch.tensor(args[place], dtype=torch.float64, device="cpu")
        return run(args)

    return boxed(call)


def _with_numbers(gm: GraphModule, run: Boxed) -> Boxed:
    """``run``, which gives None for results that are truth values or floats, giving those of ``gm``'s output."""
    results = gm.graph.output_node().args[0]
    kept = {i: r for i, r in enumerate(results) if isinstance(r, bool | float)} if isinstance(results, Sequence) else {}
    if not kept:
        return run

    def call(args: list[Any]) -> Any:
        return tuple(kept.get(i, value) for i, value in enumerate(run(args)))

    return boxed(call)


def lowered_by_user(gm: GraphModule, program: LoopProgram) -> tuple[Decision, ...]:
    """Of each call that has a lowering on loop nests by the user, whether that was used."""
    left = {(step.origin, step.op): step.reason for step in program.steps if isinstance(step, LibraryCall)}
    decisions = []
    for node in gm.graph.nodes:
        found = find_lowering(node.target, "scalar", "nest") if node.op == "call_function" else None
        if found is not None:
            why = left.get(((node.name,), str(node.target)))
            reason = reasons.LOWERED_BY_USER(place=found.place) if why is None else reasons.CALL_LEFT(why=why)
            decisions.append(Decision("lowering", (str(node.target), node.name), why is None, reason))
    return tuple(decisions)
