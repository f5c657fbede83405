"""The arguments of a captured call as values that can be keys, and the tensors and numbers that are made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from lamina.base.devices import kind_of
from lamina.base.symbolic.torch_private import depends_on_data, hint, is_fake

__all__ = ["Given", "Like", "UnknownError", "like_of", "numbers_in", "packed"]


_CONSTANTS = (int, float, complex, str, torch.dtype, torch.device, torch.memory_format, torch.layout)


class UnknownError(Exception):
    """An argument that has no equal on the CPU, or whose numbers only a run tells."""


@dataclass(frozen=True, slots=True)
class Like:
    """A tensor as a trial knows it: its dtype, its sizes, and its dimensions in the order in which memory holds them.

    Operands of one ``place`` are one tensor. ``dense`` says that sizes and order tell its strides.
    """

    place: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    order: tuple[int, ...]
    dense: bool

    def made(self, fill: str, sizes: dict[int, int]) -> Tensor:
        """A tensor like it whose sizes are those that ``sizes`` has for its own."""
        shape = [sizes.get(self.shape[i], self.shape[i]) for i in self.order]
        number = int(fill == "ones")
        whole = torch.full(shape, number, dtype=self.dtype, device="cpu")
        tensor = whole.permute([self.order.index(i) for i in range(len(shape))])
        if fill == "identity" and len(shape) >= 2:
            tensor.diagonal(dim1=-2, dim2=-1).fill_(1)
        return tensor


@dataclass(frozen=True, slots=True)
class _Nested:
    """A list, tuple, dictionary, slice or size of packed items; ``names`` are a dictionary's."""

    kind: type
    items: tuple[Any, ...]
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Plain:
    """Any other argument, told from equal ones of another type."""

    kind: type
    value: Any


_ANY_FLOAT = _Plain(float, 0.5)
"""Stands for a float that varies: every call that takes one takes this one, a probability too."""


def packed(value: Any, places: dict[Node, int]) -> Any:
    """An argument of a captured call without nodes and symbols, such that it can be a key."""
    if isinstance(value, Node):
        return _operand(value, places[value])
    if isinstance(value, slice):
        return _Nested(slice, tuple(packed(one, places) for one in (value.start, value.stop, value.step)))
    if isinstance(value, dict):
        return _Nested(dict, tuple(packed(one, places) for one in value.values()), tuple(value))
    if isinstance(value, (tuple, list)):
        return _Nested(list if isinstance(value, list) else tuple, tuple(packed(one, places) for one in value))
    if value is None or value is Ellipsis or isinstance(value, _CONSTANTS):
        return _Plain(type(value), value)
    raise UnknownError


def _operand(node: Node, place: int) -> Like | _Plain:
    value: Any = node.meta.get("example_value")
    if isinstance(value, torch.SymInt) and not depends_on_data(value):
        return _Plain(int, hint(value))
    if isinstance(value, torch.SymFloat):
        return _ANY_FLOAT
    if not is_fake(value) or value.layout is not torch.strided or not kind_of(value).host or value.is_quantized:
        raise UnknownError
    if any(depends_on_data(n) for n in (*value.shape, *value.stride())):
        raise UnknownError
    return like_of(place, value)


@dataclass(frozen=True, slots=True)
class Given:
    """The packed arguments of a call, and the places of those that are to have a gradient."""

    arguments: tuple[Any, Any]
    wanted: frozenset[int] = frozenset()

    @property
    def likes(self) -> list[Like]:
        """The tensors among them."""
        return list(_tensors(self.arguments))

    def made(
        self, fill: str, sizes: dict[int, int], changed: Callable[[int, Tensor], Tensor] = lambda _, tensor: tensor
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments to call with; whole numbers that are a tensor's size change as that does.

        What is ``changed`` of a place and the tensor made for it stands there.
        """
        operands = {like.place: like for like in self.likes}
        found = {place: changed(place, like.made(fill, sizes)) for place, like in operands.items()}
        args, kwargs = (_unpacked(one, sizes, found) for one in self.arguments)
        return args, kwargs


def _tensors(packed: Any) -> Any:
    if isinstance(packed, Like):
        yield packed
    for one in packed.items if isinstance(packed, _Nested) else packed if isinstance(packed, tuple) else ():
        yield from _tensors(one)


def numbers_in(packed: Any) -> Iterator[int]:
    """The integers among packed arguments."""
    if isinstance(packed, _Plain) and packed.kind is int:
        yield packed.value
    for one in packed.items if isinstance(packed, _Nested) else packed if isinstance(packed, tuple) else ():
        yield from numbers_in(one)


def _unpacked(packed: Any, sizes: dict[int, int], found: dict[int, Tensor]) -> Any:
    if isinstance(packed, Like):
        return found[packed.place]
    if isinstance(packed, _Plain):
        return sizes.get(packed.value, packed.value) if packed.kind is int else packed.value
    items = [_unpacked(one, sizes, found) for one in packed.items]
    if packed.kind is dict:
        return dict(zip(packed.names, items, strict=True))
    return slice(*items) if packed.kind is slice else packed.kind(items)


def like_of(place: int, tensor: Tensor) -> Like:
    """What a trial knows of a tensor; a size that varies is the one that it was captured with."""
    shape, steps = [hint(n) for n in tensor.shape], [hint(step) for step in tensor.stride()]
    order = sorted(range(len(steps)), key=lambda i: -steps[i])
    dense, step = True, 1
    for i in reversed(order):
        dense, step = dense and steps[i] == step, step * shape[i]
    return Like(place, tensor.dtype, tuple(shape), tuple(order), dense)
