"""The private torch names that verifying a program takes (2.11 to 2.13)."""

from __future__ import annotations

from typing import Any

import torch._dynamo.config

__all__ = ["compiled_anew"]

_MANY = 1 << 20


def compiled_anew() -> Any:
    """A context in which one function may be compiled any number of times."""
    return torch._dynamo.config.patch(recompile_limit=_MANY, accumulated_recompile_limit=_MANY)
