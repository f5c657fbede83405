"""Values that a call learns while it runs, which a later call learns anew: what tensors hold, and sums made of it."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from lamina.capture.own.frame import MISSING
from lamina.capture.own.reuse.facts import Place
from lamina.capture.own.torch_calls import name_of
from lamina.capture.own.torch_private import unseen

__all__ = [
    "ALWAYS_A_NUMBER",
    "ARITHMETIC_OF_NUMBERS",
    "PARTS_OF_SHAPES",
    "UNPACKING",
    "Ref",
    "Value",
    "Varying",
    "entry_of",
    "fits_a_float",
    "fits_a_type",
    "float_of_integer",
    "grad_of",
    "is_read",
    "part_of",
    "real_power",
    "referent",
    "set_grad",
    "size_of",
    "stride_of",
    "tensor_of_float",
    "tensor_of_integer",
]

_READS = frozenset(
    (
        "item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__complex__", "is_nonzero", "equal",
        "allclose",
    )
)  # fmt: skip
ALWAYS_A_NUMBER: frozenset[Callable[..., Any]] = frozenset(
    (
        operator.add, operator.sub, operator.mul, operator.neg, operator.pos, operator.iadd, operator.isub,
        operator.imul, operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne, operator.truth,
        operator.not_, abs,
    )
)  # fmt: skip
"""Functions that raise for no finite or infinite number and no NaN."""
UNPACKING = ("listed", "unpack", "tuple")
"""The interpreter's functions that go over all that a value gives, by their names."""
ARITHMETIC_OF_NUMBERS: frozenset[Callable[..., Any]] = ALWAYS_A_NUMBER | frozenset(
    (
        operator.truediv, operator.floordiv, operator.mod, operator.pow, operator.itruediv, operator.ifloordiv,
        operator.imod, operator.ipow, operator.lshift, operator.rshift, operator.and_, operator.or_, operator.xor,
        operator.ilshift, operator.irshift, operator.iand, operator.ior, operator.ixor, operator.invert, min, max,
        round, float, int, bool, math.sqrt, math.exp, math.log, math.floor, math.ceil,
        math.isnan, math.isinf, math.isfinite, math.cos, math.sin, math.tanh, math.pow, math.log2, math.log10,
    )
)  # fmt: skip
"""Functions that are asked again of other numbers in a later call."""


@dataclass(frozen=True, slots=True)
class Ref:
    """The variable of a driver that has a tensor or a value."""

    name: str


@dataclass(slots=True, eq=False)
class Value:
    """What ``function`` said of ``operands``, which are ``Ref``s and constants; ``ref`` is the variable that has it.

    ``rows`` counts the facts and places that were noted before, ``place`` is the position among the steps of the call.
    ``pinned``: what the call did then rests on its being this ``value``; otherwise another one takes its place in a
    later call.
    """

    function: Callable[..., Any]
    operands: tuple[Any, ...]
    value: Any
    rows: int
    place: int
    pinned: bool = False

    @property
    def ref(self) -> Ref:
        return Ref(f"n{self.place}")


@dataclass(slots=True, eq=False)
class Varying:
    """A number from outside, or computed of such, that is another one in later calls.

    ``value`` is a copy of what was ``found`` at the ``place``, so that nobody else has it.
    """

    value: float
    found: float
    place: Place

    @property
    def ref(self) -> Ref:
        return Ref(self.place.variable)


_MOST_EXACT: int = 2**sys.float_info.mant_dig
"""The largest integer up to which each one is a number of torch.float64."""


def _as_tensor(value: float, dtype: torch.dtype) -> torch.Tensor:
    """A tensor without dimensions, of ``dtype``, that has ``value``."""
    with unseen():
        return torch.tensor(value, dtype=dtype, device="cpu")


def tensor_of_float(value: float) -> torch.Tensor:
    """A tensor of torch.float64 that has a float; raises ``TypeError`` for other values."""
    if type(value) is not float:
        raise TypeError(f"a {type(value).__name__} where there was a float")
    return _as_tensor(value, torch.float64)


def tensor_of_integer(value: int) -> torch.Tensor:
    """A tensor of torch.int64 that has an integer, of which ``fits_a_float`` is true."""
    return _as_tensor(value, torch.int64)


def float_of_integer(value: int) -> torch.Tensor:
    """A tensor of torch.float64 that has such an integer."""
    return _as_tensor(value, torch.float64)


def size_of(tensor: torch.Tensor, dimension: int) -> int:
    """One of the sizes of a tensor."""
    return tensor.shape[dimension]


def stride_of(tensor: torch.Tensor, dimension: int) -> int:
    """One of the strides of a tensor."""
    return tensor.stride(dimension)


PARTS_OF_SHAPES = (size_of, stride_of)
"""Functions of tensors that a call asks for sizes and strides that vary."""


def entry_of(container: dict[Any, Any], key: Any) -> Any:
    """``container[key]``, ``MISSING`` if there is none; no method of a subclass runs."""
    return dict.get(container, key, MISSING)


def referent(reference: Any) -> Any:
    """What a weak reference leads to."""
    return reference()


def part_of(values: tuple[Any, ...], at: int) -> Any:
    """One of several values."""
    return values[at]


def grad_of(leaf: torch.Tensor) -> torch.Tensor | None:
    """What ``leaf.grad`` holds."""
    return leaf.grad


def set_grad(leaf: torch.Tensor, value: torch.Tensor | None) -> None:
    """``leaf.grad = value``."""
    leaf.grad = value


def fits_a_float(value: int) -> bool:
    """Whether a float has the value of an integer, as of all with no more digits."""
    return -_MOST_EXACT <= value <= _MOST_EXACT


def fits_a_type(value: float, dtype: torch.dtype) -> bool:
    """Whether torch converts a number to a type of floats, which it refuses beyond the largest of that."""
    return not abs(value) > torch.finfo(dtype).max or math.isinf(value)


def real_power(base: float, exponent: float) -> float:
    """``base ** exponent`` where that is a float; raises ``TypeError`` for others, which negative bases have."""
    found = base**exponent
    if type(found) is not float:
        raise TypeError(f"a {type(found).__name__} where there was a float")
    return found


def is_read(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call of torch's does nothing but tell what tensors hold."""
    return name_of(function) in _READS and not kwargs and any(isinstance(value, torch.Tensor) for value in args)
