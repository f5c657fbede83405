"""Reshapes: where an element of the new shape is in the old one, and the strides that the new shape has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from lamina.ir.index import Div, Expr, Mod, as_expr
from lamina.ir.loops import row_major_strides
from lamina.lower.context import Lowering
from lamina.lower.values import TensorValue, fresh_dims

__all__ = ["divided", "reshaped"]


def reshaped(low: Lowering, x: TensorValue, shape: Sequence[Expr]) -> TensorValue:
    """The elements of ``x`` in row-major order, in another shape.

    Its address is linear wherever eager's is a view, as far as sizes that are symbols tell; it always is where the
    elements of ``x`` follow each other.
    """
    target = tuple(shape)
    out = x.view(target, _reshape_index(x.shape, target))
    strides = None if x.strides is None else _reshape_strides(x.shape, x.strides, target)
    if strides is None and x.row_major:
        strides = row_major_strides(target)
    if strides is None or any(n == 0 for n in target):
        return out
    address = x.address.substitute(dict.fromkeys(x.dims, 0))
    for dim, stride in zip(out.dims, strides, strict=True):
        address = address + (stride * as_expr(dim) if dim.extent != 1 else 0)
    buffer = low.buffers[x.buffer]
    index = _shorter(out.index, divided(address, buffer.shape, buffer.strides))
    return replace(out, index=index, address=address, row_major=x.row_major)


def _shorter(first: tuple[Expr, ...], second: tuple[Expr, ...] | None) -> tuple[Expr, ...]:
    return second if second is not None and _divisions(second) < _divisions(first) else first


def _divisions(index: tuple[Expr, ...]) -> int:
    return len({a for e in index for a in e.atoms() if isinstance(a, Div | Mod)})


@lru_cache(maxsize=4096)
def divided(address: Expr, shape: tuple[Expr, ...], strides: tuple[Expr, ...]) -> tuple[Expr, ...] | None:
    """The index of the element that is ``address`` elements from the first; ``None`` where a division cannot tell it.

    It can where each dim lies within one element of the next outer dim, with or without a gap behind it. The address
    must be that of an element.
    """
    order = _nested(shape, strides)
    if order is None:
        return None
    index = [as_expr(0)] * len(shape)
    outside, rest = None, address
    for k in order:
        if outside is not None and outside != strides[k] * shape[k]:
            rest = rest % outside
            outside = None
        place = rest // strides[k]
        index[k] = place if outside is None else place % shape[k]
        outside = strides[k]
    return tuple(index)


def _nested(shape: tuple[Expr, ...], strides: tuple[Expr, ...]) -> list[int] | None:
    """The dims of more than one element from the outermost to the innermost, if each lies within the one before it."""
    left = [k for k, n in enumerate(shape) if n != 1]
    order: list[int] = []
    span = as_expr(1)
    while left:
        found = next((k for k in left if strides[k] == span), None)
        if found is None and all(strides[k].is_int for k in left):
            found = min(left, key=lambda k: strides[k].const)
        if found is None or not (strides[found] - span).nonnegative():
            return None
        left.remove(found)
        order.append(found)
        span = strides[found] * shape[found]
    return order[::-1]


@lru_cache(maxsize=4096)
def _reshape_strides(
    shape: tuple[Expr, ...], strides: tuple[Expr, ...], target: tuple[Expr, ...]
) -> tuple[Expr, ...] | None:
    """The strides of a view of ``target``; ``None`` where there are none, or where that depends on what sizes are.

    As ``view`` finds them: dims that lie in memory as one dim would are joined, and each of these joined dims is a
    product of new ones. The products of all dims are known to be equal, so the last joined dim has the rest.
    """
    left = [(n, s) for n, s in zip(shape, strides, strict=True) if n != 1]
    wanted = list(target)
    outer: list[Expr] = []
    while wanted and (wanted[0] == 1 or (left and left[0][0] == wanted[0])):
        outer.append(as_expr(1) if wanted.pop(0) == 1 else left.pop(0)[1])
    inner: list[Expr] = []
    while left:
        size, step = left.pop()
        while left and left[-1][1] == size * step:
            size = size * left.pop()[0]
        running = as_expr(1)
        while wanted and (running != size or not left):
            inner.append(running * step)
            running = running * wanted.pop()
        if left and running != size:
            return None
    return (*outer, *(as_expr(1) for _ in wanted), *inner[::-1])


@lru_cache(maxsize=4096)
def _reshape_index(source: tuple[Expr, ...], target: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """For a reshape from ``source`` to ``target``: the source position of each target position.

    Groups of axes with equal products are matched first, so that most dimensions need no division.
    """
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
