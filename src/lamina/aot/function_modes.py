"""Compiled graphs called while a ``TorchFunctionMode`` is active."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lamina.aot.torch_private import never_captured, without_function_modes

__all__ = ["outside_function_modes"]


def outside_function_modes(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """``compiled`` where modes do not see the functions of torch that it calls: the graph has what they do already."""

    def run(*inputs: Any) -> Any:
        with without_function_modes():
            return compiled(*inputs)

    never_captured(run)
    return run
