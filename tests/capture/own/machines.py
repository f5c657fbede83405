"""The ways in which the facts of a call are asked: in Python, and by the guard machine."""

from __future__ import annotations

from lamina.backends.caches import guard_machine as machine_of_options
from lamina.capture.own.guards.library import Library
from lamina.options import Options


def no_machine() -> None:
    """Facts are asked in Python."""


def guard_machine() -> Library | None:
    """The machine, where there is a compiler."""
    return machine_of_options(Options.from_environment())


MACHINES = {"python": no_machine, "machine": guard_machine}
