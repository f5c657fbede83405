"""Resampling stays whole while a graph is traced, as eager's kernels and their gradients have it.

Torch's Python dispatcher takes it apart, into gathers by tensors of places, whose gradients are scatters.
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
