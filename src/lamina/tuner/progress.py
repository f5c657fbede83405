"""What a terminal shows while candidates are tried: the one at work, its step, and the time left."""

from __future__ import annotations

from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from lamina.base.tables import plain_console
from lamina.tuner.table import duration
from lamina.tuner.values import Candidate, Row

__all__ = ["Progress"]


class Progress:
    """A line for each row and a bar below them, on standard error; silent unless ``shown``. A context manager."""

    def __init__(self, shown: bool, budget: float) -> None:
        self._console = plain_console(stderr=True)
        self._bar = Bar(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.completed}/{task.total}"),
            TimeElapsedColumn(),
            TextColumn(f"of {duration(budget)}"),
            console=self._console,
            disable=not shown,
            transient=True,
        )
        self._shown = shown
        self._task = self._bar.add_task("tuning", total=0)
        self._count = 0

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def more(self, count: int) -> None:
        """There are so many candidates more."""
        self._count += count
        self._bar.update(self._task, total=self._count)

    def stage(self, candidate: Candidate, stage: str) -> None:
        """A candidate begins a step."""
        self._bar.update(self._task, description=f"{candidate.name}: {stage}")

    def row(self, row: Row) -> None:
        """A candidate is done."""
        self._bar.advance(self._task)
        if self._shown:
            speed = f", {row.figures.speedup}" if row.figures is not None else ""
            reason = f": {row.reason}" if row.reason else ""
            self._bar.console.print(f"{row.candidate.name}: {row.verdict}{speed}{reason}")
