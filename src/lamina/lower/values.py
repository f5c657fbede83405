"""What an FX node's value is while lowering: a tensor is a window onto a buffer, described by index expressions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from lamina.ir.index import Atom, Axis, Expr, as_expr, prod
from lamina.ir.loops import Buffer, BufferView

__all__ = ["TensorValue", "broadcast_index", "linear_view", "reshape_index", "whole"]


@dataclass(frozen=True, slots=True)
class TensorValue:
    """A tensor: element ``[d0, d1, ...]`` is ``buffer[index]``, where ``index`` is written in the axes ``dims``."""

    buffer: str
    dtype: str
    dims: tuple[Axis, ...]
    index: tuple[Expr, ...]

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

    def view(self, shape: Sequence[Expr], position: Sequence[Expr]) -> TensorValue:
        """A view of ``shape``; ``position`` gives, in the axes ``fresh_dims(shape)``, the element of this tensor."""
        return TensorValue(self.buffer, self.dtype, fresh_dims(shape), self.at(position))


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
    return TensorValue(buffer.name, buffer.dtype, *_dims(buffer.shape))


def broadcast_index(source: Sequence[Expr], position: Sequence[Expr]) -> tuple[Expr, ...]:
    """Where an operand of shape ``source`` is read for element ``position`` of the broadcast result."""
    offset = len(position) - len(source)
    return tuple(as_expr(0) if n == 1 else position[offset + i] for i, n in enumerate(source))


def reshape_index(source: Sequence[Expr], target: Sequence[Expr]) -> tuple[Expr, ...]:
    """For a reshape from ``source`` to ``target``: the source position of each target position.

    Groups of axes with equal products are matched first, so that most dimensions need no division.
    """
    return _reshape_index(tuple(source), tuple(target))


@lru_cache(maxsize=4096)
def _reshape_index(source: tuple[Expr, ...], target: tuple[Expr, ...]) -> tuple[Expr, ...]:
    dims = [as_expr(d) for d in fresh_dims(target)]
    if any(n == 0 for n in target):  # no position exists; an empty axis stands for all
        return (dims[[n == 0 for n in target].index(True)],) * len(source)
    result: list[Expr] = []
    i = j = 0
    while i < len(source) or j < len(target):
        left, right = as_expr(1), as_expr(1)
        first_i, first_j = i, j
        if i < len(source):
            left, i = left * source[i], i + 1
        if j < len(target):
            right, j = right * target[j], j + 1
        while left != right and (i < len(source) or j < len(target)):
            if j >= len(target) or (i < len(source) and _smaller(left, right)):
                left, i = left * source[i], i + 1
            else:
                right, j = right * target[j], j + 1
        result += _unravel(_ravel(dims[first_j:j], target[first_j:j]), source[first_i:i])
    return tuple(result)


def _smaller(left: Expr, right: Expr) -> bool:
    if left.is_int and right.is_int:
        return left.const < right.const
    low = (right - left).bounds()[0]
    if low is not None and low >= 0:
        return True
    if left.is_int != right.is_int:
        return left.is_int
    return len(left.terms[0][0]) < len(right.terms[0][0])


def _ravel(position: Sequence[Expr], shape: Sequence[Expr]) -> Expr:
    flat = as_expr(0)
    for p, n in zip(position, shape, strict=True):
        flat = flat * n + (p if n != 1 else 0)
    return flat


def _unravel(flat: Expr, shape: Sequence[Expr]) -> list[Expr]:
    position: list[Expr] = []
    inner = as_expr(1)
    for k in range(len(shape) - 1, -1, -1):
        here = flat // inner
        position.append(as_expr(0) if shape[k] == 1 else here if k == 0 else here % shape[k])
        inner = inner * shape[k]
    return position[::-1]


def linear_view(value: TensorValue, buffer: Buffer) -> BufferView | None:
    """The value as a strided window onto its buffer, or ``None`` when its addresses are not linear in its dims."""
    found = _linear(value.dims, value.index, buffer.strides)
    return None if found is None else BufferView(value.buffer, value.shape, *found)


@lru_cache(maxsize=8192)
def _linear(
    dims: tuple[Axis, ...], index: tuple[Expr, ...], steps: tuple[Expr, ...]
) -> tuple[tuple[Expr, ...], Expr] | None:
    """Stride of each dim and offset of the addresses ``index`` in a buffer of strides ``steps``."""
    flat = as_expr(0)
    for e, stride in zip(index, steps, strict=True):
        flat = flat + e * stride
    if any(flat.coefficient(dim) is None for dim in dims):
        flat = _joined(flat, dims, index, steps) or flat
    strides: list[Expr] = []
    rest = flat
    for dim in dims:
        factor = flat.coefficient(dim)
        if factor is None:
            return None
        if dim.extent == 1:
            strides.append(as_expr(1))
            rest = rest.substitute({dim: 0})
            continue
        if factor != 0 and (-factor).nonnegative():  # torch has no tensors that run backwards
            return None
        strides.append(factor)
        rest = rest - factor * as_expr(dim)
    if any(isinstance(a, Axis) for a in rest.atoms()):
        return None
    return tuple(_nonzero(strides, tuple(d.extent for d in dims))), rest


def _joined(flat: Expr, dims: tuple[Axis, ...], index: tuple[Expr, ...], steps: tuple[Expr, ...]) -> Expr | None:
    """The addresses ``flat`` as a linear expression, where ``index`` is the division of one by the ``steps`` with rest.

    ``s * (e // s) + e % s`` is ``e``: so are the addresses that a reshape of dense memory has, however it divides. The
    expression is what the addresses are at 0 and 1 of each dim; divided in the same way it must give ``index``.
    """
    if not all(step.is_int for step in steps):
        return None
    nowhere: dict[Atom, Expr | int] = dict.fromkeys(dims, 0)
    joined = start = flat.substitute(nowhere)
    for dim in dims:
        joined = joined + (flat.substitute({**nowhere, dim: 1}) - start) * as_expr(dim)
    parts = sorted(((step.const, e) for e, step in zip(index, steps, strict=True) if e != 0), key=lambda p: -p[0])
    rest = None
    for step, e in parts:
        if step <= 0 or (rest is not None and rest % step):
            return None
        if e != (joined // step if rest is None else (joined // step) % (rest // step)):
            return None
        rest = step
    return joined if rest == 1 else None


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
