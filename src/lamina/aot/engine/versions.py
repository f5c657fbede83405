"""Versions of inputs that a compiled graph writes to, as it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.autograd.graph import increment_version

from lamina.aot.engine.torch_private import never_captured
from lamina.base.recipes import made_of

__all__ = ["counting_each"]


def counting_each(compiled: Callable[..., Any], more: Mapping[int, int]) -> Callable[..., Any]:
    """``compiled``, which raises the version of an input that it writes to once, where captured calls raise it so
    many times ``more``: before it runs, as what it saves must not look as if it had been written to since.
    """

    def run(*given: Any) -> Any:
        increment_version([x for i, n in more.items() if not (x := given[i]).is_inference() for _ in range(n)])
        return compiled(*given)

    never_captured(run)
    return made_of(run, "counting each", compiled=compiled, more=more)
