"""Kernels written by hand, for tests of what launches them."""

from __future__ import annotations

from lamina.runtime.triton_build import TritonUnit

__all__ = ["adder", "counter"]

ADD = """\
import triton
import triton.language as tl


@triton.jit
def add(b0, b1, b2, s0):
    i = tl.program_id(0) * {block} + tl.arange(0, {block})
    tl.store(b2 + i, tl.load(b0 + i, mask=i < s0) + tl.load(b1 + i, mask=i < s0), mask=i < s0)
"""

COUNT = """\
import triton
import triton.language as tl


@triton.jit
def count(b0, w0, s0):
    before = tl.atomic_add(w0, 1)
    if before == s0 - 1:
        tl.store(b0, before + 1)
        tl.store(w0, 0)
"""


def adder(block: int = 1024, aligned: tuple[int, ...] = (0, 1, 2)) -> TritonUnit:
    """``b2 = b0 + b1`` for ``s0`` floats, ``block`` of them a program."""
    types = ("*fp32", "*fp32", "*fp32", "i64")
    return TritonUnit("add", "add", ADD.format(block=block), ("b0", "b1", "b2", "s0"), types, aligned, 4, 3)


def counter() -> TritonUnit:
    """Counts its ``s0`` programs in zero memory, which it leaves zero; the last one stores the number."""
    return TritonUnit("count", "count", COUNT, ("b0", "w0", "s0"), ("*i32", "*i32", "i32"), (), 1, 1)
