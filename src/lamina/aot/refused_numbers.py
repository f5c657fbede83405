"""Calls that eager refuses for a number, or for the dtype of a tensor made of numbers alone, and that tracing takes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from lamina.aot import eager_reasons
from lamina.base.captured import argument, example
from lamina.base.devices import kind_of
from lamina.base.reasons import Reason
from lamina.base.rounded_numbers import HALF_TYPES, rounds_numbers
from lamina.base.source import operation_name, source_of
from lamina.base.symbolic.torch_private import is_guarded, known_float

__all__ = ["fits_a_dtype", "refused_number"]

_MADE: dict[str, Callable[[torch.dtype], Tensor]] = {
    "arange": lambda dtype: torch.arange(1, dtype=dtype),
    "eye": lambda dtype: torch.eye(1, dtype=dtype),
}
"""Functions with kernels of their own that make a tensor of numbers alone; trial calls are made with tensors."""

_SCALED = frozenset(str.split("add add_ sub sub_ subtract subtract_ rsub addcmul addcmul_ addcdiv addcdiv_"))
"""Calls whose factor, ``alpha`` or ``value``, eager converts to the dtype of the result."""


def refused_number(gm: GraphModule) -> Reason | None:
    """Why the captured graph is eager's to run: a number out of range, or a dtype that has no kernel; None if neither.

    That a number that varies is in the range of the dtype is guarded.
    """
    for node in gm.graph.nodes:
        made = example(node)
        if node.op not in ("call_function", "call_method") or not isinstance(made, Tensor):
            continue
        name = operation_name(node.target)
        error = _without_kernel(name, made.dtype) if name in _MADE and kind_of(made).host else ""
        if not error and not all(fits_a_dtype(number, made.dtype) for number in _converted(name, node)):
            error = f"RuntimeError: value cannot be converted to {made.dtype} without overflow"
        if error:
            return eager_reasons.OTHER_IN_EAGER(place=source_of(node), error=error)
        if made.dtype in HALF_TYPES and rounds_numbers(name) and not all(_held(one, made) for one in node.args):
            return eager_reasons.ROUNDED_NUMBER(place=source_of(node), dtype=made.dtype)
    return None


@functools.lru_cache(256)
def _without_kernel(name: str, dtype: torch.dtype) -> str:
    try:
        _MADE[name](dtype)
    except NotImplementedError as refused:
        return f"NotImplementedError: {refused}"
    return ""


def _converted(name: str, node: Node) -> list[Any]:
    """The numbers that a call converts to the dtype of its result and that no trial call is made with."""
    if name == "full":
        return [argument(node.args[1] if len(node.args) > 1 else node.kwargs.get("fill_value"))]
    if name == "scalar_tensor":  # which torch.tensor is not: that has an infinity
        return [argument(node.args[0] if node.args else node.kwargs.get("s"))]
    return [argument(node.kwargs.get(factor)) for factor in ("alpha", "value")] if name in _SCALED else []


def _held(operand: Any, result: Tensor) -> bool:
    """Whether an operand is no number that varies, or one that the dtype of the result holds."""
    number = argument(operand)
    varies = isinstance(number, (torch.SymInt, torch.SymFloat)) and kind_of(result).host
    return not varies or fits_a_dtype(number, result.dtype)


def fits_a_dtype(number: Any, dtype: torch.dtype) -> bool:
    """Whether a number can be converted to a dtype; unsigned integers take negative ones."""
    number = known_float(number)
    if isinstance(number, bool) or not isinstance(number, (int, float, torch.SymInt, torch.SymFloat)):
        return True
    if dtype == torch.bool or dtype.is_complex or (isinstance(number, float) and not math.isfinite(number)):
        return True
    most = torch.finfo(dtype).max if dtype.is_floating_point else torch.iinfo(dtype).max
    least = -most if dtype.is_floating_point else torch.iinfo(dtype).min or -most
    return is_guarded(number >= least) and is_guarded(number <= most)
