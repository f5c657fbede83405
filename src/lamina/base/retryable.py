"""Retryable errors: a compiled graph raised before it changed inputs, or changed only what a second run overwrites.

The exception is marked by what raises it; a caller that has the captured program may run that in the graph's place.
"""

from __future__ import annotations

import threading

import torch
from torch.fx import GraphModule

__all__ = [
    "CALLER",
    "is_retryable",
    "set_retryable",
    "set_retryable_unless_told",
    "writes_to_inputs",
]

_NAME = "__lamina_retryable__"


def set_retryable(error: BaseException, retryable: bool) -> None:
    """Note on ``error`` whether the graph that raised it can be run again on its inputs as if it had not been run."""
    setattr(error, _NAME, retryable)


def set_retryable_unless_told(error: BaseException) -> None:
    """Note on ``error`` that the graph can be run again, unless a part of it that raised it has told of itself."""
    if not hasattr(error, _NAME):
        set_retryable(error, True)


def is_retryable(error: BaseException) -> bool:
    """Whether the graph that raised ``error`` can be run again on its inputs as if it had not been run."""
    return getattr(error, _NAME, False) is True


def writes_to_inputs(gm: GraphModule) -> bool:
    """Whether the functional graph ``gm`` writes to inputs: by copies of new values, after all else."""
    return bool(gm.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default))


class _Caller(threading.local):
    """``takes_errors``: what calls a graph in this thread does something else where that raises a retryable error."""

    takes_errors = False


CALLER = _Caller()
