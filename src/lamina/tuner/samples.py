"""What the user gave as inputs, as calls; and inputs to verify with, apart from those that are timed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lamina.base.accuracy import tensors
from lamina.base.reference import copied, mapped
from lamina.errors import BadArgument

__all__ = ["Sample", "calls_of", "held_out", "rows_of", "samples_of", "structure"]

_MOST = 4
"""Calls taken of an iterable: what is kept apart for verification and what is timed."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The arguments of one call of the model."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


def samples_of(inputs: Any) -> tuple[Sample, ...]:
    """The calls that ``inputs`` stand for.

    A tensor is the one argument of a call, a tuple its arguments, a mapping its keyword arguments; a list,
    ``DataLoader`` or other iterable holds such for several calls, of which the first few are taken. Raises
    ``BadArgument``.
    """
    return tuple(itertools.islice(calls_of(inputs), _MOST))


def calls_of(inputs: Any) -> Iterator[Sample]:
    """All calls that ``inputs`` stand for, as ``samples_of`` takes them. Raises ``BadArgument`` where there is none."""
    found: Iterator[Any] = iter(())
    if isinstance(inputs, (Sample, Tensor, tuple, Mapping)):
        found = iter((inputs,))
    elif isinstance(inputs, Iterable) and not isinstance(inputs, (str, bytes)):
        found = iter(inputs)
    for first in found:
        return map(_sample, itertools.chain((first,), found))
    raise BadArgument(
        f"there is no input in {type(inputs).__name__}",
        remedy="give a tensor, a tuple of arguments, a mapping of keyword arguments, or an iterable of those",
    )


def _sample(item: Any) -> Sample:
    if isinstance(item, Sample):
        return item
    if isinstance(item, Mapping):
        return Sample((), dict(item))
    if isinstance(item, (tuple, list)):
        return Sample(tuple(item), {})
    return Sample((item,), {})


def held_out(samples: tuple[Sample, ...]) -> tuple[Sample, ...]:
    """Inputs that are verified and never timed: the later ones, and the first with its floating elements reordered."""
    return (*samples[1:], _reordered(samples[0]))


def _reordered(sample: Sample) -> Sample:
    """The same arguments with the elements of each floating tensor in another order; integers may be positions."""
    generator = torch.Generator().manual_seed(0)

    def other(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not leaf.is_floating_point() or leaf.layout is not torch.strided:
            return leaf
        order = torch.randperm(leaf.numel(), generator=generator).to(leaf.device)
        with torch.no_grad():
            leaf.copy_(leaf.clone().flatten()[order].view(leaf.shape))
        return leaf

    args, kwargs = copied((sample.args, dict(sample.kwargs)))
    with torch.no_grad():
        return Sample(mapped(args, other), mapped(kwargs, other))


def rows_of(sample: Sample) -> int:
    """The size of the leading axis of the first tensor, which throughput counts; 1 without one."""
    first = next(iter(tensors([*sample.args, *sample.kwargs.values()])), None)
    return int(first.shape[0]) if first is not None and first.dim() else 1


def structure(sample: Sample) -> list[str]:
    """Shapes, dtypes, strides and devices of the tensors of a call, and the other values, as texts."""

    def told(leaf: Any) -> str:
        if isinstance(leaf, Tensor):
            return f"{leaf.dtype} {tuple(leaf.shape)} {tuple(leaf.stride())} {leaf.device} {leaf.requires_grad}"
        return repr(leaf) if isinstance(leaf, (bool, int, float, str, type(None))) else type(leaf).__qualname__

    return [repr(mapped(list(sample.args), told)), repr(mapped(dict(sample.kwargs), told))]
