"""A kernel's schedule searched for by the clock, step by step from the one that the cost model chose.

The model ranks a few schedules, and where it is wrong all of them may be slow: that shows in a time far above what the
kernel's bytes and instructions take. Then schedules around the fastest are timed, first four times as large or small
in one respect (or in points and warps, a thread's work as it was), then twice, and where that gained the step is taken
again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any

from lamina.ir.plan import Block, GpuSchedule
from lamina.schedule.gpu_neighbours import around, length_of, scaled

__all__ = ["Search", "schedule_from_json", "schedule_to_json"]

_FACTOR = 4
"""How many times as large or small the first steps are; the last ones are half of that."""
_GAIN = 0.97
"""Share of the time down to which another schedule is the same."""


@dataclass(slots=True)
class Search:
    """The search for one kernel. ``chosen`` takes ``microseconds``, ``expected`` is what its work should take.

    ``lengths`` gives each axis of its nest its length; ``fits`` a schedule's form that the GPU can run, None for none.
    ``timed``: the microseconds of schedules that were not chosen.
    """

    chosen: GpuSchedule
    microseconds: float
    expected: float
    lengths: Mapping[str, int]
    fits: Callable[[GpuSchedule], GpuSchedule | None]
    timed: Mapping[GpuSchedule, float] = field(default_factory=dict)
    best: GpuSchedule = field(init=False)
    times: dict[GpuSchedule, float] = field(default_factory=dict)
    _factor: int = _FACTOR
    _leap: GpuSchedule | None = None

    def __post_init__(self) -> None:
        self.best = self.chosen
        self.times.update((s, max(us, self.microseconds)) for s, us in self.timed.items())
        self.times[self.chosen] = self.microseconds

    @property
    def lost(self) -> float:
        """Microseconds that there may be to gain."""
        return self.times[self.best] - self.expected

    def asked(self) -> tuple[GpuSchedule, ...]:
        """Schedules to time next, none where the search is over."""
        while self._factor > 1:
            near = [*self._leaps()]
            for schedule in (self.best, *self._otherwise()):
                near += around(schedule, self.lengths, self._factor)
                near += scaled(schedule, self.lengths, self._factor)
            found = tuple(s for s in dict.fromkeys(self._fitting(near)) if s not in self.times)
            if found:
                return found
            self._factor //= 2
        return ()

    def told(self, times: Mapping[GpuSchedule, float]) -> None:
        """Take the times of what was asked, infinite for what could not be run; what has none counts as such."""
        before, self._leap = self.best, None
        self.times.update(times)
        fastest = min(self.times, key=self.times.__getitem__)
        if self.times[fastest] < _GAIN * self.times[before]:
            self.best, self._leap = fastest, before
        else:
            self._factor //= 2

    def _otherwise(self) -> Iterable[GpuSchedule]:
        """The fastest of those with other blocks, where it is four gains behind at most: no step leads there.

        (H200, a reflected image of 179 x 6 x 13 x 1001: 95 us without tiles, from where the search began, 70 in rows.)
        """
        others = (s for s in self.times if [b.axes for b in s.blocks] != [b.axes for b in self.best.blocks])
        fastest = min(others, key=self.times.__getitem__, default=None)
        if fastest is not None and _GAIN**4 * self.times[fastest] < self.times[self.best]:
            yield fastest

    def _fitting(self, schedules: Iterable[GpuSchedule]) -> Iterable[GpuSchedule]:
        return (found for s in schedules if (found := self.fits(s)) is not None)

    def _leaps(self) -> Iterable[GpuSchedule]:
        """The last step again, twice as far as well."""
        if self._leap is None or len(self._leap.blocks) != len(self.best.blocks):
            return
        for power in (1, 2):
            warps = _further(self._leap.warps, self.best.warps, power)
            steps = [
                (b, _further(a.size, b.size, power)) for a, b in zip(self._leap.blocks, self.best.blocks, strict=True)
            ]
            if not 1 <= warps <= 32 or any(n < 1 for _, n in steps):
                return
            if all(n == b.size or n < 2 * length_of(b, self.lengths) for b, n in steps):
                yield replace(self.best, blocks=tuple(replace(b, size=n) for b, n in steps), warps=warps)


def _further(before: int, now: int, power: int) -> int:
    """``now`` times its ratio to ``before`` so many times; 0 where that is less than one."""
    ratio = max(now, before) // min(now, before)
    for _ in range(power):
        now = now * ratio if now >= before else now // ratio
    return now


_SETTINGS: dict[str, Callable[[Any], Any]] = {
    f.name: type(f.default) for f in fields(GpuSchedule) if f.default is not MISSING
}
"""What a schedule has besides its kind and its blocks, with the type of each: integers and marks."""


def schedule_to_json(schedule: GpuSchedule) -> dict[str, object]:
    """The schedule in JSON's types."""
    blocks = [[list(b.axes), b.size, b.role] for b in schedule.blocks]
    return {"kind": schedule.kind, "blocks": blocks} | {name: getattr(schedule, name) for name in _SETTINGS}


def schedule_from_json(content: object) -> GpuSchedule | None:
    """The schedule that ``schedule_to_json`` wrote; None for anything else."""
    if not isinstance(content, Mapping):
        return None
    try:
        blocks = tuple(Block(tuple(map(str, axes)), int(size), str(role)) for axes, size, role in content["blocks"])
        settings = {name: kind(content[name]) for name, kind in _SETTINGS.items()}
        return GpuSchedule(str(content["kind"]), blocks, **settings)
    except (KeyError, TypeError, ValueError):
        return None
