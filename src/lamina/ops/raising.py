"""Which calls of torch's raise for no values of their operands."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch.fx import Node

from lamina.base.aliasing import writes_first
from lamina.base.captured import argument, example, tensors
from lamina.base.overloads import overloads_named
from lamina.base.source import operation_name
from lamina.ops.calls import ANY, FLOATS, FUNCTIONS, NUMBERS, TRUTHS, USUAL

__all__ = ["draws", "holds"]

_WHOLE = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
_COUNTED = _WHOLE | {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_USUAL = _COUNTED | {torch.bool, torch.complex64, torch.complex128}
_SAME = {
    "type": "to", "__rsub__": "rsub", "__and__": "and_", "__rand__": "and_", "__or__": "or_", "__ror__": "or_",
    "__xor__": "xor", "__rxor__": "xor", "__invert__": "invert",
}  # fmt: skip
"""Methods that do what others do."""
_RANGES = frozenset({"arange", "linspace"})
"""Calls that make no truth values and no complex numbers."""
_NUMBERS = (int, float, complex, torch.SymInt, torch.SymFloat)
_OF_ALL_INTEGERS = (torch.int64, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)
_MASKED = frozenset({"scaled_dot_product_attention"})
"""Calls one operand of which may be truth values beside numbers."""
_RANDOM = torch.Tag.nondeterministic_seeded


def draws(node: Node) -> bool:
    """Whether a call draws random numbers, as ATen tags it."""
    return any(_RANDOM in overload.tags for overload in overloads_named(operation_name(node.target)))


def _lists(node: Node) -> bool:
    """Whether an index is a list of numbers, which tracing takes for a tensor whose values it does not know."""
    found = list(node.args[1:])
    for one in found:
        if isinstance(one, tuple):
            found.extend(one)
    return any(isinstance(one, list) for one in found)


def _numbers(node: Node) -> list[Any]:
    """The numbers that a call is given, symbols of numbers as well; some are sizes or dimensions."""
    found: list[Any] = []
    waiting: list[Any] = [*node.args, *node.kwargs.values()]
    while waiting:
        one = argument(waiting.pop())
        if isinstance(one, (tuple, list)):
            waiting.extend(one)
        elif isinstance(one, _NUMBERS) and not isinstance(one, bool):
            found.append(one)
    return found


def _fits(number: Any, dtype: torch.dtype) -> bool:
    """Whether ``number`` is one of a dtype's; of a symbol, whether all of its values are."""
    if dtype is torch.bool:
        return True
    if isinstance(number, torch.SymInt):
        return dtype in _OF_ALL_INTEGERS
    if isinstance(number, (torch.SymFloat, complex)):
        return dtype in (torch.float64, torch.complex128)
    if dtype.is_floating_point or dtype.is_complex:
        return not math.isfinite(number) or abs(number) <= torch.finfo(dtype).max
    return math.isfinite(number) and torch.iinfo(dtype).min <= number <= torch.iinfo(dtype).max


def holds(node: Node) -> bool:
    """Whether the call, which tracing has accepted, raises for no values of its operands."""
    if node.target is getattr:
        return True
    name = operation_name(node.target)
    if writes_first(node):  # it raises where the other does, or in tracing
        name = name.removesuffix("_")
    given = [t for t in map(example, node.all_input_nodes) if isinstance(t, torch.Tensor)]
    if name == operator.getitem.__name__:
        return len(given) <= 1 and not _lists(node)
    known = FUNCTIONS.get(_SAME.get(name, name))
    holds = known.holds if known is not None else ""
    if holds == ANY:
        return True
    if not all(_fits(number, t.dtype) for t in tensors(node) for number in _numbers(node)):
        return False
    dtypes = {t.dtype for t in given} - ({torch.bool} if name in _MASKED else set())
    if holds == USUAL:
        made = {t.dtype for t in tensors(node)}
        return dtypes | made <= _USUAL and (name not in _RANGES or made <= _COUNTED)
    if all(d.is_floating_point and d.itemsize > 1 for d in dtypes):
        pointwise = any(
            torch.Tag.pointwise in overload.tags for overload in overloads_named(operation_name(node.target))
        )
        return pointwise or holds in (FLOATS, NUMBERS, TRUTHS) or draws(node)
    if holds not in (NUMBERS, TRUTHS) or any(d.is_complex for d in dtypes):
        return False
    return dtypes <= _USUAL and (holds == TRUTHS or torch.bool not in dtypes)
