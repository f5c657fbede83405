"""The instructions of functions, read once: what is captured is looked through for several facts."""

from __future__ import annotations

import dis
from functools import lru_cache
from types import CodeType

__all__ = ["instructions"]


@lru_cache(maxsize=1024)
def instructions(code: CodeType) -> tuple[dis.Instruction, ...]:
    """The instructions of ``code`` in order, without the entries of inline caches."""
    return tuple(dis.get_instructions(code))
