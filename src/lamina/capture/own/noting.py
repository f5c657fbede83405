"""What the recorder tells a trace, if there is one: numbers that calls are given, and what ends it."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch

from lamina.capture.own.nested import mapped
from lamina.capture.own.pending import Pending
from lamina.capture.own.reuse.values import fits_a_type
from lamina.capture.own.torch_calls import (
    BOUNDING,
    computes_in_floats,
    computes_in_integers,
    dtype_of_number,
    dtype_that_refuses,
    name_of,
    takes_numbers,
)

__all__ = ["escaped", "is_size", "looks", "pin", "pin_sizes", "with_numbers"]


def escaped(trace: Any, name: str) -> None:
    """What ``name`` says uses tensors outside of graphs, or may do whatever it likes."""
    if trace is not None:
        trace.end(f"{name} runs between graphs")


def pin(trace: Any, *values: Any) -> None:
    """What the call does rests on the numbers among ``values`` that it has learnt."""
    if trace is not None:
        trace.learning.pin(*values)


def pin_sizes(trace: Any) -> None:
    """What the call does rests on all sizes that vary."""
    if trace is not None and trace.sizes is not None:
        trace.sizes.close()


def is_size(value: Any, trace: Any) -> bool:
    """Whether a graph holds an integer, which is made of sizes that vary, as it holds those."""
    return trace.sizes is not None and bool(trace.sizes.is_one(value))


def with_numbers(
    trace: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """A call as a graph holds it for all of the numbers that were learnt; they are pinned if none can."""
    learning = trace.learning
    number = args[0] if func is torch.tensor and len(args) == 1 else None
    if learning.is_learnt(number) and not is_size(number, trace):
        dtype = dtype_of_number(args[0], kwargs)
        made = None if dtype is None else learning.as_tensor(args[0])
        if made is not None:
            return torch.Tensor.to, (made, dtype), {"copy": True}
    if not takes_numbers(func, args, kwargs):
        learning.pin(args, kwargs, but=partial(is_size, trace=trace))
    else:
        learnt = learning.learnt_in((*args, *kwargs.values()))
        integers = [value for value in learnt if type(value) is int and not is_size(value, trace)]
        given = mapped((*args, *kwargs.values()), looks)
        if integers and computes_in_integers(func, *given):
            tensors = {id(value): learning.as_tensor(value) for value in integers}
            args = tuple(arg if tensors.get(id(arg)) is None else tensors[id(arg)] for arg in args)
        elif integers and not computes_in_floats(*given):
            learning.pin(*integers)
        refusing = dtype_that_refuses(func, *mapped((args, kwargs), looks))
        types = refusing or ()
        for number in learning.learnt_in((*args, *kwargs.values())) if types else ():
            operands = (number, *types)
            if None in types or not learning.compute(fits_a_type, operands, fits_a_type(*operands)):
                learning.pin(number)
        for bound in learning.learnt_in((*args, *kwargs.values())) if name_of(func) in BOUNDING else ():
            if type(bound) is float and learning.compute(math.isnan, (bound,), math.isnan(bound)):
                learning.pin(bound)
    return func, args, kwargs


def looks(value: Any) -> Any:
    """What stands for a tensor that is not computed yet; other values as they are."""
    return value._fake if type(value) is Pending else value
