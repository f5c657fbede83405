"""Scratch memory that kernels need beside their buffers, in host programs for GPUs."""

from __future__ import annotations

from collections.abc import Mapping

from lamina.base.text import Writer
from lamina.codegen.host_globals import Globals
from lamina.codegen.host_values import Values
from lamina.codegen.triton.source import TritonSource
from lamina.ir.index import Expr, Size, as_expr, ceildiv

__all__ = ["Scratch", "bound"]

_ZERO = as_expr(0)
_LINE = 64
"""Bytes between places in scratch memory, so that programs that count in one do not slow down another."""
_DESCRIPTOR_LINE = 128
"""Bytes that memory for descriptors begins at multiples of."""
_SHARED = 1 << 20
"""Bytes of scratch memory up to which a kernel's is part of the call's workspace."""


class Scratch:
    """Where the scratch memory of each launch is: in the call's workspace after the arena, where launches share it,
    in memory that the runtime keeps zero, or in memory of its own.
    """

    def __init__(self, values: Values, globals_: Globals, device: int, imports: set[str]) -> None:
        self.values, self.globals, self.device, self.imports = values, globals_, device, imports
        self.nbytes = 0  # of the workspace, beside the arena

    def addresses(self, source: TritonSource, sizes: Mapping[str, Expr], out: Writer) -> tuple[list[str], list[str]]:
        """Source texts for the addresses of a launch's scratch memory, and the variables to delete after it.

        Lines that it needs before are written, and what they call is named in ``imports``.
        """
        values, arena = self.values, self.values.plan.arena_bytes
        wanted = [(bound(nbytes, sizes), zero) for nbytes, zero in source.workspace]
        line = _DESCRIPTOR_LINE if source.scratch else _LINE
        if source.scratch:
            wanted.append((bound(source.grid[0], sizes) * source.scratch, False))
        texts: list[str] = []
        own: list[str] = []
        zeros, shared = _ZERO, 0
        total = values.size(sum((_rounded(n) for n, zero in wanted if zero), _ZERO))
        for nbytes, zero in wanted:
            if zero:
                texts.append("zeros" if zeros == 0 else f"zeros + {values.size(zeros)}")
                zeros = zeros + _rounded(nbytes)
            elif nbytes.is_int and nbytes.const <= _SHARED and arena.is_int:
                # Launches follow one another, so all of them share these bytes.
                values.uses_base = True
                shared += -(arena.const + shared) % line
                texts.append(f"base + {arena.const + shared}")
                shared += _rounded(nbytes).const
            else:
                name = values.names.fresh("scratch")
                own.append(name)
                self.imports.add("empty")
                out.line(f"{name} = empty(({values.size(nbytes)},), (1,), {self.globals.variable('torch.uint8')})")
                texts.append(f"{name}.data_ptr()")
        if zeros != 0:
            self.imports.add("zeroed")
            out.line(f"zeros = zeroed({self.device}, stream, {total})")
        self.nbytes = max(self.nbytes, shared)
        return texts, own


def bound(expr: Expr, sizes: Mapping[str, Expr]) -> Expr:
    """A kernel's expression with the sizes of one of its launches."""
    return expr.substitute({atom: sizes[atom.name] for atom in expr.atoms() if isinstance(atom, Size)})


def _rounded(nbytes: Expr) -> Expr:
    return ceildiv(nbytes, _LINE) * _LINE
