"""Resampling stays whole while a graph is traced, as eager's kernels and their gradients have it.

Torch's Python dispatcher takes it apart, into gathers by tensors of places, whose gradients are scatters. Circular
padding, which torch makes of copies into slices of the result, each of which a functional graph makes a new tensor of,
becomes a part of the repeated tensor: an index map.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from lamina.aot.torch_private import dispatched_in_python, resampled_size

__all__ = ["whole_resampling"]

aten = torch.ops.aten

_SMOOTH = ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d")
_NEAREST = tuple(f"{name}{rank}d" for name in ("upsample_nearest", "_upsample_nearest_exact") for rank in (1, 2, 3))

_lock = threading.Lock()
_depth = 0
_replaced = contextlib.ExitStack()


@contextlib.contextmanager
def whole_resampling() -> Iterator[None]:
    """Inside, resampling is traced as one operation, in all threads; it may be entered again."""
    global _depth
    with _lock:
        if _depth == 0:
            for name in (*_SMOOTH, *_NEAREST):
                operation = getattr(aten, name)
                vector = _with_sizes(operation.default, corners=name in _SMOOTH)
                _replaced.enter_context(dispatched_in_python(operation.vec, vector))
                _replaced.enter_context(dispatched_in_python(operation.default, None))
            _replaced.enter_context(dispatched_in_python(aten._pad_circular.default, _circular_padding))
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0:
                _replaced.close()


def _with_sizes(operation: Any, corners: bool) -> Callable[..., Any]:
    """A function of what takes the form with sizes or factors apart: that by ``operation``, which is given both.

    What has symbols among its sizes is still taken apart: C++ has no shapes of gradients for them.
    """

    def changed(apart: Callable[..., Any]) -> Callable[..., Any]:
        def whole(x: torch.Tensor, size: Any, *rest: Any) -> Any:
            factors: Sequence[float] | None = rest[-1]
            sizes = resampled_size(x.size(), size, factors)
            if any(isinstance(n, torch.SymInt) for n in (*x.shape, *sizes)):
                return apart(x, size, *rest)
            given: Sequence[float | None] = factors or [None] * len(sizes)
            return operation(x, sizes, *rest[:-1], *given)

        def with_corners(x: torch.Tensor, output_size: Any, align_corners: bool, scale_factors: Any) -> Any:
            return whole(x, output_size, align_corners, scale_factors)

        def without(x: torch.Tensor, output_size: Any, scale_factors: Any) -> Any:
            return whole(x, output_size, scale_factors)

        return with_corners if corners else without

    return changed


def _circular_padding(apart: Callable[..., Any]) -> Callable[..., Any]:
    """A function that takes a part of what is repeated, one dimension after the other in eager's order.

    What has symbols among its sizes, negative widths or widths that eager refuses is taken apart as ever, and so is
    padding so wide that an element of the gradient is a sum of more than two, which eager rounds on the way.
    """

    def part(x: torch.Tensor, pad: Sequence[Any]) -> Any:
        dims = [x.dim() - 1 - k for k in range(len(pad) // 2)]
        widths = list(zip(dims, pad[::2], pad[1::2], strict=False))
        plain = all(isinstance(n, int) for n in (*pad, *x.shape)) and min(dims, default=-1) >= 0
        if not plain or not any(pad) or any(min(w) < 0 or sum(w) > x.size(dim) for dim, *w in widths):
            return apart(x, pad)
        result = x
        for dim, before, after in widths:
            size, times = x.size(dim), 1 + (before > 0) + (after > 0)
            repeated = result.repeat(*[times if k == dim else 1 for k in range(x.dim())])
            result = repeated.narrow(dim, size - before if before else 0, before + size + after)
        return result.contiguous()

    return part
