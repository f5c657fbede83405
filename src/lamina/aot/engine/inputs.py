"""The inputs of a call, as they are known when its gradients are to be differentiated again."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from lamina.aot.engine.torch_private import direct_apply, never_captured
from lamina.base.torch_private import counted_version

__all__ = ["Inputs", "Taken", "leading_to"]

Taken = tuple[tuple[int, ...], Sequence[Callable[[], torch.Tensor | None]]]
"""The versions of a call's inputs, and what gives those that get no gradient, as long as they are alive."""


class Inputs:
    """Tells what the inputs of calls of a graph are known by later, if it may run again (``again``).

    ``with_gradient`` says which inputs get a gradient; those of the others that are ``detached`` are made for each
    call, in the memory of the user's: nobody else keeps them. The inputs at the places ``numbers`` are no tensors.
    """

    def __init__(
        self, with_gradient: Sequence[bool], detached: Sequence[bool], again: bool, numbers: Sequence[int] = ()
    ) -> None:
        self.with_gradient, self.detached, self.again = tuple(with_gradient), tuple(detached), again
        self._numbers = frozenset(numbers)
        self._tensors = tuple(i for i in range(len(self.with_gradient)) if i not in self._numbers)
        self._others = tuple(i for i, wanted in enumerate(with_gradient) if not wanted)
        self._detached = frozenset(i for i, is_detached in enumerate(detached) if is_detached) & frozenset(self._others)

    def taken(self, inputs: Sequence[torch.Tensor]) -> Taken | None:
        """What a call's inputs are known by later; None where one of them has no version."""
        if not self.again:
            return None
        try:
            return self._versions(inputs), [self._reference(i, inputs[i]) for i in self._others]
        except RuntimeError:  # a tensor of inference mode
            return None

    def _versions(self, inputs: Sequence[Any]) -> tuple[int, ...]:
        return tuple(map(counted_version, [inputs[i] for i in self._tensors] if self._numbers else inputs))

    def changed(self, versions: Sequence[int], inputs: Sequence[Any]) -> set[int]:
        """The places of ``inputs`` that were written to since they had these ``versions``."""
        known = zip(self._tensors, versions, self._versions(inputs), strict=True)
        return {place for place, before, now in known if before != now}

    def _reference(self, place: int, given: Any) -> Callable[[], Any]:
        kept = place in self._detached or place in self._numbers
        return functools.partial(_itself, given) if kept else weakref.ref(given)


def _itself(given: Any) -> Any:
    return given


class _Leading(torch.autograd.Function):
    """A tensor without elements that leads autograd to where others come from."""

    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> torch.Tensor:
        return torch.empty(0, device="cpu")

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return (None,) * len(ctx.next_functions)


never_captured(_Leading.backward)
leading_to: Callable[..., torch.Tensor] = direct_apply(_Leading)
"""A tensor that leads autograd where all the given ones do, without holding them or what they are later."""
