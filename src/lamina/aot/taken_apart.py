"""Which operations tracing takes apart, and into what."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lamina.aot import reasons
from lamina.base.decision import Decision
from lamina.ops import row_of

__all__ = ["TakenApart"]


class TakenApart:
    """Counts how often each of ``rules`` is used; the ``counting`` ones do the same as those."""

    def __init__(self, rules: Mapping[Any, Callable[..., Any]]) -> None:
        self._counts: Counter[Any] = Counter()
        self.counting = {operation: self._counted(operation, rule) for operation, rule in rules.items()}

    def decisions(self) -> Iterator[Decision]:
        """One for each operation that was taken apart, with how often; equal calls are traced once."""
        for operation, count in self._counts.items():
            row = row_of(operation)
            becomes = row.becomes if row is not None and row.becomes else "other operations"
            reason = reasons.TAKEN_APART(becomes=becomes)
            yield Decision("decompose", (str(operation),), True, reason, (("traced", count),))

    def _counted(self, operation: Any, rule: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(rule)
        def counted(*args: Any, **kwargs: Any) -> Any:
            found = rule(*args, **kwargs)
            if found is not NotImplemented:
                self._counts[operation] += 1
            return found

        return counted
