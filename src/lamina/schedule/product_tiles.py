"""Tiles in which tensor cores evaluate a product nest, and how long that takes by estimate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeGuard

from lamina.base.dtypes import DTYPES
from lamina.base.target import BULK_COPIES, TENSOR_CORES, Target
from lamina.ir.index import Axis, Expr
from lamina.ir.loops import Equation, Load, Nest, Store
from lamina.ir.plan import Block, GpuSchedule
from lamina.ir.product import Product, as_product

__all__ = ["multiplications", "product_schedules", "reads_meanwhile", "tiled_us", "typical_tile"]

_RATE = 2.0
"""Multiply-adds of half precision that a multiprocessor of an H100 or H200 does in a nanosecond, in thousands, in
tiles whose share is 1: 530 TFLOP/s on 132 processors."""

_FEWEST = 1 << 20
"""Multiplications below which a product is not worth a kernel of its own kind."""

_COMPUTED = 0.7
"""The share of their rate that tiles reach of which an operand passes through registers, where it is computed."""

_ALONE = 1.4
"""How much longer such tiles take where no other program of the multiprocessor hides what they wait for (H200, weights
of 14336x4096 as bytes: 39 us with 112 programs, 28 with 224, of 16 rows each)."""

_STEP_US = 0.2
"""Microseconds between one tile of the summed axis and the next, however small they are."""

_GUESS = 4096
"""What an unknown size counts as."""

_REGISTERS = 192
"""Registers of a thread that may hold values of an epilogue. Beyond, the rest of 255 is not enough for addresses and
what comes between: such kernels took the compiler 7 to 8 s, and two to three times the library's time (H100)."""

_SPARE = 2 << 10
"""Bytes of shared memory that barriers and the GPU itself need."""

_PIECE = 8
"""Elements of half precision in 16 bytes."""


@dataclass(frozen=True, slots=True)
class _Tile:
    """Rows, columns and summed points of a tile, warps, stages, and the share of the best rate that such tiles reach.

    ``beside`` programs share a multiprocessor; if it is not 0, the grid is persistent, descriptors move the tiles, the
    epilogue is done in ``parts``, and, if ``flat``, the next tile's operands are read meanwhile.
    """

    rows: int
    columns: int
    inner: int
    warps: int
    stages: int
    share: float
    beside: int = 0
    parts: int = 1
    flat: bool = False

    def registers(self, values: int) -> int:
        """Registers of a thread that so many float32 values of every point of a part take."""
        return values * self.rows * self.columns // self.parts // (32 * self.warps)

    def shared(self, stages: int, exchanged: int) -> int:
        """Bytes of shared memory for so many stages of operands and a part of the result, and for turning a part into
        another layout of registers where the epilogue reads or writes elements of ``exchanged`` bytes besides.
        """
        operands = 2 * stages * self.inner * (self.rows + self.columns)
        part = self.rows * self.columns // self.parts
        return operands + (part * (2 + exchanged) if self.beside else 0)


_TILES = (
    _Tile(128, 256, 64, 8, 3, 1.1),
    _Tile(128, 128, 64, 8, 4, 1.0),
    _Tile(128, 128, 64, 4, 4, 0.9),
    _Tile(64, 256, 64, 4, 4, 0.85),
    _Tile(64, 128, 64, 4, 4, 0.75),
    _Tile(128, 64, 64, 4, 4, 0.75),
    _Tile(64, 64, 64, 4, 5, 0.55),
    _Tile(32, 64, 128, 4, 4, 0.35),
    _Tile(16, 128, 128, 4, 4, 0.25),
    _Tile(16, 64, 128, 4, 5, 0.2),
    _Tile(16, 32, 256, 4, 4, 0.15),
)

_COPIED_TILES = (
    _Tile(128, 256, 64, 8, 4, 1.46, 1, 2, True),
    _Tile(128, 128, 64, 4, 3, 1.41, 2, 4, True),
    _Tile(256, 128, 64, 8, 4, 1.3, 1, 2, True),
    _Tile(128, 128, 64, 8, 4, 1.31, 1, 1, True),
    _Tile(128, 64, 64, 4, 3, 1.0, 2, 1, True),
    _Tile(128, 64, 64, 4, 2, 1.0, 3),
)
"""Tiles that the copy engine moves (sm_90). The first reaches 773 TFLOP/s on an H100 where the library reaches 764
(8192x16384x4096)."""


def product_schedules(nest: Nest, dtypes: Mapping[str, str], target: Target) -> list[GpuSchedule]:
    """Ways to run a flat nest on the tensor cores, the fastest by estimate first; none where it is no such product."""
    product = as_product(nest)
    if product is None or not target.has(TENSOR_CORES) or multiplications(nest) < _FEWEST:
        return []
    extents = {a.name: _guess(a.extent) for a in nest.axes}
    ranked = sorted(_tiles(nest, product, target), key=lambda tile: _tiled_us(product, extents, tile, target))
    rounded = [DTYPES[dtypes[e.buffer]] for e in nest.body if isinstance(e, Store)]
    approximate = target.approximate and all(d.size <= 2 or not d.is_float for d in rounded)
    besides = [DTYPES[dtypes[e.buffer]].size for e in product.epilogue if _by_pointers(e, product)]
    exchanged = max(besides, default=0)
    return [_schedule(product, tile, target, approximate, exchanged) for tile in ranked[:8]]


def _schedule(product: Product, tile: _Tile, target: Target, approximate: bool, exchanged: int) -> GpuSchedule:
    blocks = (
        *(Block((a,), 1, "grid") for a in product.batch),
        Block(product.rows, tile.rows, "grid"),
        Block(product.columns, tile.columns, "grid"),
        Block(product.inner, tile.inner, "loop"),
    )
    stages = tile.stages
    while stages > 1 and tile.shared(stages, exchanged) > target.shared_bytes - _SPARE:
        stages -= 1
    return GpuSchedule(
        "product",
        blocks,
        warps=tile.warps,
        stages=stages,
        approximate=approximate,
        persistent=tile.beside * target.processors,
        descriptors=tile.beside > 0,
        epilogue_subtiles=tile.parts,
        flat=tile.flat,
    )


def _by_pointers(eqn: Equation, product: Product) -> TypeGuard[Load | Store]:
    """Whether an equation of an epilogue touches a whole tile of memory that the copy engine does not."""
    if not isinstance(eqn, Load | Store):
        return False
    axes = eqn.index[0].axes()
    whole = bool(axes & set(product.rows)) and bool(axes & set(product.columns))
    fast = [a for a in eqn.index[0].atoms() if isinstance(a, Axis) and a.name == product.columns[-1]]
    return whole and (isinstance(eqn, Load) or not fast or eqn.index[0].coefficient(fast[0]) != 1)


def _tiles(nest: Nest, product: Product, target: Target) -> list[_Tile]:
    """The tiles that the product may be evaluated in."""
    known = all(a.extent.is_int for a in nest.axes)
    copied = target.has(BULK_COPIES) and not product.batch and known and _copied(nest, product)
    values = _values_at_once(product)
    found = [t for t in (*_TILES, *(_COPIED_TILES if copied else ())) if t.registers(values) <= _REGISTERS]
    return found or list(_TILES)


def _values_at_once(product: Product) -> int:
    """How many values of a point an epilogue holds at once: the product's, and what it reads or stores besides."""
    whole = set(product.rows) | set(product.columns)
    touched = [e for e in product.epilogue if isinstance(e, Load | Store) and e.index[0].axes() >= whole]
    return 1 + max(len(touched) - 1, 0)


def _copied(nest: Nest, product: Product) -> bool:
    """Whether the copy engine can move both operands: they lie in memory as they are, in rows of 16-byte pieces."""
    for name, prologue in zip((product.left, product.right), product.prologues, strict=True):
        load = prologue[0]
        if len(prologue) != 1 or not isinstance(load, Load) or load.out != name or load.dtype != product.dtype:
            return False
        steps = [load.index[0].coefficient(a) for a in nest.axes if a.name in load.index[0].axes()]
        if any(s is None or not s.is_int for s in steps) or load.index[0].const % _PIECE or load.mask is not None:
            return False
        wide = [s.const for s in steps if s is not None and s != 1]
        if len(wide) == len(steps) or any(s % _PIECE for s in wide):
            return False
    return True


def _guess(extent: Expr) -> int:
    return extent.const if extent.is_int else _GUESS


def multiplications(nest: Nest) -> int:
    """How many multiplications a nest stands for, with a guess for unknown sizes."""
    total = 1
    for axis in nest.axes:
        total *= _guess(axis.extent)
    return total


def tiled_us(nest: Nest, target: Target) -> float:
    """Microseconds that a product nest's multiplications take in the best tiles, by estimate."""
    product = as_product(nest)
    assert product is not None
    extents = {a.name: _guess(a.extent) for a in nest.axes}
    return min(_tiled_us(product, extents, tile, target) for tile in _tiles(nest, product, target))


def typical_tile(nest: Nest, target: Target) -> tuple[int, int]:
    """Rows and columns of the tiles that a product nest is fastest in, by estimate."""
    product = as_product(nest)
    assert product is not None
    extents = {a.name: _guess(a.extent) for a in nest.axes}
    best = min(_tiles(nest, product, target), key=lambda tile: _tiled_us(product, extents, tile, target))
    return best.rows, best.columns


def reads_meanwhile(nest: Nest, target: Target) -> bool:
    """Whether tiles are read while the epilogue of others runs."""
    product = as_product(nest)
    return product is not None and any(tile.beside for tile in _tiles(nest, product, target))


def _sizes(product: Product, extents: Mapping[str, int]) -> tuple[int, int, int, int]:
    """Matrices, rows, columns and summed points."""
    found = []
    for names in (product.batch, product.rows, product.columns, product.inner):
        count = 1
        for name in names:
            count *= extents[name]
        found.append(count)
    return found[0], found[1], found[2], found[3]


def _tiled_us(product: Product, extents: Mapping[str, int], tile: _Tile, target: Target) -> float:
    """Microseconds of the multiplications in tiles: whole waves of programs, one on each multiprocessor."""
    batch, m, n, k = _sizes(product, extents)
    programs = batch * -(-m // tile.rows) * -(-n // tile.columns)
    # Programs of four warps run two at a time and hide each other's latencies.
    beside = tile.beside or (2 if tile.warps == 4 and programs > target.processors else 1)
    waves = -(-programs // (target.processors * beside))
    busy = waves * beside * tile.rows * tile.columns * k / (_RATE * tile.share * 1e6)
    # A multiprocessor alone cannot read faster than this however few of them work.
    fastest = (4.0 if tile.beside else 2.2) * target.copy_gbs / target.processors * 1e3
    read = 2 * k * (tile.rows + tile.columns) * waves * beside / fastest
    plain = max(busy, read, waves * -(-k // tile.inner) * _STEP_US)
    if all(len(prologue) == 1 for prologue in product.prologues):
        return plain
    return plain / _COMPUTED * (_ALONE if programs <= target.processors else 1.0)
