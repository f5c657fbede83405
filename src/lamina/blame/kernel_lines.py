"""The line of a kernel's source where a buffer is written."""

from __future__ import annotations

import re

from lamina.ir.plan import KernelCall

__all__ = ["line_of_store"]


def line_of_store(source: str, step: KernelCall, buffer: str) -> int:
    """The number of the first line that stores to a buffer of the launch, from 1; 0 where none is found."""
    if buffer not in step.buffers:
        return 0
    parameter = rf"\bb{step.buffers.index(buffer)}\b"
    store = re.compile(rf"store\w*\([^;]*{parameter}|{parameter}\[[^;=]*\] [+|]?= ")
    lines = source.splitlines()
    return next((number for number, line in enumerate(lines, 1) if store.search(line)), 0)
