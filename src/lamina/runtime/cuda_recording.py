"""One recording of a region's launches: how its outputs are made, and whether anybody holds them still."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lamina.runtime.cuda_host import reinterpret
from lamina.runtime.torch_private import storage_uses

__all__ = ["Recording"]


@dataclass(frozen=True, slots=True)
class _Output:
    """How a replay makes one output: ``value`` itself if there are no ``strides``, else a new tensor on its memory.

    With ``place`` it is the input at that position, or lies ``offset`` elements after that one's first.
    """

    value: Any = None
    place: int | None = None
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] | None = None
    offset: int = 0

    def made(self, args: Sequence[Any]) -> Any:
        value = self.value if self.place is None else args[self.place]
        return value if self.strides is None else reinterpret(value, self.shape, self.strides, self.offset)


class Recording:
    """One recorded graph with the memory its outputs live in. Of the inputs it holds the copies of those that move."""

    def __init__(
        self, graph: Any, outputs: Sequence[Any], given: Sequence[Any], copies: Sequence[torch.Tensor], zeros: Any
    ) -> None:
        self.graph, self.copies, self.zeros = graph, list(copies), zeros
        homes = _Homes(given)
        self.outputs = [homes.output(value) for value in outputs]
        self.storages = [o.value.untyped_storage() for o in self.outputs if o.strides is not None and o.place is None]
        self.counts = self._counts()

    def _counts(self) -> list[tuple[int, int]]:
        return [(storage_uses(s), sys.getrefcount(s)) for s in self.storages]

    def is_free(self) -> bool:
        """Whether nobody holds an output of the last replay."""
        return self._counts() == self.counts

    def replay(self, args: Sequence[Any], moving: Sequence[int]) -> tuple[Any, ...]:
        """The outputs as new tensors on the recording's memory; ``moving`` are the positions of what is copied."""
        for copy, place in zip(self.copies, moving, strict=True):
            copy.copy_(args[place].detach())
        self.graph.replay()
        return tuple([output.made(args) for output in self.outputs])


class _Homes:
    """Which inputs the outputs of a recorded call are, or lie in."""

    def __init__(self, given: Sequence[Any]) -> None:
        self._places = {id(value): place for place, value in enumerate(given) if isinstance(value, torch.Tensor)}
        self._begins: dict[int, list[tuple[int, int, torch.dtype]]] = {}
        for place, value in enumerate(given):
            if isinstance(value, torch.Tensor) and value.numel():
                begin = int(value.storage_offset()), place, value.dtype
                self._begins.setdefault(value.untyped_storage().data_ptr(), []).append(begin)

    def output(self, value: Any) -> _Output:
        """How to make ``value``, which the recorded call returned.

        Raises ``TypeError`` for one that lies in inputs none of which has its element type.
        """
        if not isinstance(value, torch.Tensor):
            return _Output(value)
        place = self._places.get(id(value))
        if place is not None:
            return _Output(place=place)
        shape, strides = tuple(value.shape), value.stride()
        begins = self._begins.get(value.untyped_storage().data_ptr()) if value.numel() else None
        if begins is None:
            return _Output(value, None, shape, strides)
        # Of inputs that share memory the one that begins last before it, most likely the one it is a view of.
        at = int(value.storage_offset())
        alike = [(begin <= at, begin, place) for begin, place, dtype in begins if dtype == value.dtype]
        if not alike or value.is_conj() or value.is_neg():
            raise TypeError("an output lies in an input of another type")
        _, begin, place = max(alike)
        return _Output(None, place, shape, strides, at - begin)
