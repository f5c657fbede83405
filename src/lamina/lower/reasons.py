"""Codes of what lowering decides: which calls have no loops of Lamina's own."""

from __future__ import annotations

from lamina.base.reasons import Codes
from lamina.base.torch_names.torch_private import MARK_STATIC

_CALLS = Codes(45, "Calls of libraries and ATen")

LEFT = _CALLS.add(
    0,
    "{why}",
    "Lowering leaves the call to a library or to ATen, although it might have loops, as the sentence says. What is "
    "around it runs in Lamina's kernels; the operands and the result are in memory.",
)
NO_LOOPS = _CALLS.add(
    1,
    "{operation} has no loops of Lamina's own",
    "The operation is not in the table of operations that Lamina lowers, so that ATen runs it between Lamina's "
    "kernels.",
    "give it a lowering (docs/lowerings.md), or write it in operations of torch that have one",
)
COMPLEX = _CALLS.add(
    2,
    "{why}",
    "Lamina's loops compute with real numbers; ATen runs operations on complex ones between Lamina's kernels.",
    "compute with the real and the imaginary parts (torch.view_as_real), which are real tensors",
)

RUN_TIME_NUMBER = _CALLS.add(
    3,
    "{why}",
    "Loops for the operation need a number that is fixed when it is compiled, and here only a run tells it; ATen "
    "runs the call between Lamina's kernels.",
    f"mark the size as static ({MARK_STATIC}), or give the number as a constant",
)

SIZE_OF_DATA = _CALLS.add(
    4,
    "{why}",
    "The size of the result, or the number that the operation gives, depends on the data; ATen runs the call between "
    "Lamina's kernels.",
    "use torch.where, or a mask and a result of fixed size",
)
