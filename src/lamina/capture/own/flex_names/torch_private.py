"""Private torch names of ``flex_attention``, as read in torch 2.11 to 2.13."""

from __future__ import annotations

import contextlib
import importlib
import sys
from typing import Any

import torch

__all__ = ["IS_CAPTURED", "MODULE", "is_mark_of_sizes", "is_operator", "places_as_indices"]

_MODES = "torch._dynamo._trace_wrapped_higher_order_op"
MODULE = "torch.nn.attention.flex_attention"
_OPERATOR = "torch._higher_order_ops.flex_attention"
IS_CAPTURED: Any = torch.compiler.is_dynamo_compiling
"""Asked whether the operator may be called as it is."""


def is_operator(function: Any) -> bool:
    """Whether a call is of the operator that ``flex_attention`` ends in."""
    loaded = sys.modules.get(_OPERATOR)
    return loaded is not None and function is vars(loaded).get("flex_attention")


def places_as_indices() -> contextlib.AbstractContextManager[Any]:
    """Within it ``x[i]`` with a tensor ``i`` without dimensions is a gather, as in functions of scores."""
    made: contextlib.AbstractContextManager[Any] = importlib.import_module(_MODES).TransformGetItemToIndex()
    return made


def is_mark_of_sizes(function: Any) -> bool:
    """Whether a function is the one that tells Dynamo that sizes of its operands do not vary."""
    return getattr(function, "__name__", "") == "mark_static" and function.__module__.startswith("torch._dynamo.")
