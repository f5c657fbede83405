"""What an FX node's value is while lowering: a tensor is a window onto a buffer, described by index expressions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from lamina.ir.index import Atom, Axis, Expr, as_expr, prod
from lamina.ir.loops import Buffer, BufferView, row_major_strides

__all__ = ["TensorValue", "broadcast_index", "fresh_dims", "is_dense", "linear_view", "whole"]


@dataclass(frozen=True, slots=True)
class TensorValue:
    """A tensor: element ``[d0, d1, ...]`` is ``buffer[index]``, where ``index`` is written in the axes ``dims``.

    ``address`` says the same as ``index``: how many elements from the buffer's first one. It stays linear in the axes
    where eager has strides for them, whatever divisions ``index`` takes. ``row_major``: the elements follow each other
    in memory, which reshapes do not change; the strides need not show it where sizes are symbols.
    """

    buffer: str
    dtype: str
    dims: tuple[Axis, ...]
    index: tuple[Expr, ...]
    address: Expr = field(compare=False)
    row_major: bool = field(default=False, compare=False)

    @property
    def shape(self) -> tuple[Expr, ...]:
        return tuple(d.extent for d in self.dims)

    @property
    def rank(self) -> int:
        return len(self.dims)

    def numel(self) -> Expr:
        """Number of elements."""
        return prod(self.shape)

    def at(self, position: Sequence[Expr]) -> tuple[Expr, ...]:
        """The buffer index of the element at ``position``."""
        return _at(self.dims, self.index, tuple(position))

    @property
    def strides(self) -> tuple[Expr, ...] | None:
        """How far the address goes with each axis, ``None`` where it is not linear; 1 for axes of one element."""
        return _strides(self.dims, self.address)

    def view(self, shape: Sequence[Expr], position: Sequence[Expr]) -> TensorValue:
        """A view of ``shape``; ``position`` gives, in the axes ``fresh_dims(shape)``, the element of this tensor."""
        *index, address = _at(self.dims, (*self.index, self.address), tuple(position))
        return TensorValue(self.buffer, self.dtype, fresh_dims(shape), tuple(index), address)


# Equal layers ask these questions about equal shapes: answers are remembered by value, not by buffer.
@lru_cache(maxsize=8192)
def _at(dims: tuple[Axis, ...], index: tuple[Expr, ...], position: tuple[Expr, ...]) -> tuple[Expr, ...]:
    mapping: dict[Atom, Expr | int] = dict(zip(dims, position, strict=True))
    return tuple(e.substitute(mapping) for e in index)


def fresh_dims(shape: Sequence[Expr]) -> tuple[Axis, ...]:
    """Placeholder axes ``d0, d1, ...`` of a view."""
    return _dims(tuple(shape))[0]


@lru_cache(maxsize=4096)
def _dims(shape: tuple[Expr, ...]) -> tuple[tuple[Axis, ...], tuple[Expr, ...]]:
    """The placeholder axes of a shape, also as expressions: one object for each shape, which compares fast."""
    dims = tuple(Axis(f"d{i}", n) for i, n in enumerate(shape))
    return dims, tuple(as_expr(d) for d in dims)


def whole(buffer: Buffer) -> TensorValue:
    """The tensor that is all of a buffer."""
    dims, index = _dims(buffer.shape)
    address = _address(index, buffer.strides)
    return TensorValue(
        buffer.name, buffer.dtype, dims, index, address, buffer.strides == row_major_strides(buffer.shape)
    )


@lru_cache(maxsize=4096)
def _address(index: tuple[Expr, ...], strides: tuple[Expr, ...]) -> Expr:
    """How many elements ``index`` is from the first one, in memory with these strides."""
    flat = as_expr(0)
    for e, stride in zip(index, strides, strict=True):
        flat = flat + e * stride
    return flat


def broadcast_index(source: Sequence[Expr], position: Sequence[Expr]) -> tuple[Expr, ...]:
    """Where an operand of shape ``source`` is read for element ``position`` of the broadcast result."""
    offset = len(position) - len(source)
    return tuple(as_expr(0) if n == 1 else position[offset + i] for i, n in enumerate(source))


def linear_view(value: TensorValue) -> BufferView | None:
    """The value as a strided window onto its buffer, or ``None`` when its addresses are not linear in its dims."""
    found = _linear(value.dims, value.address)
    return None if found is None else BufferView(value.buffer, value.shape, *found)


@lru_cache(maxsize=8192)
def _linear(dims: tuple[Axis, ...], address: Expr) -> tuple[tuple[Expr, ...], Expr] | None:
    """Stride of each dim and offset of the addresses."""
    strides = _strides(dims, address)
    if strides is None:
        return None
    rest = address
    for dim, stride in zip(dims, strides, strict=True):
        rest = rest.substitute({dim: 0}) if dim.extent == 1 else rest - stride * as_expr(dim)
    if any(isinstance(a, Axis) for a in rest.atoms()):
        return None
    if any(stride != 0 and (-stride).nonnegative() for stride in strides):  # torch has no tensors that run backwards
        return None
    return tuple(_nonzero(list(strides), tuple(d.extent for d in dims))), rest


@lru_cache(maxsize=8192)
def _strides(dims: tuple[Axis, ...], address: Expr) -> tuple[Expr, ...] | None:
    """Stride of each dim, 1 for those of one element; ``None`` where the addresses are not linear in the dims."""
    found: list[Expr] = []
    for dim in dims:
        factor = as_expr(1) if dim.extent == 1 else address.coefficient(dim)
        if factor is None or any(isinstance(a, Axis) for a in factor.atoms()):
            return None
        found.append(factor)
    return tuple(found)


def _nonzero(strides: list[Expr], shape: tuple[Expr, ...]) -> list[Expr]:
    """Strides of size-one dimensions as a dense tensor would have them, which libraries expect.

    They tell images whose channels are innermost from others by the strides of all four or five dimensions.
    """
    order = list(range(len(shape)))
    if _channels_innermost(strides, shape):
        order = [0, *order[2:], 1]
    running = as_expr(1)
    result = list(strides)
    for k in reversed(order):
        if shape[k] == 1:
            result[k] = running
        else:
            running = strides[k] * shape[k]
    return result


def _channels_innermost(strides: list[Expr], shape: tuple[Expr, ...]) -> bool:
    """Whether several channels of several pixels lie side by side."""
    pixels = [n for n in shape[2:] if n != 1]
    return len(shape) in (4, 5) and bool(pixels) and shape[1] != 1 and strides[1] == 1


def is_dense(shape: Sequence[Expr], strides: Sequence[Expr]) -> bool:
    """Whether the strides enumerate the elements without gaps or overlap, in some order of the dims."""
    left = [(s, n) for s, n in zip(strides, shape, strict=True) if n != 1]
    expected = as_expr(1)
    while left:
        for k, (s, n) in enumerate(left):
            if s == expected:
                expected = expected * n
                del left[k]
                break
        else:
            return any(n == 0 for n in shape)
    return True
