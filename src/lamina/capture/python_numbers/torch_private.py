"""Operations on Python numbers that are symbols, set right where Lamina compiles; names as read in torch 2.11 to 2.13.

Where torch's rules for terms do not hold for all numbers that a symbol may stand for, the graph is made for the number
at hand: a guard asks for it, and another one is compiled for.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._dynamo import config
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.variables.builder import VariableBuilder
from torch.fx.experimental.sym_node import SymNode

from lamina.capture.trace_corrections.torch_private import compiles_for_lamina

__all__ = ["correct_numbers"]


def correct_numbers() -> None:
    """Replace the methods, once."""
    _keep_zeros()
    _keep_remainders()
    _keep_rounding()


def _traces() -> bool:
    """Whether this thread traces for Lamina."""
    try:
        tx = InstructionTranslator.current_tx()
    except AttributeError:  # none has ever run in this thread
        return False
    return tx is not None and compiles_for_lamina(tx.output)


def _keep_zeros() -> None:
    """Let a float that is zero be no symbol: the guard on what a symbol is takes 0.0 and -0.0 for the same."""
    wrap_any = VariableBuilder.wrap_symfloat

    @functools.wraps(wrap_any)
    def wrap(self: Any, value: float) -> Any:
        if value == 0.0 and compiles_for_lamina(self.tx.output):
            with config.patch(specialize_float=True):
                return wrap_any(self, value)
        return wrap_any(self, value)

    VariableBuilder.wrap_symfloat = wrap  # type: ignore[method-assign]


def _keep_remainders() -> None:
    """Let ``%`` of a float take the number at hand: torch's rules are those of integers, where ``k % 1`` is 0."""
    take_any = SymNode.mod

    @functools.wraps(take_any)
    def mod(self: Any, other: Any) -> Any:
        if float in (self.pytype, other.pytype) and _traces():
            self, other = (_constant(node) for node in (self, other))
        return take_any(self, other)

    SymNode.mod = mod  # type: ignore[method-assign]


def _constant(node: Any) -> Any:
    """``node`` for the number that it is now, on which a guard is made."""
    if node.pytype is int:
        return node.wrap_int(node.guard_int(__file__, 0))
    return node.wrap_float(node.guard_float(__file__, 0))


def _keep_rounding() -> None:
    """Let ``round(k, -1)`` of an integer round: torch gives ``k`` for any number of digits."""
    round_any: Any = torch.SymInt.__round__

    @functools.wraps(round_any)
    def rounded(self: Any, ndigits: Any = None) -> Any:
        if ndigits is not None and ndigits < 0 and _traces():
            return round(int(self), int(ndigits))
        return round_any(self, ndigits)

    torch.SymInt.__round__ = rounded  # type: ignore[method-assign]
