"""Codes of what tuning decides: which schedule each kernel has, and what became of each candidate."""

from __future__ import annotations

from lamina.base.reasons import Codes

_CHOSEN = Codes(80, "Schedules and backends chosen by a clock")

BY_MODEL = _CHOSEN.add(
    0,
    "model: {why}",
    "The kernel has the schedule that the cost model ranks first; the sentence says why no clock was asked.",
    'mode="max-autotune" times candidates of larger kernels',
)
MEASURED = _CHOSEN.add(
    1,
    "measured: {why}",
    "Candidates were timed in this process and the fastest was taken; the facts have the microseconds of each.",
)
REMEMBERED = _CHOSEN.add(
    2,
    "remembered: {why}",
    "An earlier process timed the candidates on this machine; its result stands in the cache.",
)
CANDIDATE_TIMED = _CHOSEN.add(
    3,
    "{us} us",
    "A schedule was timed; it is taken if it won.",
)
CANDIDATE_DROPPED = _CHOSEN.add(
    4,
    "{why}",
    "A schedule was not timed to the end: it failed, gave other results, or time was over.",
)
BACKEND_TIMED = _CHOSEN.add(
    5,
    "{us} us a call",
    "A backend was timed on this graph; the fastest is taken.",
)
NOT_BUILT = _CHOSEN.add(
    6,
    "kernels were not built beside their candidates, and are built alone",
    "Building kernels together with their candidates failed; the planned kernels are built without them.",
)
