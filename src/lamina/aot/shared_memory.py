"""Memory that inputs share: compiled code that writes to an input serves only calls in which they share it alike.

A functional graph knows nothing of memory. One that writes to an input at its end is right only if no other input
looks at what is written, and one that was made for inputs that do, only for inputs that do so in the same way. Dynamo
asks neither, so each call of such a graph is asked here, and any other call runs the captured graph as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.graph import increment_version

from lamina.aot import eager_reasons
from lamina.aot.engine.serving import (
    Told,
    lying_in,
    serving,
    serving_apart,
    serving_same_places,
    shares_storage,
    spanned,
    storage_or_none,
)
from lamina.aot.torch_private import never_captured, overlapping
from lamina.base.torch_private import base_of, version_of

__all__ = [
    "counting_writes",
    "overlapping_inputs",
    "serving_alike",
    "serving_same_bases",
]


def overlapping_inputs(inputs: Sequence[Any]) -> list[tuple[list[int], list[int]]]:
    """For each storage of several inputs, the places of those that overlap another in it, and of those that do not."""
    places: dict[Any, list[int]] = {}
    for i, x in enumerate(inputs):
        places.setdefault(storage_or_none(x), []).append(i)
    found = []
    for storage, here in places.items():
        if storage is not None and len(here) > 1:
            met = overlapping([inputs[i] for i in here])
            found.append(([i for k, i in enumerate(here) if k in met], [i for k, i in enumerate(here) if k not in met]))
    return found


def serving_alike(
    compiled: Callable[..., Any],
    eager: Callable[..., Any],
    inputs: Sequence[Any],
    written: Sequence[int],
    tell: Told,
    tracks: bool = False,
) -> Callable[..., Any]:
    """``compiled`` for calls whose inputs share memory as the ``inputs`` it was compiled for do, else ``eager``.

    ``written`` are the places of inputs that the graph writes to. ``tell`` is told why a call ran as ``eager``, once.
    Where it ``tracks`` gradients, a storage counts as a whole: it has one version, which says of all that is saved of
    it whether it is as it was.
    """
    tensors = [i for i, x in enumerate(inputs) if isinstance(x, torch.Tensor)]
    if not written or len(tensors) < 2:
        return compiled
    if shares_storage(inputs, written):
        return serving_same_places(compiled, eager, tensors, lying_in(inputs, tensors), tell)
    sized = all(not isinstance(x, (int, torch.SymInt)) for x in inputs)  # then no size changes between calls
    lengths = [spanned(inputs[i]) for i in tensors[:2]] if sized else None
    return serving_apart(compiled, eager, tensors, len(inputs), lengths, written, tell, tracks)


def serving_same_bases(
    compiled: Callable[..., Any], eager: Callable[..., Any], inputs: Sequence[Any], tell: Told
) -> Callable[..., Any]:
    """``compiled`` for calls whose inputs are views of tensors of the sizes that those of ``inputs`` are of.

    AOTAutograd computes on what inputs are views of. TorchDynamo has sizes of its own for that, which may be numbers
    where the input's are symbols, and guards on none of them.
    """
    bases = {i: base_of(x) for i, x in enumerate(inputs) if isinstance(x, torch.Tensor)}
    sizes = {i: _fixed_sizes(base) for i, base in bases.items() if base is not None}
    if not any(any(size is not None for size in fixed) for fixed in sizes.values()):
        return compiled

    def fits(given: Sequence[Any]) -> bool:
        return all(_has_sizes(base_of(given[i]), fixed) for i, fixed in sizes.items())

    return serving(compiled, eager, fits, tell, eager_reasons.OTHER_BASE())


def _fixed_sizes(base: torch.Tensor) -> list[int | None]:
    return [n if type(n) is int else None for n in base.shape]


def _has_sizes(base: torch.Tensor | None, fixed: Sequence[int | None]) -> bool:
    if base is None or base.dim() != len(fixed):
        return False
    return all(size is None or n == size for n, size in zip(base.shape, fixed, strict=True))


def counting_writes(compiled: Callable[..., Any], written: Sequence[int]) -> Callable[..., Any]:
    """``compiled``, of whose inputs those ``written`` to have their versions raised, where that is not done within.

    AOTAutograd writes to inputs that share memory through a tensor of all of it, which has a version of its own.
    """

    def run(*given: Any) -> Any:
        inputs = [given[i] for i in written if not given[i].is_inference()]
        before = [version_of(x) for x in inputs]
        results = compiled(*given)
        increment_version([x for x, version in zip(inputs, before, strict=True) if version_of(x) == version])
        return results

    never_captured(run)
    return run
