"""Integer arithmetic that torch simplifies to something else where operands are negative or zero."""

from __future__ import annotations

import math
import operator

import torch
from torch.fx import GraphModule

from lamina.aot import eager_reasons
from lamina.base.captured import argument
from lamina.base.reasons import Reason
from lamina.base.source import source_of
from lamina.base.symbolic.torch_private import is_guarded, is_quotient, is_true

__all__ = ["inexact_integers"]

_TRUNCATIONS = (torch.sym_int, math.trunc, int)
_DIVISIONS = (operator.floordiv, operator.mod, operator.truediv)
_PARTIAL = (*_DIVISIONS, operator.lshift, operator.rshift)


def inexact_integers(gm: GraphModule) -> Reason | None:
    """Why the captured graph is eager's to run: an integer that torch's symbols stand for wrongly, or None.

    Symbols take ``k // -5 // -3`` for ``k // 15``, and ``int(k / 2)`` for ``k // 2`` once they are compared with a
    size. What shapes and guards say of such integers is wrong, what the graph computes with them is not. They take
    ``k // k`` for 1, too: divisors are guarded to be other than zero, and shifts and strides to be at least zero.
    """
    for node in gm.graph.find_nodes(op="call_function", target=operator.floordiv):
        dividend, divisor = (argument(a) for a in node.args)
        if is_quotient(dividend, float_too=False) and not is_true(divisor > 0):
            return eager_reasons.NEGATIVE_DIVISOR(place=source_of(node))
    for target in _TRUNCATIONS:
        for node in gm.graph.find_nodes(op="call_function", target=target):
            value = argument(node.args[0])
            if is_quotient(value, float_too=True) and not is_true(value >= 0):
                return eager_reasons.INEXACT_INTEGER(place=source_of(node))
    for partial in _PARTIAL:
        for node in gm.graph.find_nodes(op="call_function", target=partial):
            value = argument(node.args[1])
            if isinstance(value, torch.SymInt) and not is_guarded(value != 0 if partial in _DIVISIONS else value >= 0):
                return eager_reasons.NO_QUOTIENT(place=source_of(node))
    for node in gm.graph.nodes:
        strided = node.target in ("as_strided", torch.as_strided) and len(node.args) > 2
        if strided and isinstance(node.args[2], tuple | list):
            steps = [argument(step) for step in node.args[2]]
            if not all(is_guarded(step >= 0) for step in steps if isinstance(step, torch.SymInt)):
                return eager_reasons.NEGATIVE_STRIDE(place=source_of(node))
    return None
