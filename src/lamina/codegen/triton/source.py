"""A GPU kernel of the Plan as Triton source: the value between code generation and the launcher."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.errors import LaminaError
from lamina.ir.index import Expr

__all__ = ["TritonSource", "UnsupportedKernel"]


class UnsupportedKernel(LaminaError):
    """A kernel that Triton cannot express; it alone runs as ATen calls."""

    code = "LM020"


@dataclass(frozen=True, slots=True)
class TritonSource:
    """Triton text of one kernel and all that its launch needs.

    ``text`` is a Python module that imports Triton and defines the jitted function ``name``; it also runs in Triton's
    interpreter. ``parameters`` are in argument order: buffers ``b0..``, sizes ``s0..``, workspace pointers ``w0..``
    and, where the kernel has a Check, ``failed``; ``types`` are their Triton signature types ("*bf16", "*i1" for
    bool, "i32", "i64"). Parameters in ``aligned`` (pointers in bytes, sizes as numbers) must be multiples of 16 for
    the specialised variant; calls where one is not take a variant compiled without that knowledge. A size of type
    "i32" must be below 2**31. ``grid`` is the number of programs over the sizes ``s0..``.
    ``workspace`` gives for each ``w<k>`` its bytes and whether it must be zero at launch; the kernel then leaves it
    zero. ``checks``: the trailing parameter ``failed`` points to an int32 that gets the 1-based number of a failed
    Check, counted through the kernel's nests; it is left alone where all hold. ``then``: a second launch, right after
    the first on the same stream, of the function ``then.name`` in a module of its own. It takes the very same
    arguments (equal ``parameters``, ``types``, ``aligned`` and ``workspace``) with its own grid, warps and stages.

    ``scratch`` bytes of memory for each program follow the arguments: Triton keeps the descriptors there that a kernel
    makes. The addresses of ``must_align`` must then be multiples of 16; launches where one is not are of ``plain``,
    another way to do the same. Launches where one of the sizes ``lengths`` is no multiple of 16 are of ``uneven``,
    which takes the same arguments.
    """

    name: str
    text: str
    parameters: tuple[str, ...]
    types: tuple[str, ...]
    aligned: tuple[str, ...]
    warps: int
    stages: int
    grid: tuple[Expr, Expr, Expr]
    workspace: tuple[tuple[Expr, bool], ...] = ()
    checks: bool = False
    then: TritonSource | None = None
    scratch: int = 0
    must_align: tuple[str, ...] = ()
    plain: TritonSource | None = None
    uneven: TritonSource | None = None
    lengths: tuple[str, ...] = ()

    def files(self) -> dict[str, str]:
        """The module, and those of the launches that follow it or take its place."""
        found = {".py": self.text}
        for kind, other in (("then", self.then), ("plain", self.plain), ("uneven", self.uneven)):
            if other is not None:
                found |= {f"_{kind}{end}": text for end, text in other.files().items()}
        return found
