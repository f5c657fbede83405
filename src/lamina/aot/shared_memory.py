"""Memory that inputs share: compiled code that writes to an input serves only calls in which they share it alike.

A functional graph knows nothing of memory. One that writes to an input at its end is right only if no other input
looks at what is written, and one that was made for inputs that do, only for inputs that do so in the same way. Dynamo
asks neither, so each call of such a graph is asked here, and any other call runs the captured graph as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from functools import partial
from typing import Any

import torch
from torch.autograd.graph import increment_version

from lamina.aot import eager_reasons
from lamina.aot.torch_private import never_captured, overlapping
from lamina.base.reasons import Reason
from lamina.base.torch_private import storage_of, version_of

__all__ = [
    "counting_writes",
    "overlapping_inputs",
    "serving_alike",
    "serving_apart_in_history",
    "serving_same_bases",
    "shares_storage",
]

Told = Callable[[Reason], None]


def shares_storage(inputs: Sequence[Any], written: Sequence[int]) -> bool:
    """Whether a tensor at a place of ``written`` lies in the same storage as another input."""
    storages = [_storage(x) for x in inputs]
    known = [storage for storage in storages if storage is not None]
    if len({*known}) == len(known):
        return False
    return any(storages[i] is not None and storages.count(storages[i]) > 1 for i in written)


def _storage(x: Any) -> int | None:
    if not isinstance(x, torch.Tensor) or x.layout is not torch.strided:
        return None
    return storage_of(x)


def overlapping_inputs(inputs: Sequence[Any]) -> list[tuple[list[int], list[int]]]:
    """For each storage of several inputs, the places of those that overlap another in it, and of those that do not."""
    places: dict[Any, list[int]] = {}
    for i, x in enumerate(inputs):
        places.setdefault(_storage(x), []).append(i)
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
        return _serving_same_places(compiled, eager, inputs, tensors, tell)
    return _serving_apart(compiled, eager, inputs, tensors, written, tell, tracks)


def serving_apart_in_history(
    compiled: Callable[..., Any], eager: Callable[..., Any], written: Sequence[int], tell: Told
) -> Callable[..., Any]:
    """``compiled`` for calls in which no input ``written`` to, that gets a history by it, shares its storage.

    What lies in one storage has one version, also where no element is shared: the write, which comes after the forward
    has saved the other input as it was, would look like one to that.
    """
    refused = partial(tell, eager_reasons.ONE_STORAGE())
    return _serving(compiled, eager, lambda given: not shares_storage(given, written), refused)


def serving_same_bases(
    compiled: Callable[..., Any], eager: Callable[..., Any], inputs: Sequence[Any], tell: Told
) -> Callable[..., Any]:
    """``compiled`` for calls whose inputs are views of tensors of the sizes that those of ``inputs`` are of.

    AOTAutograd computes on what inputs are views of. TorchDynamo has sizes of its own for that, which may be numbers
    where the input's are symbols, and guards on none of them.
    """
    sizes = {i: _fixed_sizes(x._base) for i, x in enumerate(inputs) if _is_view(x)}
    if not any(any(size is not None for size in fixed) for fixed in sizes.values()):
        return compiled

    def fits(given: Sequence[Any]) -> bool:
        return all(_has_sizes(given[i]._base, fixed) for i, fixed in sizes.items())

    return _serving(compiled, eager, fits, partial(tell, eager_reasons.OTHER_BASE()))


def _is_view(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x._base is not None


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


def _serving_same_places(
    compiled: Callable[..., Any], eager: Callable[..., Any], inputs: Sequence[Any], tensors: Sequence[int], tell: Told
) -> Callable[..., Any]:
    """For graphs made for inputs in one storage: they serve inputs at the same places of common storages."""
    made_for = _places(inputs, tensors)
    refused = partial(tell, eager_reasons.SHARED_OTHERWISE())
    return _serving(compiled, eager, lambda given: _places(given, tensors) == made_for, refused)


def _serving(
    compiled: Callable[..., Any],
    eager: Callable[..., Any],
    fits: Callable[[Sequence[Any]], bool],
    refused: Callable[[], None],
) -> Callable[..., Any]:
    """``compiled`` for calls whose inputs ``fits``, else ``eager``; ``refused`` is called once."""
    told = False

    def run(*given: Any) -> Any:
        nonlocal told
        if fits(given):
            return compiled(*given)
        if not told:
            told = True
            refused()
        return eager(*given)

    never_captured(run)
    return run


def _places(inputs: Sequence[Any], tensors: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """For each tensor the first that lies in its storage, and its place there; alone in one, no place."""
    storages = [_storage(inputs[i]) for i in tensors]
    found = []
    for i, storage in zip(tensors, storages, strict=True):
        alone = storage is None or storages.count(storage) == 1
        found.append((-1, 0) if alone else (storages.index(storage), inputs[i].storage_offset()))
    return tuple(found)


def _serving_apart(
    compiled: Callable[..., Any],
    eager: Callable[..., Any],
    inputs: Sequence[Any],
    tensors: Sequence[int],
    written: Sequence[int],
    tell: Told,
    tracks: bool,
) -> Callable[..., Any]:
    """For graphs made for inputs each of which has its memory for itself."""
    told = False
    last: list[int] = []
    places = frozenset(written)
    address, whole = torch.Tensor.data_ptr, len(tensors) == len(inputs)
    sized = all(not isinstance(x, (int, torch.SymInt)) for x in inputs)  # then no size changes between calls

    def run_all(*given: Any) -> Any:
        nonlocal last
        try:
            pointers = list(map(address, given)) if whole else [given[i].data_ptr() for i in tensors]
        except RuntimeError:  # tensors of a function transform, which lie in no memory
            return compiled(*given)
        if pointers != last:
            if _written_is_shared(given, tensors, places) or (tracks and shares_storage(given, written)):
                return refused(given)
            last = pointers if sized else []
        return compiled(*given)

    length, other = (_length(inputs[i]) if sized else 0 for i in tensors[:2])

    def run_pair(a: Any, b: Any) -> Any:
        try:
            gap = b.data_ptr() - a.data_ptr()
        except RuntimeError:
            return compiled(a, b)
        return refused((a, b)) if -other < gap < length else compiled(a, b)

    def refused(given: Sequence[Any]) -> Any:
        nonlocal told
        if not told:
            told = True
            tell(eager_reasons.SHARED_NOW())
        return eager(*given)

    run = run_pair if sized and not tracks and len(inputs) == 2 and min(length, other) > 0 else run_all
    never_captured(run)
    return run


def _written_is_shared(given: Sequence[Any], tensors: Sequence[int], written: Container[int]) -> bool:
    """Whether the bytes of a written tensor and those of another one overlap, ends of strided tensors included."""
    spans = sorted((*_span(given[i]), i in written) for i in tensors)
    end, written_end = -1, -1  # the furthest ends of those before, and of the written ones among them
    for start, stop, is_written in spans:
        if start == stop:
            continue
        if start < written_end or (is_written and start < end):
            return True
        end = max(end, stop)
        written_end = max(written_end, stop) if is_written else written_end
    return False


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The first byte of a tensor's elements and the one after the last, the same where it has none."""
    start = tensor.data_ptr()
    return start, start + _length(tensor)


def _length(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to the end of its last."""
    if tensor.layout is not torch.strided or tensor.numel() == 0:
        return 0
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return int(last + 1) * tensor.element_size()
