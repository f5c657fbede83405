"""Codes of what tuning decides: which schedule each kernel has, and what became of each candidate."""

from __future__ import annotations

from lamina.base.reasons import Codes

_CHOSEN = Codes(80, "Schedules and backends chosen by a clock")

BY_MODEL = _CHOSEN.add(
    0,
    "model: {why}",
    "The kernel has the schedule that the cost model ranks first, and candidates of such kernels are never timed, as "
    "the sentence says.",
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
    "A schedule could not be built or run, or gave other results; another one is taken.",
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

LITTLE_TO_GAIN = _CHOSEN.add(
    7,
    "{why}: too little to gain",
    "The kernel has the schedule that the cost model ranks first, and takes so little time that no candidate is timed.",
    'mode="max-autotune" times candidates of all kernels',
)

MODEL_IS_SURE = _CHOSEN.add(
    8,
    "the model is sure: {percent} before the next",
    "The cost model ranks one schedule so far before the next one that no candidate is timed.",
    'mode="max-autotune" times candidates nevertheless',
)

TIME_OVER = _CHOSEN.add(
    9,
    "{seconds} s of measuring were over",
    "The time that a region may be measured was over before this kernel's turn; it has the schedule that the cost "
    "model ranks first.",
    'mode="max-autotune" measures for longer',
)

SAME_RESULTS = _CHOSEN.add(
    10,
    "deterministic algorithms are asked for",
    "Another schedule adds in another order, and which one wins is not the same every time.",
    "torch.use_deterministic_algorithms(False) lets a clock choose",
)

NOT_TIMED = _CHOSEN.add(
    11,
    "not timed: {why}",
    "A candidate was left out, as an earlier one is as fast as the machine allows, or as time was over.",
)

NOT_SURELY_FASTER = _CHOSEN.add(
    12,
    "faster than the best guess in {faster} of {rounds} rounds",
    "A candidate was not faster than the best guess often enough to tell it from noise.",
)

CANNOT_BE_TIMED = _CHOSEN.add(
    13,
    "{why}",
    "Measuring failed; the kernel has the schedule that the cost model ranks first, which is right and may be slower.",
    "please report it with the folder that the option dump_dir writes",
)

FOUND_BY_SEARCH = _CHOSEN.add(
    14,
    "{percent} before the model's, found by a search among {count}",
    "The kernel took far longer than its bytes and instructions should, so schedules around the fastest were compiled "
    "and timed, step by step.",
)
