"""Rich's consoles and tables, imported without a draw from Python's random numbers.

Rich draws one when it is imported, and Lamina's modules are imported when they are first asked for: that is after the
user has seeded, whose numbers would be others than without Lamina.
"""

from __future__ import annotations

import random
from typing import Any

_STATE = random.getstate()
from rich.console import Console  # noqa: E402 - between the two states
from rich.table import Table  # noqa: E402

random.setstate(_STATE)

__all__ = ["Console", "Table", "plain_console"]


def plain_console(**how: Any) -> Console:
    """A console that prints texts as they are: brackets are no markup, ``:x:`` is no emoji, no number has a colour."""
    return Console(markup=False, emoji=False, highlight=False, **how)
