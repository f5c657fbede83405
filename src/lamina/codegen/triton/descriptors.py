"""Descriptors of matrices in memory, of which a GPU's copy engine moves whole tiles at a time.

Hopper's copy engine takes matrices whose rows are contiguous and begin at multiples of 16 bytes; what lies beyond the
matrix reads as zero and is not written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lamina.base.dtypes import DTYPES
from lamina.codegen.triton.nest_analysis import NestAnalysis
from lamina.ir.index import Axis, as_expr

__all__ = ["Descriptor", "described"]

_UNIT = 16
"""Bytes that rows and tiles begin at multiples of."""
_MOST = 1 << 31
"""Where a tile begins is an int32."""


@dataclass(frozen=True, slots=True)
class Descriptor:
    """``text`` makes ``name``, a descriptor of ``buffer`` in tiles of the last two blocks of some facts, whose numbers
    ``order`` gives, slow one first. ``transposed``: the memory's rows are the last block.
    """

    name: str
    buffer: str
    text: str
    order: tuple[int, int]
    transposed: bool

    def place(self, at: Mapping[int, str]) -> str:
        """The offsets of a tile that begins at ``at`` along each block."""
        return f"[{', '.join(at[k] for k in self.order)}]"


def described(facts: NestAnalysis, buffer: str, index: object, name: str) -> Descriptor | None:
    """A descriptor of the elements at ``index``, a function of the last two blocks, or None where the copy engine
    cannot move them.
    """
    size = DTYPES[facts.buffers[buffer]].size
    last = len(facts.blocks) - 1
    blocks = (last - 1, last)
    lines = [Axis(facts.lines[k], facts.extents[k]) for k in blocks]
    if any(not a.extent.is_int or a.extent.const >= _MOST for a in lines):
        return None
    expr = facts.joined(as_expr(index))  # type: ignore[arg-type]
    steps = [expr.coefficient(a) for a in lines]
    if any(s is None or not s.is_int for s in steps):
        return None
    rest = expr
    for axis, step in zip(lines, steps, strict=True):
        assert step is not None
        rest = rest - step * as_expr(axis)
    strides = [s.const for s in steps if s is not None]
    if not rest.is_int or rest.const * size % _UNIT:
        return None
    if strides[1] == 1 and strides[0] > 0:
        order = (0, 1)
    elif strides[0] == 1 and strides[1] > 0:
        order = (1, 0)
    else:
        return None
    slow, fast = order
    if strides[slow] * size % _UNIT or facts.blocks[blocks[fast]].size * size % _UNIT:
        return None
    extents = [lines[k].extent.const for k in order]
    tile = [facts.blocks[blocks[k]].size for k in order]
    if strides[slow] < extents[1] and extents[0] > 1:
        return None
    base = buffer if rest == 0 else f"{buffer} + {rest.const}"
    shape = f"[{extents[0]}, {extents[1]}], [{strides[slow]}, 1], [{tile[0]}, {tile[1]}]"
    text = f"{name} = tl.make_tensor_descriptor({base}, {shape})"
    return Descriptor(name, buffer, text, (blocks[slow], blocks[fast]), order == (1, 0))
