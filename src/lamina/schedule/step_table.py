"""Steps by numbers that keep their order while some are replaced, and which of them touch a buffer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lamina.ir.loops import Buffer, Nest, Step
from lamina.schedule.accesses import loaded, stored
from lamina.schedule.gpu_work import work

__all__ = ["StepTable"]


class StepTable:
    """Steps in their order; between any two there is a place for one more."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps: dict[int, Step] = {}
        self._writers: dict[str, set[int]] = {}
        self._readers: dict[str, set[int]] = {}
        self._costs: dict[int, float] = {}
        for number, step in enumerate(steps):
            self.replace(2 * number, step)

    def copy(self) -> StepTable:
        """Another table with the same steps by the same numbers."""
        made = StepTable(())
        made.apply(self._steps)
        made._costs.update(self._costs)
        return made

    def steps(self) -> list[Step]:
        """All of them, in order."""
        return [self._steps[number] for number in sorted(self._steps)]

    def unique(self, hint: str) -> str:
        """A name that no step has."""
        taken = {step.name for step in self._steps.values()}
        while hint in taken:
            hint += "_"
        return hint

    def nest(self, number: int) -> Nest | None:
        """The step with this number, if it is a nest."""
        step = self._steps.get(number)
        return step if isinstance(step, Nest) else None

    def writers(self, name: str) -> list[int]:
        """Numbers of the steps that write a buffer."""
        return sorted(self._writers.get(name, ()))

    def readers(self, name: str) -> list[int]:
        """Numbers of the steps that read a buffer."""
        return sorted(self._readers.get(name, ()))

    def free(self, number: int) -> int | None:
        """The number of the place behind a step, if nothing is there."""
        return number + 1 if number % 2 == 0 and number + 1 not in self._steps else None

    def cost(self, number: int, buffers: Mapping[str, Buffer]) -> float:
        """The time that a nest takes; none where there is no step."""
        nest = self.nest(number)
        if nest is None:
            return 0.0
        if number not in self._costs:
            self._costs[number] = work(nest, buffers)
        return self._costs[number]

    def apply(self, steps: Mapping[int, Step | None]) -> None:
        """Put each step in its place."""
        for number, step in steps.items():
            self.replace(number, step)

    def replace(self, number: int, step: Step | None) -> None:
        """Put a step, or none, in the place of what is there."""
        old = self._steps.pop(number, None)
        self._costs.pop(number, None)
        if old is not None:
            for names, users in ((stored(old), self._writers), (loaded(old), self._readers)):
                for name in names:
                    users[name].discard(number)
        if step is not None:
            self._steps[number] = step
            for names, users in ((stored(step), self._writers), (loaded(step), self._readers)):
                for name in names:
                    users.setdefault(name, set()).add(number)
