"""What random programs call: inputs that every dtype represents exactly, errors as values, losses, graph breaks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor

from lamina.base.accuracy import tensors

__all__ = [
    "WRITTEN_OVER",
    "Backwards",
    "attempt",
    "backward",
    "differentiating",
    "drawing",
    "loss",
    "pause",
    "sample",
    "watched",
]

WRITTEN_OVER = "modified by an inplace operation"
"""Eager's error at a gradient that needs a value which was written over after it was saved."""

PERIOD = 61
"""A prime, so that any step through the values meets all of them: tensors of fewer elements have no equal ones."""

_draw = 0


@dataclass(slots=True)
class Backwards:
    """How a run calls ``backward``, and what came of it.

    With ``apart`` the terms of a loss are differentiated one after another. Calls of the numbers ``refused`` are so
    as if a value for them had been written over; ``failed`` are the numbers of those that raised. What watches results
    forgets what it saw of one that raised by the functions ``seeing``.
    """

    apart: bool = False
    refused: frozenset[int] = frozenset()
    failed: set[int] = field(default_factory=set)
    calls: int = 0
    seeing: list[Callable[[], None]] = field(default_factory=list)

    def fail(self) -> None:
        """Note that the call that runs raised."""
        self.failed.add(self.calls)
        for forget in self.seeing:
            forget()


_backwards = Backwards()


@contextmanager
def differentiating(how: Backwards) -> Iterator[None]:
    """Inside, ``backward`` is called as ``how`` says, which also notes what comes of it."""
    global _backwards
    before, _backwards = _backwards, how
    try:
        yield
    finally:
        _backwards = before


@contextmanager
def drawing(number: int) -> Iterator[None]:
    """Inside, ``sample`` gives the values of this draw: 0 is what a program shows when it is run alone."""
    global _draw
    before, _draw = _draw, number
    try:
        yield
    finally:
        _draw = before


def sample(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0, grad: bool = False) -> Tensor:
    """A tensor of multiples of 1/8 between -3.75 and 3.75, integers between -30 and 30, or truth values.

    Sums and products of few such numbers are exact in float32, so that comparisons of them are the same whatever
    computes them. No random numbers are drawn: equal arguments give equal tensors.
    """
    step = 1 + (6 + 11 * seed + 5 * _draw) % (PERIOD - 1)
    numbers = (torch.arange(prod(shape)) * step + 17 * seed + 29 * _draw) % PERIOD - PERIOD // 2
    numbers = numbers.reshape(shape)
    if dtype == torch.bool:
        return numbers % 3 == 0
    if not (dtype.is_floating_point or dtype.is_complex):
        return (numbers.abs() if not dtype.is_signed else numbers).to(dtype)
    scaled = numbers.double() / 8
    whole = torch.complex(scaled, scaled.flip(-1) if shape else -scaled) if dtype.is_complex else scaled
    return whole.to(dtype).requires_grad_(grad)


def attempt(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The result of a call, or the exception that it raises: a program goes on after an error."""
    try:
        return function(*args, **kwargs)
    except Exception as raised:
        return raised


def loss(values: Any) -> Tensor:
    """A weighted sum, in float64, of all tensors in ``values`` that require a gradient; the weights are exact."""
    total = torch.zeros((), dtype=torch.float64)
    for tensor in tensors(values):
        if tensor.requires_grad:
            real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
            weights = (torch.arange(real.numel()) * 3 % 7 - 3.5) / 2
            total = total + (real * weights.reshape(real.shape).to(real.dtype)).sum().double()
    return total


def backward(values: Any, **kwargs: Any) -> Exception | None:
    """Differentiate ``loss(values)``, if anything in it has a gradient; the exception if that raises.

    Which leaves have their gradient when one raises, and which hooks have run, is the order of the autograd engine: all
    are as before.
    """
    total = loss(values)
    if not total.requires_grad:
        return None
    how = _backwards
    how.calls += 1
    if how.calls in how.refused:
        how.fail()
        return RuntimeError(WRITTEN_OVER)
    before = [(leaf, None if leaf.grad is None else leaf.grad.clone()) for leaf in _leaves(total)]
    failure: Exception | None = None
    if how.apart:
        for term in (loss([one]) for one in tensors(values) if one.requires_grad):
            failure = failure or attempt(term.backward, **{**kwargs, "retain_graph": True})
    else:
        failure = attempt(total.backward, **kwargs)
    if failure is not None:
        how.fail()
        for leaf, gradient in before:
            leaf.grad = gradient
    return failure


def watched(values: Any, way: str) -> Callable[[], list[Any]]:
    """Watch the gradients of all tensors in ``values`` that have a history; what is called afterwards gives them.

    ``way`` is "hooks", which double the gradients, "retained", or "asked" for by ``torch.autograd.grad``. A number
    behind it watches the one in that place alone, as "hooks 1" does. An error is given in the place of the gradients.
    """
    way, _, place = way.partition(" ")
    results = [tensor for tensor in tensors(values) if tensor.requires_grad and not tensor.is_leaf]
    results = results[int(place) :][:1] if place else results
    seen: list[Any] = [None] * len(results)

    def doubling(number: int) -> Callable[[Tensor], Tensor]:
        def hook(gradient: Tensor) -> Tensor:
            seen[number] = gradient.clone()
            return gradient * 2

        return hook

    def forget() -> None:
        seen[:] = [None] * len(results)
        if way == "retained":
            for tensor in results:
                tensor.grad = None

    if way == "hooks":
        for number, tensor in enumerate(results):
            attempt(tensor.register_hook, doubling(number))
        _backwards.seeing.append(forget)
    elif way == "retained":
        for tensor in results:
            attempt(tensor.retain_grad)
        _backwards.seeing.append(forget)
        return lambda: [tensor.grad for tensor in results]
    elif results:
        found = attempt(torch.autograd.grad, loss(values), results, allow_unused=True, retain_graph=True)
        seen = list(found) if isinstance(found, tuple) else [found]
    return lambda: seen


def _leaves(result: Tensor) -> list[Tensor]:
    """The leaves that a backward of ``result`` reaches."""
    seen: set[Any] = set()
    found: list[Tensor] = []
    stack: list[Any] = [result.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        stack += [behind for behind, _ in node.next_functions]
    return found


def _nothing() -> None:
    """Do nothing, where no compiler can see it: a graph break."""


pause: Callable[[], None] = torch.compiler.disable(_nothing)  # type: ignore[no-untyped-call]
"""A graph break."""
