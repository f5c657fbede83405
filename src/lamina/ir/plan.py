"""The Plan: fused kernels and library calls in order, where every buffer lives, and why each choice was made."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TypeAlias

from lamina.base.decision import Decision
from lamina.base.files import text_of
from lamina.ir.index import Expr
from lamina.ir.loops import Buffer, BufferView, LibraryCall, Nest, SizeInput, Source

__all__ = [
    "Block",
    "GpuSchedule",
    "Kernel",
    "KernelCall",
    "Place",
    "Plan",
    "PlanStep",
    "Schedule",
    "furthest",
    "most_turns",
]


@dataclass(frozen=True, slots=True)
class Schedule:
    """How one nest is iterated. Code generation has no choice left to make.

    ``kind``: "pointwise" (no reduction), "rows" (reductions over inner axes only), "columns" (reductions, scans or
    colliding stores beside a contiguous axis whose blocks are shared), "mixed" (the shared axis is reduced too: each
    thread its own partial results, joined in order), "scan", "serial" (nothing of it may run in parallel).
    ``outer`` axes are collapsed and shared among threads, ``inner`` axes run inside, innermost last; together they
    are all axes of the nest. ``vector`` is the axis whose consecutive points share a SIMD register, ``width`` the
    register's size in bytes (0: scalar code). ``tile`` gives block sizes of blocked axes: their blocks are shared
    among threads as well; two of them turn transposed operands. ``kept`` are the values that stay in a row buffer
    between phases (the others that cross a phase are computed again). ``parallel`` is the number of points below
    which one thread does all. ``prefetch`` asks for the next row while the last pass over a row runs. ``unroll`` is
    the number of vectors that a vector loop works on at a time, each with an accumulator of its own, and of rows that
    column sums add up in registers (0: as many as the cost of the loop suggests). ``nontemporal``: what is only written
    goes past the caches.
    """

    kind: str
    outer: tuple[str, ...]
    inner: tuple[str, ...]
    _: KW_ONLY
    vector: str | None = None
    width: int = 0
    tile: tuple[tuple[str, int], ...] = ()
    kept: tuple[str, ...] = ()
    parallel: int = 0
    prefetch: bool = False
    unroll: int = 0
    nontemporal: bool = False


def furthest(width: int) -> int:
    """Elements that lie so many apart at most are read by whole vectors of ``width`` bytes.

    Wide ones have an instruction that takes any elements of two.
    """
    return 8 if width >= 64 else 4


def most_turns(width: int) -> int:
    """So many vectors at most whose elements take turns in memory are written as whole vectors."""
    return 16 if width >= 64 else 4


@dataclass(frozen=True, slots=True)
class Block:
    """Axes of a nest collapsed into one dimension of a GPU program's tile, the last axis fastest.

    ``size`` points, a power of two, are worked on at a time. ``role`` says who works on the others: "grid" other
    programs, "loop" the same program one tile after the other, "whole" nobody, the tile holds them all, "cluster" up to
    seven other programs that run at the same time: they have a tile each and exchange what they reduced. A cluster's
    block stands last, and the others have one point.
    """

    axes: tuple[str, ...]
    size: int
    role: str


@dataclass(frozen=True, slots=True)
class GpuSchedule:
    """How one nest is iterated on a GPU. Code generation has no choice left to make.

    ``kind``: "pointwise" (no reduction), "rows" (reduced rows stay in registers), "loops" (a program goes over its
    reduced points in tiles, once for each phase), "columns" (the fast axis is kept), "mixed" (rows and columns are
    reduced at once), "scan", "product" (a matrix product in tiles on the tensor cores: see ``ir/product.py``; blocks of
    its rows, its columns and, looped, what it sums over). ``blocks`` hold every axis of the nest once, slow before
    fast; loops nest in their order.
    A block of size 1 has no dimension in the tile. ``warps`` of 32 threads run a program, ``stages`` is how many
    iterations ahead its loops read. ``online``: a sum of exp(x - max) is taken together with the maximum. ``peel``:
    rows may begin anywhere, so a loop's unaligned first and last elements, fewer than ``peel`` each, are a tile of
    their own. ``approximate``: hardware exponentials and divisions, where results have 16 bits or fewer.
    ``approximate_sums``: the hardware's exponential in online sums, where large terms have small errors.
    ``evict_first``: what varies over all axes is read once and marked to leave the cache first. ``cluster``: programs
    of a thread-block cluster that share a loop, each a part of its points, and exchange what they reduced (0: one
    program goes over all of them). ``register_resident``: a loop is unrolled, and what it has loaded stays in registers
    for the next phases. ``last_block``: the kernel's second nest joins the partial results of the first; for each
    result the last program to finish a partial runs it.

    Of products only: ``persistent`` is the number of programs that share all tiles, each taking one after the other
    (0: one program a tile); ``descriptors``: the copy engine moves whole tiles (sm_90), where strides allow it;
    ``epilogue_subtiles``: into how many parts the epilogue divides a tile, one after the other, which takes fewer
    registers; ``flat``: the next tile's operands are read ahead while the epilogue runs; ``specialized``: warps of
    their own issue the copies.
    """

    kind: str
    blocks: tuple[Block, ...]
    _: KW_ONLY
    warps: int = 4
    stages: int = 1
    online: bool = False
    peel: int = 0
    approximate: bool = False
    approximate_sums: bool = False
    evict_first: bool = False
    cluster: int = 0
    register_resident: bool = False
    last_block: bool = False
    persistent: int = 0
    descriptors: bool = False
    epilogue_subtiles: int = 1
    flat: bool = False
    specialized: bool = False


@dataclass(frozen=True, slots=True)
class Kernel:
    """A function of generated code, in canonical names, so that equal layers share it.

    In ``nests`` every buffer is flat (one index: the offset in elements from the buffer's first element) and is
    called ``b0, b1, ...``; sizes are ``s0, s1, ...``. ``dtypes`` gives each buffer's element type and ``sizes`` the
    size names, both in argument order: the C signature is ``int64_t name(void* b0, ..., int64_t s0, ...)``.
    It returns 0, or the 1-based number of the failed Check. On a GPU all ``schedules`` are ``GpuSchedule``.
    """

    name: str
    nests: tuple[Nest, ...]
    schedules: tuple[Schedule | GpuSchedule, ...]
    dtypes: tuple[str, ...]
    sizes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KernelCall:
    """Run kernel ``kernel`` on these buffers and sizes. ``writes`` are those of ``buffers`` that it stores to."""

    name: str
    kernel: str
    buffers: tuple[str, ...]
    sizes: tuple[Expr, ...]
    writes: tuple[str, ...]
    nests: tuple[Nest, ...]


PlanStep: TypeAlias = KernelCall | LibraryCall


@dataclass(frozen=True, slots=True)
class Place:
    """Where a buffer lives: "input", "output" (fresh memory that the caller owns), "library" (made by a library
    call) or "arena" (at ``offset`` bytes of the region's workspace).
    """

    buffer: str
    where: str
    offset: Expr | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """A scheduled region. ``kernels`` are distinct; several ``KernelCall`` steps may share one."""

    name: str
    inputs: tuple[str | SizeInput | None, ...]
    buffers: tuple[Buffer, ...]
    kernels: tuple[Kernel, ...]
    steps: tuple[PlanStep, ...]
    outputs: tuple[BufferView | Expr | None, ...]
    places: tuple[Place, ...]
    arena_bytes: Expr
    decisions: tuple[Decision, ...] = ()
    sources: tuple[Source, ...] = ()

    def __str__(self) -> str:
        return text_of(self)

    @property
    def kernel_count(self) -> int:
        """Kernel launches in one run of the region."""
        return sum(isinstance(s, KernelCall) for s in self.steps)

    @property
    def library_count(self) -> int:
        """Library calls in one run of the region."""
        return sum(isinstance(s, LibraryCall) for s in self.steps)

    def buffer_map(self) -> dict[str, Buffer]:
        """Buffers by name."""
        return {b.name: b for b in self.buffers}
