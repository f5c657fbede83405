"""Codes of graphs that are compiled in pieces: calls between segments, graphs within graphs, graphs left to ATen."""

from __future__ import annotations

from lamina.base.reasons import Codes

_PIECES = Codes(40, "Graphs compiled in pieces")

CALLED_BETWEEN = _PIECES.add(
    0,
    "called between segments: {why}",
    "The call runs through ATen between two compiled pieces, as its result's size is known only at run time, or it "
    "gives a number.",
    "bound the size with torch._check, or keep the number in a tensor instead of .item()",
)
IN_SEGMENTS = _PIECES.add(
    1,
    "compiled in {count} segments",
    "The graph is compiled in so many pieces, with ATen calls between them.",
)
BODY_COMPILED = _PIECES.add(
    2,
    "compiled, to be called by {caller}",
    "A graph within a control-flow call (cond, while_loop, map) is compiled.",
)
BODY_LEFT = _PIECES.add(
    3,
    "{why}",
    "A graph within a control-flow call runs as ATen calls.",
)
LEFT_TO_ATEN = _PIECES.add(
    4,
    "compiling failed: {why}; it runs as ATen calls",
    "The graph has something for which Lamina has no loops and no piece to cut: it runs call by call.",
    "the sentence names the call or size; give the operation a lowering (docs/lowerings.md), or bound the size",
)
CALL_LEFT = _PIECES.add(
    5,
    "{why}",
    "An operation of yours has a lowering that did not take this call.",
)
LOWERED_BY_USER = _PIECES.add(
    6,
    "lowered as {place} says",
    "An operation of yours was lowered by your function.",
)
