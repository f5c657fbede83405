"""Codes of first calls that are checked against ATen (the option verify)."""

from __future__ import annotations

from lamina.base.reasons import Codes

_CHECKED = Codes(91, "First calls checked against ATen")

RIGHT = _CHECKED.add(
    0,
    "the first call gives what the graph gives by ATen",
    'With options={"verify": "first"} a region\'s first results were compared with those of its ATen calls.',
)
WRONG = _CHECKED.add(
    1,
    "{found}; it runs as ATen calls",
    "A region's first results differ from those of its ATen calls by more than rounding. It runs as ATen calls; the "
    "subject names the kernel. This is a fault of Lamina's.",
    "please report it with the folder that the option dump_dir writes",
)
KERNEL_NOT_FOUND = _CHECKED.add(
    2,
    "the first kernel that differs is not known: {error}",
    "Running the kernels one by one to find the wrong one failed.",
)
