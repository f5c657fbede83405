"""The search around a kernel's schedule: schedules of the same nest, each timed once, and the fastest of them."""

from benchmarks.gpu_candidates import Search, climb, searches_of
from benchmarks.gpu_idle import H100
from lamina.codegen.triton.emit import emit
from lamina.ir.plan import GpuSchedule
from lamina.schedule.gpu_neighbours import around


def _timed(searches: list[Search]) -> None:
    """Programs are the faster the fewer warps they have; four at least."""

    def timer(asked: dict[int, list[GpuSchedule]]) -> None:
        for k, found in asked.items():
            for schedule in found:
                assert schedule not in searches[k].times, "nothing is timed twice"
                emit(searches[k].with_schedule(schedule), H100)
                searches[k].times[schedule] = 10.0 + abs(schedule.warps - 4)

    climb(searches, 4, timer)


def test_search_goes_on_from_the_fastest() -> None:
    searches = [s for s in searches_of("6203.fp32.training") if s.chosen.warps > 8]
    chosen = [s.chosen.warps for s in searches]
    assert chosen, "the fastest is beside all that is chosen"
    _timed(searches)
    assert [s.best.warps for s in searches] == [4] * len(searches)
    assert [s.lost for s in searches] == [warps - 4 for warps in chosen]


def test_neighbours_hold_the_same_axes() -> None:
    (search, *_) = searches_of("6402.fp32.forward")
    near = list(around(search.chosen, search.extents(), 2))
    assert near
    for schedule in near:
        assert schedule != search.chosen
        assert [b.axes for b in schedule.blocks] == [b.axes for b in search.chosen.blocks]
