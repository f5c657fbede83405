"""What fusion asks of a program's buffers: their bytes, and what must be in memory whatever is fused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lamina.base.dtypes import DTYPES
from lamina.ir.index import Expr, Size, prod
from lamina.ir.loops import Buffer, BufferView, LibraryCall, LoopProgram
from lamina.schedule.accesses import loaded
from lamina.schedule.errors import inputs_in_memory

__all__ = ["BufferFacts", "estimate"]

_SIZE_GUESS = 64
"""What an unknown size counts as when bytes are compared."""
_LARGE = 1 << 20
"""Bytes on a GPU that are not kept alive for the sake of one launch less."""


@dataclass(frozen=True, slots=True)
class BufferFacts:
    """A program's buffers by name, and their bytes.

    ``fixed`` are inputs and outputs, ``inputs`` those in a CPU's memory, ``library_reads`` what library calls take.
    """

    buffers: Mapping[str, Buffer]
    bytes: Mapping[str, int]
    fixed: frozenset[str]
    inputs: frozenset[str]
    library_reads: frozenset[str]

    @classmethod
    def of(cls, program: LoopProgram) -> BufferFacts:
        """The facts of ``program``'s buffers."""
        outputs = {o.buffer for o in program.outputs if isinstance(o, BufferView)}
        calls = [s for s in program.steps if isinstance(s, LibraryCall)]
        return cls(
            program.buffer_map(),
            {b.name: estimate(prod(b.shape)) * DTYPES[b.dtype].size for b in program.buffers},
            frozenset({b.name for b in program.buffers if b.kind == "input"} | outputs),
            inputs_in_memory(program.buffers),
            frozenset(name for call in calls for name in loaded(call)),
        )

    def on_gpu(self, name: str) -> bool:
        """Whether a buffer is in a GPU's memory."""
        return self.buffers[name].on_gpu

    def is_large(self, name: str) -> bool:
        """Whether a temporary is large enough to count in a GPU's memory."""
        return self.on_gpu(name) and name not in self.fixed and self.bytes[name] >= _LARGE


def estimate(count: Expr) -> int:
    """``count`` as a number, with a guess for each size that is known at run time only."""
    if count.is_int:
        return count.const
    return int(count.evaluate({a.name: _SIZE_GUESS for a in count.atoms() if isinstance(a, Size)}))
