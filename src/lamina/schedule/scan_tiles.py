"""Tiles of scans on a GPU: rows that lie along the scan, and columns beside each other in memory.

A thread that holds all points of its columns combines them without asking others: seven instructions a point. Shared
by threads of a warp a column takes 8 more with each doubling, by several warps up to 150 (counted in code for sm_90).
So one warp takes a tile of columns, wide before tall. Rows take 8 to 15. What is best follows from the time that
memory takes, by the cost model, and that of the instructions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from lamina.base.dtypes import DTYPES
from lamina.ir.loops import Compute, Load, Scan, Store
from lamina.ir.ops import OPS
from lamina.ir.plan import Block, GpuSchedule
from lamina.schedule.gpu_cost import CostModel
from lamina.schedule.gpu_facts import ENOUGH_WARPS, NestFacts, power, warps_for
from lamina.schedule.gpu_work import NEAR, SECTOR

__all__ = ["scan_schedule"]

_WHOLE, _WIDEST = 4096, 16384
"""Points of a row that are taken at once, where there are enough rows and where not."""
_LOOP = (2048, 4096)
"""Points of the tiles of longer rows."""
_SEVERAL = 4096
"""Points of a tile of several rows."""
_COLUMNS = (256, 512, 1024, 2048)
"""Points of a tile of columns, which one warp takes."""
_SHORT_RUN = 256
"""Columns beside each other up to which a tile may hold several runs of them."""
_SIDE, _TRANSPOSED = 32, 4096
"""Columns of a tile's side, where operands are contiguous along different axes, and points of the tile."""
_EACH = (8, 16, 32)
"""Points of a row that a thread takes."""
_HEAVY = 60
"""Cost of a point's operations from which on they fill the registers (two arctangents: 226 for 16 points a thread, 109
for 8).
"""
_BUSY_COLUMNS, _BUSY_TILE = 30, (256, 128)
"""Cost from which on a tile of columns has so many points, and so many columns where they lie beside each other: few
warps are resident where each holds more, and nobody computes while they wait (H100, 120 times 17 points of 13,035
columns, costs 35, 48 and 49: 8 x 64 points of one warp 280 us, 2 x 128 248; 4 x 64 143, 2 x 128 130; 8 x 128 324 with
255 registers, 4 x 64 166, 2 x 128 148).
"""
_COMBINED = {"logaddexp": 70}
"""Costs of operations that scans combine points by, where that is not one instruction (code for sm_90: 64 points a
thread 38,000 lines of PTX, 255 registers and spills).
"""
_ISSUED = 1.1e5
"""Instructions of threads that a processor issues in a microsecond."""
_ALONE, _SHARED, _DOUBLED = 7, 6, 8
"""Instructions of a point in a column of one thread; more where several have it, and with each doubling of these."""
_WARPS, _COMPUTED = 8, 1.5
"""Instructions of a point more with each warp of those that share a column; of an operation for its cost."""
_ROW, _TREE, _WARP = 8, 60, 0.5
"""Instructions of a point in a row, of a thread for its part in joining the row, and more with each warp."""


def scan_schedule(facts: NestFacts) -> GpuSchedule:
    """The schedule of a nest with scans along one axis."""
    (along,) = facts.scanned
    rest = facts.ordered([a for a in facts.names if a != along])
    if any(e.op == "sort" for e in facts.nest.body if isinstance(e, Scan)):
        return _sorted_rows(facts, along, rest)
    crossed = facts.transposed_axes() if rest else None
    rows = crossed is None and (facts.fast == along or not rest)
    if crossed is not None:
        found = _transposed_tiles(facts, along, crossed)
    else:
        found = _rows(facts, along, rest) if rows else _columns(facts, along)
    cost = CostModel(facts.nest, facts.dtypes, facts.target, {a: facts.size((a,)) for a in facts.names})
    return min(found, key=lambda s: _time(facts, cost(s).share, s, rows))


def _time(facts: NestFacts, share: float, schedule: GpuSchedule, rows: bool) -> float:
    """Microseconds: what memory or instructions take, whichever is more, and half of the other."""
    points = computed = 1.0
    for block in schedule.blocks:
        length = facts.size(block.axes)
        points *= length
        computed *= -(-length // block.size) * block.size
    moved = 0.0
    for eqn in facts.nest.body:
        if isinstance(eqn, Load | Store):
            moved += facts.size(eqn.index[0].axes()) * DTYPES[facts.dtypes[eqn.buffer]].size
    memory = moved / (1e3 * facts.target.copy_gbs * share)
    if not rows:  # what a narrow tile fetches beside its columns, programs beside it have just read
        memory *= 1 + NEAR * max(0.0, SECTOR / (schedule.blocks[-1].size * facts.bytes()) - 1)
    each = _COMPUTED * _cost(facts)
    each += _of_row(schedule) if rows else _of_column(facts, schedule)
    issued = computed * each / (facts.target.processors * _ISSUED)
    if not rows:  # few warps wait for one another's results
        programs = math.prod(-(-facts.size(b.axes) // b.size) for b in schedule.blocks if b.role == "grid")
        issued *= max(1.0, ENOUGH_WARPS * facts.target.processors / (programs * schedule.warps))
    return max(memory, issued) + min(memory, issued) / 2


def _of_row(schedule: GpuSchedule) -> float:
    """Instructions of a point in rows."""
    points = 1
    for block in schedule.blocks:
        points *= block.size
    joined = schedule.warps * _WARP if schedule.warps > 1 else 0
    return _ROW + _TREE * 32 * schedule.warps / points + joined


def _of_column(facts: NestFacts, schedule: GpuSchedule) -> float:
    """Instructions of a point in columns."""
    (along,) = facts.scanned
    *_, last = schedule.blocks
    beside = math.prod(b.size for b in schedule.blocks if along not in b.axes)
    access = min(_access(facts, last), max(beside // (32 * schedule.warps), 1)) if beside == last.size else 1
    threads = 32 * schedule.warps * access // beside
    if threads <= 1:
        return _ALONE
    return _ALONE + _SHARED + _DOUBLED * math.log2(threads) + (_WARPS * schedule.warps if threads > 32 else 0)


def _access(facts: NestFacts, block: Block) -> int:
    """Numbers that a thread reads at once where ``block`` is contiguous."""
    wide = max(16 // facts.bytes(), 1)
    alone = set(block.axes) <= set(facts.run())
    return math.gcd(wide, facts.size(block.axes)) if alone and facts.known(block.axes) else 1


def _rows(facts: NestFacts, along: str, rest: tuple[str, ...]) -> Iterator[GpuSchedule]:
    """Several rows at once, one, or one in a loop."""
    length, units = facts.size((along,)), facts.size(rest)
    if facts.known([along]) and length <= (_WIDEST if units < facts.target.processors else _WHOLE):
        tiles = [Block((along,), max(power(length), 2), "whole")]
    else:
        sizes = (
            _LOOP[:1] if _cost(facts) >= _HEAVY else _LOOP
        )  # (H200, 1024 rows of 44,645: 2048 points 352 us, 4096 556)
        tiles = [Block((along,), size, "loop") for size in sizes]
    for tile in tiles:
        several = 1
        while several == 1 or (rest and several * tile.size <= _SEVERAL and several < 2 * units):
            outer = (Block(rest, several, "grid"),) if rest else ()
            for each in [n for n in _EACH if n <= _most(facts)]:
                yield _schedule(facts, (*outer, tile), tile.size * several, each)
            several *= 2


def _sorted_rows(facts: NestFacts, along: str, rest: tuple[str, ...]) -> GpuSchedule:
    """Whole rows, as many as make wide accesses where others lie beside them in memory."""
    tile = Block((along,), max(power(facts.size((along,))), 2), "whole")
    beside = facts.fast is not None and facts.fast != along
    several = max(_SEVERAL // 2 // tile.size, SECTOR // facts.bytes() if beside else 1)
    several = min(several, power(facts.size(rest)))
    outer = (Block(rest, several, "grid"),) if rest else ()
    return _schedule(facts, (*outer, tile), tile.size * several, _EACH[0])


def _columns(facts: NestFacts, along: str) -> Iterator[GpuSchedule]:
    """Tiles of one warp, of all widths that runs of memory suit; those of short runs hold the end of one and the
    beginning of the next.
    """
    run = tuple(a for a in facts.run() if a != along)
    slow = facts.ordered([a for a in facts.names if a != along and a not in run])
    tall = max(power(facts.size((along,))), 2)
    outer = (Block(slow, 1, "grid"),) if slow else ()
    joined = [((), facts.ordered([*slow, *run]))] if slow and facts.size(run) < _SHORT_RUN else []
    for rest, beside in ((outer, run), *joined):
        across = power(facts.size(beside))
        least = max(SECTOR // facts.bytes(), 1)
        programs = math.prod(-(-facts.size(b.axes) // b.size) for b in rest) * -(-facts.size(beside) // least)
        few = facts.known(facts.names) and programs < ENOUGH_WARPS * facts.target.processors
        if few and tall >= _COLUMNS[0] // 2:
            # H100, logaddexp over 700 points of 2100 columns: 64 x 8 in 263 programs of one warp 415 us, 128 x 1 86.
            for wide in [n for n in (1, 2, 4) if n < min(least, across)]:
                blocks = (*rest, Block((along,), _COLUMNS[0] // 2, "loop"), Block(beside, wide, "grid"))
                yield GpuSchedule("scan", blocks, warps=1, approximate=facts.approximate)
        most, least_wide = 64 * _most(facts), least if rest == outer else 32
        if _cost(facts) >= _BUSY_COLUMNS:
            most, least_wide = min(most, _BUSY_TILE[0]), max(least_wide, _BUSY_TILE[1])
        for points in [n for n in _COLUMNS if n <= most]:
            wide = min(across, least_wide)
            while wide <= min(across, points // 2):
                blocks = (*rest, Block((along,), min(tall, points // wide), "loop"), Block(beside, wide, "grid"))
                yield GpuSchedule("scan", blocks, warps=1, approximate=facts.approximate)
                wide *= 2


def _transposed_tiles(facts: NestFacts, along: str, crossed: tuple[str, str]) -> Iterator[GpuSchedule]:
    """Tiles of the axes along which different operands are contiguous."""
    tall = max(power(facts.size((along,))), 2)
    sides = facts.ordered([a for a in crossed if a != along])
    rest = facts.ordered([a for a in facts.names if a != along and a not in sides])
    outer = (Block(rest, 1, "grid"),) if rest else ()
    if len(sides) == 2 and facts.heavy():
        # Layouts are exchanged through shared memory, and few points of a thread hide that (H200, 16-bit numbers; 192 x
        # 206 columns, 83 instructions, tiles of 16 x 16 x 16 in eight warps 238 us, 8 x 8 x 16 100; 8 x 61, 42
        # instructions, 16 x 8 x 32 114, 8 x 8 x 32 51, 16 x 8 x 16 56).
        high = min(tall, _SIDE // 4)
        most = (_SIDE // 4, _SIDE // 2)
        tiles = [Block((a,), min(power(facts.size((a,))), n), "grid") for a, n in zip(sides, most, strict=True)]
        points = high * math.prod(b.size for b in tiles)
        yield _schedule(facts, (*outer, Block((along,), high, "loop"), *tiles), points, _EACH[0] // 2)
        return
    heights = [n for n in (2, 4, 8, 16, 32, 64) if n <= tall and (len(sides) == 2 or n >= min(_SIDE, tall) // 2)]
    for side, high in itertools.product((_SIDE // 2, _SIDE, 2 * _SIDE), heights):
        tiles = [Block((a,), min(power(facts.size((a,))), side), "grid") for a in sides]
        points = high * math.prod(b.size for b in tiles)
        if points <= _TRANSPOSED:
            for each in [n for n in _EACH if n <= _most(facts)]:
                yield _schedule(facts, (*outer, Block((along,), high, "loop"), *tiles), points, each)


def _cost(facts: NestFacts) -> int:
    """What is computed at a point, with what combines it with its neighbours."""
    return sum(OPS[e.op].cost for e in facts.nest.body if isinstance(e, Compute)) + _combining(facts) - 1


def _combining(facts: NestFacts) -> int:
    """The cost of the most expensive operation that scans combine points by; that of an addition is 1."""
    return max(_COMBINED.get(e.op, 1) for e in facts.nest.body if isinstance(e, Scan))


def _most(facts: NestFacts) -> int:
    """Points of a row that a thread may take; twice as many of columns."""
    if _cost(facts) >= _HEAVY:
        return _EACH[0]
    words = max(DTYPES[e.dtype].size for e in facts.nest.body if isinstance(e, Scan)) // 8 + 1
    return _EACH[-1] // words


def _schedule(facts: NestFacts, blocks: tuple[Block, ...], points: int, each: int) -> GpuSchedule:
    return GpuSchedule("scan", blocks, warps=warps_for(points, each), approximate=facts.approximate)
