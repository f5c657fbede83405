"""Tiles in which tensor cores evaluate a product nest, and how long that takes by estimate."""

from __future__ import annotations

from collections.abc import Mapping

from lamina.base.dtypes import DTYPES
from lamina.ir.index import Expr
from lamina.ir.loops import Nest, Store
from lamina.ir.plan import Block, GpuSchedule
from lamina.ir.product import Product, as_product
from lamina.schedule.gpu_target import GpuTarget

__all__ = ["multiplications", "product_schedules", "tiled_us"]

_RATE = 2.0
"""Multiply-adds of half precision that a multiprocessor of an H100 or H200 does in a nanosecond, in thousands, in the
best of our kernels: 530 TFLOP/s on 132 processors."""

_FEWEST = 1 << 20
"""Multiplications below which a product is not worth a kernel of its own kind."""

_STEP_US = 0.2
"""Microseconds between one tile of the summed axis and the next, however small they are."""

_GUESS = 4096
"""What an unknown size counts as."""

_TILES: tuple[tuple[int, int, int, int, int, float], ...] = (
    (128, 256, 64, 8, 3, 1.0),
    (128, 128, 64, 8, 4, 0.92),
    (128, 128, 64, 4, 4, 0.9),
    (64, 256, 64, 4, 4, 0.85),
    (64, 128, 64, 4, 4, 0.75),
    (128, 64, 64, 4, 4, 0.75),
    (64, 64, 64, 4, 5, 0.55),
    (32, 64, 128, 4, 4, 0.35),
    (16, 128, 128, 4, 4, 0.25),
    (16, 64, 128, 4, 5, 0.2),
    (16, 32, 256, 4, 4, 0.15),
)
"""Rows, columns and summed points of a tile, warps, stages, and the share of the best rate that such tiles reach."""


def product_schedules(nest: Nest, dtypes: Mapping[str, str], target: GpuTarget) -> list[GpuSchedule]:
    """Ways to run a flat nest on the tensor cores, the fastest by estimate first; none where it is no such product."""
    product = as_product(nest)
    if product is None or target.capability < 80 or multiplications(nest) < _FEWEST:
        return []
    extents = {a.name: _guess(a.extent) for a in nest.axes}
    ranked = sorted(_TILES, key=lambda tile: _tiled_us(product, extents, tile, target))
    rounded = [DTYPES[dtypes[e.buffer]] for e in nest.body if isinstance(e, Store)]
    approximate = target.approximate and all(d.size <= 2 or not d.is_float for d in rounded)
    found: list[GpuSchedule] = []
    for rows, columns, inner, warps, stages, _ in ranked:
        blocks = (
            *(Block((a,), 1, "grid") for a in product.batch),
            Block(product.rows, rows, "grid"),
            Block(product.columns, columns, "grid"),
            Block(product.inner, inner, "loop"),
        )
        while stages > 1 and stages * 2 * inner * (rows + columns) > target.shared_bytes - 8192:
            stages -= 1
        found.append(GpuSchedule("product", blocks, warps, stages, approximate=approximate))
    return found[:8]


def _guess(extent: Expr) -> int:
    return extent.const if extent.is_int else _GUESS


def multiplications(nest: Nest) -> int:
    """How many multiplications a nest stands for, with a guess for unknown sizes."""
    total = 1
    for axis in nest.axes:
        total *= _guess(axis.extent)
    return total


def tiled_us(nest: Nest, target: GpuTarget) -> float:
    """Microseconds that a product nest's multiplications take in the best tiles, by estimate."""
    product = as_product(nest)
    assert product is not None
    extents = {a.name: _guess(a.extent) for a in nest.axes}
    return min(_tiled_us(product, extents, tile, target) for tile in _TILES)


def _sizes(product: Product, extents: Mapping[str, int]) -> tuple[int, int, int, int]:
    """Matrices, rows, columns and summed points."""
    found = []
    for names in (product.batch, product.rows, product.columns, product.inner):
        count = 1
        for name in names:
            count *= extents[name]
        found.append(count)
    return found[0], found[1], found[2], found[3]


def _tiled_us(
    product: Product, extents: Mapping[str, int], tile: tuple[int, int, int, int, int, float], target: GpuTarget
) -> float:
    """Microseconds of the multiplications in tiles: whole waves of programs, one on each multiprocessor."""
    batch, m, n, k = _sizes(product, extents)
    rows, columns, inner, warps, _, share = tile
    programs = batch * -(-m // rows) * -(-n // columns)
    # Programs of four warps run two at a time and hide each other's latencies.
    beside = 2 if warps == 4 and programs > target.processors else 1
    waves = -(-programs // (target.processors * beside))
    busy = waves * beside * rows * columns * k / (_RATE * share * 1e6)
    # A multiprocessor alone cannot read faster than this however few of them work.
    read = 2 * k * (rows + columns) * waves * beside / (2.2 * target.copy_gbs / target.processors * 1e3)
    return max(busy, read, waves * -(-k // inner) * _STEP_US)
