"""Columns on a GPU: reduced axes that continue each other are cut as one, into parts that keep all processors busy."""

from __future__ import annotations

import pytest
import torch

from lamina.base.target import nvidia
from lamina.ir.loops import Nest
from lamina.schedule.column_tiles import COLUMNS, parts_of_columns, rows_of_tile
from lamina.schedule.joined_axes import with_joined_axes
from tests.schedule.test_gpu_split import cut, schedules

PROCESSORS = 132


@pytest.mark.parametrize(("operands", "written"), [(1, False), (3, False), (3, True)])
@pytest.mark.parametrize(
    ("points", "channels"),
    [(401408, 64), (401408, 256), (100352, 128), (100352, 512), (25088, 1024), (6272, 2048), (1024, 64)],
)
def test_parts_of_columns_are_equal_and_no_processor_has_much_more_to_do(
    points: int, channels: int, operands: int, written: bool
) -> None:
    tiles, rows = channels // COLUMNS, rows_of_tile(operands, written)
    parts = parts_of_columns(points, tiles, rows, PROCESSORS)
    assert points % parts == 0
    assert parts * tiles <= 3 * PROCESSORS
    most = -(-parts * tiles // PROCESSORS) * -(-(points // parts) // rows) * rows
    if points * tiles > 64 * rows * PROCESSORS:  # large enough to divide well
        assert points * tiles / PROCESSORS > 0.8 * most


def test_columns_are_cut_only_where_that_pays() -> None:
    assert parts_of_columns(100, 4, 128, PROCESSORS) == 1  # not one tile
    assert parts_of_columns(4096, 400, 128, PROCESSORS) == 1  # enough columns


@pytest.mark.parametrize("sizes", [(64, 197), (31, 64), (5, 7, 11, 4)])
def test_rows_of_several_dimensions_are_cut_as_one(sizes: tuple[int, ...]) -> None:
    """Their number has divisors where none of the dimensions has as many points as there are processors."""
    torch.manual_seed(0)
    x = torch.randn(*sizes, 64)
    over = tuple(range(len(sizes)))
    _, made = cut(lambda x: ((x * x).sum(over), x.var(over)), [x])
    parts = [s for s in made.steps if isinstance(s, Nest) and s.name.endswith("_parts")]
    assert parts
    assert all(len(nest.axes) == 3 for nest in parts)  # the parts, a part's rows, columns


@pytest.mark.parametrize(("narrow", "joined"), [(40, True), (32, False)])
def test_rows_apart_in_memory_stay_apart(narrow: int, joined: bool) -> None:
    x = torch.randn(64, 40, 64)
    fused, _ = cut(lambda x: (x[:, :narrow].sum((0, 1)),), [x])
    (nest,) = (s for s in fused.steps if isinstance(s, Nest))
    made = with_joined_axes(nest, fused.buffer_map())
    assert (made is not nest) == joined
    assert len(made.axes) == (2 if joined else 3)


def test_statistics_are_read_in_tiles_of_wide_runs() -> None:
    """25088 rows of 256: no tall tile of 16 columns."""

    def statistics(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.var_mean(x.float(), (0, 2, 3), correction=0)

    x = torch.zeros(128, 256, 14, 14, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    first, *_ = schedules(statistics, [x])
    (wide,) = [b.size for b in first.blocks if b.role == "grid" and b.size > 1]
    (tall,) = [b.size for b in first.blocks if b.role == "loop"]
    assert (first.kind, wide, tall) == ("columns", COLUMNS, 128)
    assert nvidia().processors == PROCESSORS
