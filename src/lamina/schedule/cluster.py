"""Thread-block clusters: a row too wide for one program is shared by several that run at the same time, and read once.

Clusters of up to eight programs exist from compute capability 9.0 on. Each holds its tile in registers, and an exchange
of what they reduced costs a few microseconds, in which other programs of a multiprocessor go on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lamina.base.dtypes import DTYPES
from lamina.base.target import CLUSTERS, Target
from lamina.ir.index import Expr, Loaded, as_expr, prod
from lamina.ir.loops import Check, Load, Nest, Random, Reduce, Scan, Store, defined, operands
from lamina.ir.plan import Block, GpuSchedule
from lamina.schedule.gpu_cost import phases

__all__ = ["MOST_PROGRAMS", "joined", "reread", "shared_loop", "shared_rows"]

MOST_PROGRAMS = 8
"""Programs of a cluster that every GPU with clusters can run."""
_TILES = (8192, 16384, 32768)
"""Points of a program's tile: a smaller one lets other programs of the multiprocessor work while it waits."""
_LOOP_TILE = 16384
"""Points of a tile of a shared loop, of all operands together, for 32 warps (H200, softmax of 512 rows of 262144: 206
us by one program a row, 175 by eight).
"""
_UNDER_WAY = 2
"""Programs of a multiprocessor that read rows again."""
_JOINED = ("sum", "max", "min", "welford")


def shared_rows(
    nest: Nest, dtypes: Mapping[str, str], target: Target, found: GpuSchedule, extents: Mapping[str, int]
) -> GpuSchedule | None:
    """``found``, which goes over rows in tiles more than once, with a cluster of programs for each row instead.

    None where rows are read once anyway, do not fit the registers of a cluster, or are reduced in another way than by
    sums, extremes and moments in float32.
    """
    loops = [b for b in found.blocks if b.role == "loop"]
    apart = [b for b in found.blocks if b.role != "loop"]
    if not target.has(CLUSTERS) or found.kind != "loops" or len(loops) != 1 or loops[0] is not found.blocks[-1]:
        return None
    if any(b.role != "grid" or b.size != 1 for b in apart) or not joined(nest, set(loops[0].axes)):
        return None
    (loop,) = loops
    width = prod(a.extent for a in nest.axes if a.name in loop.axes)
    if not width.is_int or phases(nest, set(loop.axes)) < 2:
        return None
    peel = found.peel
    if peel and not _whole_groups(nest, loop.axes, peel):
        return None
    size = next((n for n in _TILES if width.const + max(peel - 1, 0) <= n * MOST_PROGRAMS), 0)
    if not size or width.const <= size:
        return None
    warps = min(32, size // 1024 * _wide_loads(nest, loop.axes))
    block = Block(loop.axes, size, "cluster")
    made = GpuSchedule("rows", (*apart, block), warps=warps, online=True, peel=peel, approximate=found.approximate)
    return replace(made, approximate_sums=target.approximate)


def shared_loop(
    nest: Nest, dtypes: Mapping[str, str], target: Target, found: GpuSchedule, extents: Mapping[str, int]
) -> GpuSchedule | None:
    """``found``, which goes over rows in tiles more than once, with the loop of each row shared by a cluster.

    So few rows are under way then that L2 holds what the next phase reads again. None where it does
    so anyway, where rows begin at any element, or where programs cannot join what is reduced.
    """
    loops = [b for b in found.blocks if b.role == "loop"]
    apart = [b for b in found.blocks if b.role != "loop"]
    if not target.has(CLUSTERS) or found.kind != "loops" or found.peel or len(loops) != 1:
        return None
    (loop,) = loops
    if any(b.role != "grid" or b.size != 1 for b in apart) or not joined(nest, set(loop.axes)):
        return None
    if any(isinstance(e, Reduce) and e.op == "welford" for e in nest.body):
        return None  # moments of a tile take so many registers that programs wait alone (batch norm: 201 us for 108)
    width = prod(a.extent for a in nest.axes if a.name in loop.axes)
    if not width.is_int or phases(nest, set(loop.axes)) < 2:
        return None
    row = sum(size * width.const for size in reread(nest, dtypes, set(loop.axes)))
    tile = _LOOP_TILE // _wide_loads(nest, loop.axes)
    if _UNDER_WAY * target.processors * row < target.l2_bytes or width.const < MOST_PROGRAMS * tile:
        return None
    blocks = tuple(Block(b.axes, tile, "loop") if b is loop else b for b in found.blocks)
    made = GpuSchedule("loops", blocks, warps=32, online=True, approximate=found.approximate, cluster=MOST_PROGRAMS)
    return replace(made, approximate_sums=target.approximate)


def reread(nest: Nest, dtypes: Mapping[str, str], over: set[str]) -> list[int]:
    """Bytes of an element of each operand that reductions over these axes read."""
    wanted: set[str] = set()
    found: dict[tuple[str, tuple[Expr, ...]], int] = {}
    for eqn in reversed(nest.body):
        if isinstance(eqn, Store | Check):
            continue
        if isinstance(eqn, Reduce) or wanted & set(defined(eqn)):
            wanted |= set(operands(eqn))
            if isinstance(eqn, Load) and eqn.index[0].axes() > over:
                found[eqn.buffer, eqn.index] = DTYPES[dtypes[eqn.buffer]].size
    return list(found.values())


def joined(nest: Nest, over: set[str]) -> bool:
    """Whether programs can join every reduction of a nest."""
    for eqn in nest.body:
        if isinstance(eqn, Scan | Random | Check):
            return False
        if isinstance(eqn, Reduce):
            held = DTYPES[eqn.dtype]
            if eqn.op not in _JOINED or set(eqn.axes) != over or not held.is_float or held.size > 4:
                return False
        elif isinstance(eqn, Load | Store):
            gathered = any(isinstance(a, Loaded) for a in eqn.index[0].atoms())
            if gathered or (isinstance(eqn, Store) and eqn.mode != "set"):
                return False
    return True


def _whole_groups(nest: Nest, axes: tuple[str, ...], peel: int) -> bool:
    """Whether aligned groups of ``peel`` elements around rows that begin anywhere end within their buffers."""
    if len(axes) != 1:
        return False
    axis = next(a for a in nest.axes if a.name == axes[0])
    origins: set[Expr] = set()
    for eqn in nest.body:
        if isinstance(eqn, Load | Store) and eqn.index[0].coefficient(axis) == 1:
            rest = eqn.index[0] - as_expr(axis)
            if rest.axes():
                origins.add(rest)
    for rest in origins:
        low, high = rest.bounds()
        if low != 0 or high is None or not high.is_int or (high.const + axis.extent.const) % peel:
            return False
    return len(origins) == 1


def _wide_loads(nest: Nest, axes: tuple[str, ...]) -> int:
    """Tiles that a program holds at once, one or two of them."""
    loads = {(e.buffer, e.index) for e in nest.body if isinstance(e, Load) and len(e.index[0].axes()) > len(axes)}
    return 2 if len(loads) > 1 else 1
