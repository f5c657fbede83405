"""What the user gave as inputs, as calls; and inputs to verify with, apart from those that are timed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lamina.base.devices import kind_of
from lamina.base.reference import apart, copied, mapped
from lamina.errors import BadArgument
from lamina.tuner.objects import opened, tensors_in

__all__ = ["Sample", "calls_of", "held_out", "rows_of", "samples_of", "structure"]

_MOST = 4
"""Calls taken of an iterable: what is kept apart for verification and what is timed."""
_KINDS = {kind: f"a tensor of the layout {kind}" for kind in (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)}


@dataclass(frozen=True, slots=True)
class Sample:
    """The arguments of one call of the model; ``made_up``: the user gave others."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    made_up: bool = False


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
    found = _given(item)
    for tensor in tensors_in((found.args, found.kwargs)):
        kind = "a nested tensor" if tensor.is_nested else _KINDS.get(tensor.layout, "")
        if not kind_of(tensor).stored:
            kind = "a tensor of the device meta"
        if kind:
            raise BadArgument(
                f"an input is {kind}, for which nothing can be compared with eager", remedy="give dense tensors"
            )
    return found


def _given(item: Any) -> Sample:
    if isinstance(item, Sample):
        return item
    if isinstance(item, Mapping):
        return Sample((), dict(item))
    if isinstance(item, (tuple, list)):
        return Sample(tuple(item), {})
    return Sample((item,), {})


def held_out(samples: tuple[Sample, ...]) -> tuple[Sample, ...]:
    """Inputs that are verified and never timed: the later ones, and the first with its elements in another order."""
    return (*samples[1:], _reordered(samples[0]))


def _reordered(sample: Sample) -> Sample:
    """The same arguments with the elements of each floating tensor in another order.

    Without a floating one, those of integers and truth values, unless they are sorted: positions and offsets are.
    """
    generator = torch.Generator().manual_seed(0)
    args, kwargs = copied(mapped((sample.args, dict(sample.kwargs)), apart))
    shared = {id(t) for t in tensors_in((sample.args, sample.kwargs))}
    held = [t for t in tensors_in((args, kwargs)) if t.layout is torch.strided and id(t) not in shared]
    floating = [t for t in held if t.is_floating_point() or t.is_complex()]
    with torch.no_grad():
        for tensor in floating or [t for t in held if not _is_sorted(t)]:
            order = torch.randperm(tensor.numel(), generator=generator).to(tensor.device)
            tensor.copy_(tensor.clone().flatten()[order].view(tensor.shape))
    return Sample(args, kwargs, made_up=True)


def _is_sorted(tensor: Tensor) -> bool:
    steps = tensor.flatten().to(torch.int64).diff()
    return bool((steps >= 0).all()) or bool((steps <= 0).all())


def rows_of(sample: Sample) -> int:
    """The size of the leading axis of the first tensor, which throughput counts; 1 without one."""
    first = next(iter(tensors_in((sample.args, sample.kwargs))), None)
    return int(first.shape[0]) if first is not None and first.dim() else 1


def structure(sample: Sample) -> list[str]:
    """Shapes, dtypes, strides and devices of the tensors of a call, and the other values, as texts."""

    def told(leaf: Any) -> str:
        if isinstance(leaf, Tensor):
            return f"{leaf.dtype} {tuple(leaf.shape)} {tuple(leaf.stride())} {leaf.device} {leaf.requires_grad}"
        return repr(leaf) if isinstance(leaf, (bool, int, float, str, type(None))) else type(leaf).__qualname__

    return [repr(mapped(opened(value), told)) for value in (list(sample.args), dict(sample.kwargs))]
