"""Eager with other roundings, or with its elements elsewhere in vectors: what of a result is no property of eager's.

Where a program is ill-conditioned, or a sign of zero depends on where an element lies, one run of eager says too
little: eager's own error may be small by luck. So what differs is compared with further runs of eager.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from lamina.base.reference import WIDE, mapped
from lamina.testing.fuzz.torch_private import NORMS_APART, SUMS_APART, PerturbedMode

__all__ = ["ORDERS", "PLACES", "Copied", "Elsewhere", "OfEqual", "RandomRounding", "SumsApart"]

_LANES = 64
"""More elements than the widest vector holds of the narrowest type."""

_LOW_BITS = 0xFFF
"""Of a float64, of which there is no wider one: a result in which one of these bits is set was rounded."""


class RandomRounding(PerturbedMode):
    """Inside, what an operation had to round is rounded up or down at random: Monte Carlo arithmetic.

    An exact result stays as it is. Where eager is off by more than a rounding, the error may have the other sign.
    How far off a kernel is that rounds many times tells a wider type; of float64, which has none, norms are taken apart
    into operations that round once.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)

    def perturbed(self, func: Any, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        """The results of one operation."""
        floats = [t for t in _tensors((args, given)) if t.is_floating_point() and t.layout is torch.strided]
        if not floats or func.is_view or torch.Tag.nondeterministic_seeded in func.tags:
            return func(*args, **given)
        if func in NORMS_APART and any(t.dtype == torch.float64 for t in floats):
            with self:
                return NORMS_APART[func](*args, **given)
        wide = mapped((args, given), _widened)
        results = func(*args, **given)
        made = [t for t in _tensors(results) if t.is_floating_point() and t.layout is torch.strided]
        try:
            exact = [t for t in _tensors(func(*wide[0], **wide[1])) if t.is_floating_point()]
        except Exception:
            return results  # an operation that knows no double precision: its rounding stays eager's
        for result, right in zip(made, exact, strict=False):
            if result.shape == right.shape and result.numel():
                result.data.copy_(self._rounded(result.data, right))
        return results

    def _rounded(self, result: Tensor, exact: Tensor) -> Tensor:
        chosen = torch.rand(result.shape, generator=self._generator) < 0.5
        if result.dtype == torch.float64:
            inexact = (result.contiguous().view(torch.int64) & _LOW_BITS) != 0
            up = torch.rand(result.shape, generator=self._generator) < 0.5
            towards = torch.where(up, torch.inf, -torch.inf).to(result.dtype)
            return torch.where(chosen & inexact, torch.nextafter(result, towards), result)
        gap = exact - result.double()
        other = (exact + gap).to(result.dtype)
        beside = torch.nextafter(result, torch.where(gap > 0, torch.inf, -torch.inf).to(result.dtype))
        other = torch.where(other == result, beside, other)
        return torch.where(chosen & (gap != 0) & torch.isfinite(gap) & torch.isfinite(other), other, result)


_aten = torch.ops.aten

_PRODUCTS = (_aten.mm.default, _aten.bmm.default)
_EXTREMA = (
    _aten.aminmax.default,
    _aten.amax.default,
    _aten.amin.default,
    _aten.max.default,
    _aten.min.default,
    _aten.max.dim,
    _aten.min.dim,
)
_SELECTIONS: dict[Any, tuple[str, ...]] = {
    _aten.topk.default: ("k", "dim", "largest", "sorted"),
    _aten.kthvalue.default: ("k", "dim", "keepdim"),
    _aten.sort.default: ("dim", "descending"),
    _aten.sort.stable: (),
}
"""Operations that select or order elements, with the names of what they take behind the tensor."""


class Elsewhere(PerturbedMode):
    """Inside, pointwise operations find their elements ``placed`` elsewhere: see ``PLACES``.

    So do products, as parts of larger ones, or as sums of products: one over a single element is -0.0, or added to 0.0.
    Of 0.0 and -0.0 extrema take one or the other by their places, so in one place they take the greater, in another the
    smaller.
    """

    def __init__(self, placed: Callable[[Tensor, Sequence[int]], Tensor]) -> None:
        super().__init__()
        self._placed = placed

    def perturbed(self, func: Any, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        """The results of one operation."""
        operands = _tensors((args, given))
        if func in _PRODUCTS or func in _EXTREMA:
            result = func(*args, **given)
            if func in _PRODUCTS:
                other = _within_larger(*args) if self._placed is _in_vectors else _as_sums(*args)
                return _with_signs_of(result, other)
            return _with_signs_of(result, _of_zeros_apart(func, args, given, 1 if self._placed is _in_vectors else -1))
        pointwise = torch.Tag.pointwise in func.tags and torch.Tag.nondeterministic_seeded not in func.tags
        if not pointwise or "out" in given or not operands:
            return func(*args, **given)
        shape = torch.broadcast_shapes(*(t.shape for t in operands))  # type: ignore[no-untyped-call]
        moved = mapped((args, given), lambda leaf: self._placed(leaf, shape) if isinstance(leaf, Tensor) else leaf)
        results = func(*args, **given)
        for result, other in zip(_tensors(results), _tensors(func(*moved[0], **moved[1])), strict=True):
            if result.dtype == other.dtype and result.shape == shape and result.numel():
                result.data.copy_(other.reshape(result.numel(), -1)[:, 0].reshape(shape))
        return results


class SumsApart(PerturbedMode):
    """Inside, norms and gradients of softmax are computed by operations of which each adds up, or is pointwise.

    A sum of nothing but -0.0 is 0.0 in eager where it begins with that, -0.0 where it begins with one of them:
    kernels that add up within do either, by the dimension, by their vectors, by the device.
    """

    def perturbed(self, func: Any, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        """The results of one operation."""
        if func not in SUMS_APART:
            return func(*args, **given)
        with self:
            return SUMS_APART[func](*args, **given)


class OfEqual(PerturbedMode):
    """Inside, selections and sorts take equal elements in an order that is theirs alone: as they stand, or another.

    Which of them ``topk`` and ``kthvalue`` take, and so which one gets the gradient, torch leaves open; so it does in
    which order a sort that is not to be stable gives them. 0.0 and -0.0 are equal. See ``ORDERS``.
    """

    def __init__(self, ordered: Callable[[Tensor, int], Tensor] | None = None) -> None:
        super().__init__()
        self._ordered = ordered or _as_they_stand

    def perturbed(self, func: Any, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        """The results of one operation."""
        results = func(*args, **given)
        names = _SELECTIONS.get(func)
        if names is None or not args[0].dim() or given.get("stable"):
            return results
        rest = dict(zip(names, args[1:], strict=False)) | given
        k, dim, tensor = rest.get("k"), rest.get("dim", -1), args[0].detach()
        descending = rest.get("largest", True) if func is _aten.topk.default else rest.get("descending", False)
        first = self._ordered(tensor, dim)
        order = first.gather(dim, tensor.gather(dim, first).sort(dim=dim, descending=descending, stable=True)[1])
        if k is not None:
            order = order.narrow(dim, 0, k) if func is _aten.topk.default else order.narrow(dim, k - 1, 1)
        values, places = results
        values.data.copy_(tensor.gather(dim, order).reshape(values.shape))
        places.copy_(order.reshape(places.shape))
        return results


def _as_they_stand(tensor: Tensor, dim: int) -> Tensor:
    shape = [-1 if axis == dim % tensor.dim() else 1 for axis in range(tensor.dim())]
    return torch.arange(tensor.shape[dim]).reshape(shape).expand(tensor.shape)


def _negative_first(tensor: Tensor, dim: int) -> Tensor:
    return tensor.signbit().to(torch.uint8).sort(dim=dim, descending=True, stable=True)[1]


def _negative_last(tensor: Tensor, dim: int) -> Tensor:
    return tensor.signbit().to(torch.uint8).sort(dim=dim, stable=True)[1]


def _drawn(seed: int) -> Callable[[Tensor, int], Tensor]:
    def ordered(tensor: Tensor, dim: int) -> Tensor:
        return torch.rand(tensor.shape, generator=torch.Generator().manual_seed(seed)).sort(dim=dim)[1]

    return ordered


ORDERS = (_as_they_stand, _negative_first, _negative_last, _drawn(0), _drawn(1))
"""Orders of equal elements."""


class Copied(TorchFunctionMode):
    """Inside, a method that writes to a tensor with a history copies its result there: ``x.copy_(x * 2)``.

    Autograd then adds the zero gradient of what was there, as it does where a compiled graph's result is copied to an
    argument: 0.0 where the gradient is -0.0.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        computes = _COMPUTES.get(name)
        if computes is None or not torch.is_grad_enabled() or not isinstance(args[0], Tensor) or args[0].is_leaf:
            return func(*args, **given)
        return args[0].copy_(computes(*args, **given))


_REARRANGE = {"as_strided", "detach", "rename", "squeeze", "swapaxes", "swapdims", "t", "transpose", "unsqueeze"}
_DRAW = {"bernoulli"}

_COMPUTES: dict[str, Any] = {
    "__iadd__": Tensor.add,
    "__imul__": Tensor.mul,
    "__isub__": Tensor.sub,
    "__itruediv__": Tensor.div,
    **{
        name: getattr(Tensor, name[:-1])
        for name in dir(Tensor)
        if name.endswith("_") and not name.startswith("_") and name[:-1] in {*dir(Tensor)} - _REARRANGE - _DRAW
    },
}
"""Methods that write, by name, and those that give what they write."""


def _within_larger(left: Tensor, right: Tensor) -> Tensor:
    """A product of matrices, or each of several, as a part of one of many more rows and columns."""
    times = [1] * (left.ndim - 2)
    larger = left.repeat(*times, _LANES, 1), right.repeat(*times, 1, _LANES)
    pairs = [larger] if left.ndim == 2 else list(zip(*larger, strict=True))
    parts = [(a @ b)[: left.shape[-2], : right.shape[-1]] for a, b in pairs]
    return parts[0] if left.ndim == 2 else torch.stack(parts) if parts else torch.bmm(left, right)


def _as_sums(left: Tensor, right: Tensor) -> Tensor:
    """A product of matrices, or several, as sums of products of their elements."""
    return (left[..., None] * right[..., None, :, :]).sum(-2)


def _of_zeros_apart(extremum: Any, operands: Sequence[Any], keywords: Mapping[str, Any], sign: int) -> Any:
    """An extremum that tells the signs of zeros apart: 0.0 is the larger, or with a negative ``sign`` the smaller."""
    tensor, *rest = operands
    tensor = tensor.detach()
    if not tensor.is_floating_point():
        return extremum(tensor, *rest, **keywords)
    apart = torch.copysign(torch.full_like(tensor, torch.finfo(tensor.dtype).tiny), tensor) * sign
    found = extremum(torch.where(tensor == 0, apart, tensor), *rest, **keywords)
    return mapped(found, lambda leaf: leaf * sign if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf)


def _with_signs_of(results: Any, others: Any) -> Any:
    """``results`` whose zeros have the signs of ``others``."""
    for result, other in zip(_tensors(results), _tensors(others), strict=True):
        if result.is_floating_point():
            result.data.copy_(torch.where(result == 0, torch.copysign(result, other), result))
    return results


def _in_vectors(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """Each element as often as one vector takes, so that none is in the remainder of a loop."""
    return tensor.detach().expand(shape).reshape(-1, 1).repeat(1, _LANES).flatten()


def _one_by_one(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """Elements with a gap behind each, which no vector loads."""
    flat = tensor.detach().expand(shape).reshape(-1, 1)
    return flat.repeat(1, 2)[:, 0]


PLACES = (_in_vectors, _one_by_one)
"""Places of elements: all in vectors, and all outside of them."""


def _tensors(value: Any) -> list[Tensor]:
    found: list[Tensor] = []
    mapped(value, lambda leaf: found.append(leaf) if isinstance(leaf, Tensor) else None)
    return found


def _widened(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        kept = leaf.detach().clone()
        return kept.to(WIDE.get(leaf.dtype, leaf.dtype))
    return WIDE.get(leaf, leaf) if isinstance(leaf, torch.dtype) else leaf
