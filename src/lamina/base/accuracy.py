"""How far a result is from an fp64 reference, and whether that is at most twice as far as eager is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = [
    "FLOOR_ULPS",
    "RATIO",
    "SPECIAL",
    "Error",
    "distance",
    "error",
    "judge",
    "judge_alone",
    "largest",
    "mismatch",
    "tensors",
]

FLOOR_ULPS = 4.0
"""Errors of one result below this many units in the last place of its largest element are never called worse."""

RATIO = 2.0
"""A compiled result may be this many times as far from the reference as eager's."""

SPECIAL = "are NaN or infinite in one result only"
"""What a complaint about such elements says of them."""

NOISE = 0.5
"""Eager error, relative to the largest element, from which on a tensor holds rounding noise and no digit is right.

A gradient that is zero in exact arithmetic is such a tensor: that of a bias in front of a batch norm, for example.
"""

NOISE_RATIO = 8.0
"""Times eager's error that is allowed where eager's result is rounding noise; see ``RATIO`` for all others."""


@dataclass(frozen=True, slots=True)
class Error:
    """Distance to the reference: of the worst element, and rms. Absolute, or relative to the largest element."""

    largest: float
    rms: float

    @property
    def is_noise(self) -> bool:
        """For relative errors: true if not one digit of the result can be trusted."""
        return self.largest > NOISE


def tensors(value: object) -> list[Tensor]:
    """All tensors in nested tuples, lists and mappings (model outputs are mappings), in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [t for item in value.values() for t in tensors(item)]
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [t for item in value for t in tensors(item)]
    return []


def distance(actual: Tensor, exact: Tensor) -> Error:
    """How far ``actual`` is from ``exact`` over the elements that are finite in both, 0 for empty tensors."""
    wide = torch.complex128 if exact.is_complex() or actual.is_complex() else torch.float64
    gap = (actual.detach().to(wide) - exact.detach().to(wide)).abs().reshape(-1)
    gap = gap[torch.isfinite(gap)]
    if gap.numel() == 0:
        return Error(0.0, 0.0)
    return Error(float(gap.max()), float(gap.square().mean().sqrt()))


def error(actual: Tensor, exact: Tensor) -> Error:
    """The distance in units of the largest finite element of ``exact``."""
    gap = distance(actual, exact)
    if gap.largest == 0.0:
        return gap
    scale = max(largest(exact), torch.finfo(torch.float64).tiny)
    return Error(gap.largest / scale, gap.rms / scale)


def largest(exact: Tensor) -> float:
    """Magnitude of the largest finite element, 0 if there is none."""
    sizes = _wide(exact.detach()).abs().reshape(-1).double()
    sizes = sizes[torch.isfinite(sizes)]
    return float(sizes.max()) if sizes.numel() else 0.0


def mismatch(ours: Tensor, eager: Tensor, exact: Tensor | None = None, *, strides: bool = False) -> str:
    """What differs between two results besides rounding, "" if nothing does.

    Compared are dtype, shape, device, layout, gradient flag, strides if asked, integer and boolean values, and the
    places of NaN and infinities. Where eager differs from ``exact`` in being finite or a number, which it does not do
    alike with all of its vector instructions, what ``exact`` is there is right too.
    """
    complaint = _kind(ours, eager, strides)
    if complaint:
        return complaint
    if not (ours.is_floating_point() or ours.is_complex()):
        wrong = int((ours != eager).sum())
        return f"{wrong} of {ours.numel()} elements differ" if wrong else ""
    return _special_values(ours.detach(), eager.detach(), exact)


def judge(
    ours: Tensor,
    eager: Tensor,
    exact: Tensor,
    *,
    floor: float = FLOOR_ULPS,
    strides: bool = False,
    quantised: bool = False,
) -> str:
    """Why ``ours`` is unacceptable, "" if it is fine: not eager's kind of result, or over twice eager's error.

    What is not finite must be so in eager too, or be what ``exact`` has there. Where that is too large for the type,
    and eager's is NaN or of the other sign, ours is no worse by being either.

    ``quantised``: where the results are integers or floats of 8 bits, they are real numbers that were rounded to the
    nearest step, so that a real number halfway between two may go either way. Each element may be one step from
    eager's and from ``exact``, and differ from ``exact`` in at most twice as many places as eager's do.

    The worst element and the root mean square are both judged. One result says little about errors: eager's may be
    small by luck. So those below ``floor`` units in the last place count as none; over several draws none are forgiven.
    """
    if quantised and ours.dtype == eager.dtype and ours.element_size() == 1 and ours.dtype != torch.bool:
        return _kind(ours, eager, strides) or _steps_apart(ours.detach(), eager.detach(), exact.detach())
    complaint = mismatch(ours, eager, exact, strides=strides)
    if complaint or not (ours.is_floating_point() or ours.is_complex()):
        return complaint
    ulp = torch.finfo(ours.dtype).eps
    mine, theirs = error(ours, exact), error(eager, exact)
    ratio = NOISE_RATIO if theirs.is_noise else RATIO
    if mine.largest > ratio * theirs.largest + floor * ulp:
        return f"largest error {mine.largest:.3g} of the largest element, eager's {theirs.largest:.3g}"
    if mine.rms > ratio * theirs.rms + floor / 4 * ulp:
        return f"rms error {mine.rms:.3g} of the largest element, eager's {theirs.rms:.3g}"
    return ""


def _kind(ours: Tensor, eager: Tensor, strides: bool) -> str:
    """What differs but the values."""
    for what in ("dtype", "shape", "device", "layout", "requires_grad"):
        mine, theirs = getattr(ours, what), getattr(eager, what)
        if mine != theirs:
            return f"{what} is {mine}, eager's is {theirs}"
    if strides and ours.numel() > 1 and _significant_strides(ours) != _significant_strides(eager):
        return f"strides are {ours.stride()}, eager's are {eager.stride()}"
    return ""


def _wide(tensor: Tensor) -> Tensor:
    """Floats of 8 bits as float32: torch computes with them in few operations."""
    return tensor.float() if tensor.is_floating_point() and tensor.element_size() == 1 else tensor


def _steps(tensor: Tensor) -> Tensor:
    """Elements of 8 bits as integers whose neighbours are neighbours of the dtype; NaN is beyond the largest."""
    if not tensor.is_floating_point():
        return tensor.to(torch.int16)
    bits = tensor.contiguous().view(torch.uint8).to(torch.int16)
    steps = torch.where(bits >= 128, 128 - bits, bits)
    return torch.where(torch.isnan(tensor.float()), 1000, steps)


def _steps_apart(ours: Tensor, eager: Tensor, exact: Tensor) -> str:
    mine, theirs, right = (_steps(t.to(ours.dtype)) for t in (ours, eager, exact))
    if mine.numel() == 0:
        return ""
    for what, other in (("eager's", theirs), ("the exact one", right)):
        farthest = int((mine - other).abs().max())
        if farthest > 1:
            return f"an element is {farthest} steps from {what}"
    found, allowed = int((mine != right).sum()), int((theirs != right).sum())
    # Which of so many real numbers lie close to halfway is chance where eager happens to have few of them.
    if found > RATIO * allowed + max(4, mine.numel() * 1e-5):
        return f"{found} of {mine.numel()} elements are a step from the exact ones, {allowed} of eager's"
    return ""


def _significant_strides(tensor: Tensor) -> tuple[int, ...]:
    # A stride along an axis of one element never reaches memory.
    return tuple(step for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1)


def _special_values(ours: Tensor, eager: Tensor, exact: Tensor | None) -> str:
    if ours.is_complex():
        ours, eager = torch.view_as_real(ours.resolve_conj()), torch.view_as_real(eager.resolve_conj())
        exact = None if exact is None else torch.view_as_real(exact.resolve_conj())
    ours, eager, exact = _wide(ours), _wide(eager), None if exact is None else _wide(exact)
    same = (ours == eager) | (torch.isnan(ours) & torch.isnan(eager))
    wrong = ~same & ~(torch.isfinite(ours) & torch.isfinite(eager))
    if exact is not None:
        alike = (torch.isfinite(ours) & torch.isfinite(exact)) | (torch.isnan(ours) & torch.isnan(exact))
        rounded = exact.to(ours.dtype)  # what is too large for the result's type is infinite in it
        wrong = wrong & ~alike & ~(ours == rounded)  # eager's gelu(inf) is NaN on processors with AVX-512
        beyond = torch.isinf(rounded) & torch.isfinite(exact) & (eager != rounded)
        wrong = wrong & ~(beyond & ~torch.isfinite(ours) & ~torch.isfinite(eager))
    count = int(wrong.sum())
    return f"{count} of {ours.numel()} elements {SPECIAL}" if count else ""


def judge_alone(ours: Tensor, eager: Tensor) -> str:
    """``judge`` where there is no exact result: half of the digits must agree with eager's."""
    if not (ours.is_floating_point() or ours.is_complex()):
        return mismatch(ours, eager)
    wide = eager.detach().to(torch.complex128 if eager.is_complex() else torch.float64)
    complaint = _kind(ours, eager, False)
    return complaint or judge(ours, eager, wide, floor=float(torch.finfo(ours.dtype).eps ** -0.5))
