"""Steps of a search lead from schedules that are near in time, however their blocks differ."""

from __future__ import annotations

import pytest

from lamina.ir.plan import Block, GpuSchedule
from lamina.tuning.search import Search

LENGTHS = {"i0": 4096, "i1": 4096}
ROWS = GpuSchedule("pointwise", (Block(("i0",), 1, "grid"), Block(("i1",), 512, "grid")), warps=4)
ALL = GpuSchedule("pointwise", (Block(("i0", "i1"), 512, "grid"),), warps=4)


@pytest.mark.parametrize(("microseconds", "both"), [(104.0, True), (150.0, False)])
def test_schedules_of_other_blocks_are_stepped_from_where_they_are_near(microseconds: float, both: bool) -> None:
    search = Search(ALL, 100.0, 10.0, LENGTHS, lambda s: s, {ROWS: microseconds})
    asked = search.asked()
    assert any(len(s.blocks) == 1 for s in asked)
    assert any(len(s.blocks) == 2 for s in asked) is both
    assert not {ROWS, ALL} & set(asked), "what was timed is not timed again"


def test_what_was_not_chosen_does_not_become_the_best() -> None:
    """The choice was made between all that were timed, of which some differ by noise alone."""
    search = Search(ALL, 100.0, 10.0, LENGTHS, lambda s: s, {ROWS: 95.0})
    search.told(dict.fromkeys(search.asked(), 200.0))
    assert search.best == ALL
