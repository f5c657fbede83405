"""The compiled backwards of a region, by which gradients arrive and how these are laid out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from lamina.aot.engine.torch_private import is_zero_tensor
from lamina.base.together import compiled_together, together

__all__ = ["Backward", "Backwards", "Boxed", "CompileBackward", "Strides", "Tangent"]

Boxed = Callable[[list[Any]], Any]
Strides = tuple[tuple[int, ...] | None, ...]
"""The strides of each gradient, None for one that is not there."""


@dataclass(frozen=True, slots=True)
class Backward:
    """A compiled backward: ``run`` takes the saved tensors, unless it is ``alone``, and the gradients.

    It is ``partial`` if it was made for gradients some of which are not there: those it does not take. ``reads`` are
    the saved tensors that it makes use of, by their places; None for all.
    """

    run: Boxed
    alone: bool = False
    partial: bool = False
    reads: tuple[int, ...] | None = None


CompileBackward = Callable[[Strides | None], Backward | None]
"""Compiles the backward for gradients with these strides, or (None) with those of the outputs; None: cannot."""

_MOST_LAYOUTS = 4
"""Layouts, of the same gradients that are there, that one region gets a backward for; in any further one they are
copied to the layout of the outputs. Which are there has no limit: zeros for those that are not may become NaN."""


@dataclass(frozen=True, slots=True)
class Tangent:
    """How the compiled backward takes the gradient of one output."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


def _unlike(gradient: Any) -> bool:
    """Whether there is no gradient, or one whose memory does not hold its values as they are, or that has none."""
    return (
        gradient is None
        or gradient.layout is not torch.strided
        or gradient.is_conj()
        or gradient.is_neg()
        or is_zero_tensor(gradient)
    )


def _copied(gradient: Any, tangent: Tangent, stride: tuple[int, ...]) -> torch.Tensor:
    """``gradient``, or zeros where there is none, in fresh memory with these strides."""
    fresh = torch.empty_strided(tangent.shape, stride, dtype=tangent.dtype, device=tangent.device)
    if gradient is None:
        return fresh.zero_()
    return fresh.copy_(gradient if gradient.layout is torch.strided else gradient.to_dense())


class Backwards:
    """The compiled backwards of one region, by the strides of the gradients they take; each is made once.

    Where forwards are compiled together, as those of one graph's parts, their usual backwards are so too, when the
    first of them is asked for, unless this one is ``alone``.
    """

    __slots__ = ("_beside", "_compile", "_found", "_last", "_lock", "_tangents", "_usual")

    def __init__(self, compile_backward: CompileBackward, tangents: Sequence[Tangent], *, alone: bool = False) -> None:
        self._compile, self._tangents = compile_backward, tangents
        self._usual = tuple(t.stride for t in tangents)
        self._found: dict[Strides, Backward | None] = {}
        self._lock = threading.Lock()
        self._last: tuple[Strides, Backward] | None = None
        beside = None if alone else together()
        self._beside: list[Backwards] = [] if beside is None else beside.of(_backwards)
        self._beside.append(self)

    @property
    def found(self) -> dict[Strides, Backward | None]:
        """The backwards that were asked for so far; None for one that could not be compiled."""
        return dict(self._found)

    def usual(self, gradients: Sequence[Any]) -> Backward | None:
        """The last backward, if the same gradients are there and laid out as the last ones."""
        last = self._last
        if last is None:
            return None
        for gradient, stride in zip(gradients, last[0], strict=True):
            if stride is None:
                if gradient is not None:
                    return None
            elif _unlike(gradient) or gradient.stride() != stride:
                return None
        return last[1]

    def search(self, gradients: Sequence[Any]) -> tuple[Backward, list[torch.Tensor | None]]:
        """A backward, and the gradients laid out as it wants them."""
        given = tuple(zip(gradients, self._tangents, strict=True))
        dense: Strides = tuple([t.stride if _unlike(g) else g.stride() for g, t in given])
        there: list[Strides] = [
            tuple([None if g is None else s for g, s in zip(gradients, layout, strict=True)])
            for layout in (dense, self._usual)
        ]
        for layout in (*there, dense, self._usual):
            strides, backward = layout, self._backward(layout)
            if backward is not None:
                break
        assert backward is not None
        self._last = strides, backward
        return backward, [
            None if stride is None else g if not _unlike(g) and g.stride() == stride else _copied(g, t, stride)
            for (g, t), stride in zip(given, strides, strict=True)
        ]

    def _backward(self, strides: Strides) -> Backward | None:
        if strides in self._found:
            return self._found[strides]
        if strides != self._usual:
            return self._made(strides)
        with compiled_together():
            made = self._made(strides)
            while self._beside:
                other = self._beside.pop()
                if other is not self:
                    with suppress(Exception):  # which is raised when that one is asked for
                        other._made(other._usual)
        return made

    def _made(self, strides: Strides) -> Backward | None:
        with self._lock:
            if strides not in self._found:
                if self._is_one_too_many(strides):
                    return None
                self._found[strides] = self._compile(None if strides == self._usual else strides)
            return self._found[strides]

    def _is_one_too_many(self, strides: Strides) -> bool:
        """Whether these are no outputs' strides, and the same gradients came in enough other layouts before."""
        there = [stride is not None for stride in strides]
        if all(s == usual for s, usual in zip(strides, self._usual, strict=True) if s is not None):
            return False
        return sum([s is not None for s in found] == there for found in self._found) >= _MOST_LAYOUTS


def _backwards() -> list[Backwards]:
    """Those of the regions that are compiled together, until the first of them is asked for."""
    return []
