"""Codes of graphs that are compiled in pieces: calls between segments, graphs within graphs, graphs left to ATen."""

from __future__ import annotations

from lamina.base.reasons import Codes
from lamina.base.torch_names.torch_private import MARK_STATIC

_PIECES = Codes(40, "Graphs compiled in pieces")

CALLED_BETWEEN = _PIECES.add(
    0,
    "called between segments: it gives a size or a number known only at run time",
    "The call runs through ATen between two compiled pieces, as only a run tells the size of its result, or the number "
    "that it gives.",
    "bound the size with torch._check, or keep the number in a tensor instead of .item()",
)
IN_SEGMENTS = _PIECES.add(
    1,
    "compiled in {count:segment}",
    "The graph is compiled in so many pieces, with ATen calls between them.",
)
BODY_COMPILED = _PIECES.add(
    2,
    "compiled, to be called by {caller}",
    "A graph within a control-flow call (cond, while_loop, map) is compiled.",
)
BODY_LEFT = _PIECES.add(
    3,
    "{caller} does more with its graph than call it",
    "A graph within a call that traces or transforms it runs as ATen calls.",
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
    "let the lowering take it, or call the operation with what the lowering takes, as the sentence says",
)
LOWERED_BY_USER = _PIECES.add(
    6,
    "lowered as {place} says",
    "An operation of yours was lowered by your function.",
)

CHECKS_NUMBER = _PIECES.add(
    7,
    "called between segments: it checks a number",
    "The program, or torch, asserts something about a number that a run gives: a call between two compiled pieces.",
)

HOLDS_GRAPH = _PIECES.add(
    8,
    "called between segments: control flow or a call with a graph of its own",
    'torch calls the operation between two compiled pieces; decisions of kind "body" say what became of the graphs '
    "that it holds.",
)

NUMBER_ARITHMETIC = _PIECES.add(
    9,
    "called between segments: arithmetic on numbers",
    "Python computes a number between two compiled pieces, from numbers that only a run gives.",
    "compute it with tensors that have no dimensions",
)

TAKES_NUMBER = _PIECES.add(
    10,
    "called between segments: it takes a {what} known only at run time",
    "The call runs through ATen between two compiled pieces, as kernels are not given numbers of this kind.",
    "give it as a tensor without dimensions",
)

NOT_LOWERED = _PIECES.add(
    11,
    "called between segments: {why}",
    "The call runs through ATen between two compiled pieces, as no loops of Lamina's express it with these operands.",
    "give the operation a lowering (docs/lowerings.md), or operands of another kind, as the sentence says",
)

BODY_OF_RUN_TIME_SIZES = _PIECES.add(
    12,
    "the sizes of its inputs are known only at run time",
    "A graph within a control-flow call runs as ATen calls, as kernels for it are made for fixed sizes.",
    f"mark the sizes as static ({MARK_STATIC}), or compile with dynamic=False",
)

BODY_OF_OTHER_INPUTS = _PIECES.add(
    13,
    "its input {name} is {what}",
    "A graph within a control-flow call runs as ATen calls, as kernels take dense tensors alone.",
    "give it dense tensors: .to_dense(), .resolve_conj().resolve_neg(), or a tensor in the place of a number",
)

BODY_OF_ONE_CALL = _PIECES.add(
    14,
    "it is a single call",
    "A graph within a control-flow call runs as ATen calls, as nothing in it could be put together.",
)
