"""Codes of comparisons with eager: whether a graph is compared, and who runs it."""

from __future__ import annotations

from lamina.base.reasons import Codes

_TURNS = Codes(85, "Comparison with eager by the first calls")

COMPARED = _TURNS.add(
    0,
    "{why}",
    "Estimates do not tell that the compiled graph is faster than eager, so some of its first calls are taken in "
    "turns with eager. The option compare_eager says whether that is ever done.",
)
NOT_COMPARED = _TURNS.add(
    1,
    "not compared with eager: {why}",
    "The compiled graph runs from the first call on.",
)
EAGER_RUNS = _TURNS.add(
    2,
    "{why}; eager runs it",
    "Eager was the faster one in the first calls, in this process or an earlier one; the graph runs as it was "
    "captured.",
)
COMPILED_RUNS = _TURNS.add(
    3,
    "{why}; it runs compiled",
    "Eager was not clearly faster in the first calls, or could not be compared.",
)
