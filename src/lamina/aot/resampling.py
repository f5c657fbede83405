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

from lamina.aot.torch_private import dispatched_in_python, resampled_size, suggested_format
from lamina.base.devices import kind_of

__all__ = ["whole_resampling"]

aten = torch.ops.aten

_SMOOTH = ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d")
_NEAREST = tuple(f"{name}{rank}d" for name in ("upsample_nearest", "_upsample_nearest_exact") for rank in (1, 2, 3))

_ROUNDED_DOWN = frozenset(name for name in _NEAREST if "exact" not in name)

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
                vector = _with_sizes(operation.default, name)
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


def _with_sizes(operation: Any, name: str) -> Callable[..., Any]:
    """A function of what takes the form with sizes or factors apart: that by ``operation``, which is given both.

    What has symbols among its sizes is still taken apart: C++ has no shapes of gradients for them. Linear
    interpolation is then a sum of weighted elements: torch's own has differences of neighbours, which are not numbers
    between infinities. Symbols become numbers where what is taken apart would have other elements than eager.
    """
    linear = "linear" in name

    def changed(apart: Callable[..., Any]) -> Callable[..., Any]:
        def whole(x: torch.Tensor, size: Any, *rest: Any) -> Any:
            factors: Sequence[float] | None = rest[-1]
            sizes = resampled_size(x.size(), size, factors)
            varies = any(isinstance(n, torch.SymInt) for n in (*x.shape, *sizes))
            if varies and name in _ROUNDED_DOWN and factors and _is_whole(x, sizes, factors):
                x, sizes, varies = x.reshape([int(n) for n in x.shape]), [int(n) for n in sizes], False
            if varies:
                if linear and x.is_floating_point():
                    return _interpolated(x, sizes, *rest)
                return apart(x, size, *rest)
            given: Sequence[float | None] = factors or [None] * len(sizes)
            return operation(x, sizes, *rest[:-1], *given)

        def with_corners(x: torch.Tensor, output_size: Any, align_corners: bool, scale_factors: Any) -> Any:
            return whole(x, output_size, align_corners, scale_factors)

        def without(x: torch.Tensor, output_size: Any, scale_factors: Any) -> Any:
            return whole(x, output_size, scale_factors)

        return with_corners if name in _SMOOTH else without

    return changed


def _kept(x: torch.Tensor, sizes: Sequence[Any]) -> list[bool]:
    """Which sizes are kept: eager takes each element for itself then, and no neighbour times zero.

    What the trace rests on says so from then on, or the contrary.
    """
    return [bool(source == result) for source, result in zip(x.shape[2:], sizes, strict=True)]


def _is_whole(x: torch.Tensor, sizes: Sequence[Any], factors: Sequence[float]) -> bool:
    """Whether sizes are kept or doubled by another factor: some of eager's kernels take other elements then."""
    pairs = zip(x.shape[2:], sizes, factors, strict=True)
    return any(0 < f < 3 and f != 1 and f != 2 and (n == m or n == 2 * m) for m, n, f in pairs)


def _interpolated(x: torch.Tensor, sizes: Sequence[Any], corners: bool, factors: Sequence[float] | None) -> Any:
    """Linear interpolation of the last dimensions to ``sizes``, summed up in eager's order."""
    rank = len(sizes)
    dtype = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
    kept = _kept(x, sizes)
    cpu, copied = kind_of(x).host, all(kept)
    wide = x.to(dtype)  # before its elements are taken, whose gradients are added up
    around: list[list[tuple[torch.Tensor, Any]]] = []
    for k, (source, result) in enumerate(zip(x.shape[2:], sizes, strict=True)):
        at = torch.arange(result, device=x.device).reshape(-1, *[1] * (rank - 1 - k))
        if kept[k] and (cpu or copied):  # eager on CPUs adds the element times zero; others copy all of them or none
            around.append([(at, 1.0), (at, 0.0)] if cpu else [(at, 1.0)])
            continue
        if corners:
            real = at.to(dtype) * ((source - 1.0) / (result - 1.0) if result > 1 else 0.0)
        else:
            ratio = 1.0 / factors[k] if factors and factors[k] > 0 else source / result
            real = ((at.to(dtype) + 0.5) * ratio - 0.5).clamp(min=0.0)
        left = real.to(torch.int64).clamp(max=source - 1)
        weight = (real - left).clamp(0.0, 1.0)
        around.append([(left, 1.0 - weight), ((left + 1).clamp(max=source - 1), weight)])

    def along(places: Sequence[torch.Tensor]) -> Any:
        if len(places) == rank:
            return aten._unsafe_index(wide, [None, None, *places])
        parts = [along([*places, place]) * weight for place, weight in around[len(places)]]
        return parts[0] + parts[1] if len(parts) == 2 else parts[0]

    few = kind_of(x).grids and bool(x.shape[1] < 16)
    layout = torch.contiguous_format if few else suggested_format(x)
    return along([]).to(x.dtype).contiguous(memory_format=layout)


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
