"""Compiled graphs that write to inputs, as they run: each call is asked how its inputs share memory.

See ``aot.shared_memory``. A compiled graph writes to inputs once and late, eager as it goes. Where an error left inputs
as they were, the captured graph runs in the compiled one's place: it ends in the same error, in eager's words, after
the writes before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Sequence
from typing import Any

import torch
from torch import is_inference_mode_enabled

from lamina.aot import eager_reasons
from lamina.aot.engine.torch_private import never_captured
from lamina.base.reasons import Reason
from lamina.base.recipes import made_of
from lamina.base.recovery import brief
from lamina.base.retryable import CALLER, is_retryable, set_retryable
from lamina.base.torch_private import set_versions, storage_of, version_of

__all__ = [
    "Told",
    "lying_in",
    "raising_as_captured",
    "serving",
    "serving_apart",
    "serving_apart_in_history",
    "serving_same_places",
    "shares_storage",
    "spanned",
    "storage_or_none",
]

Told = Callable[[Reason], None]
"""Is told why a call runs as the captured graph; the method of ``Notes``, if the graph is to be stored."""


def shares_storage(inputs: Sequence[Any], written: Sequence[int]) -> bool:
    """Whether a tensor at a place of ``written`` lies in the same storage as another input."""
    storages = [storage_or_none(x) for x in inputs]
    known = [storage for storage in storages if storage is not None]
    if len({*known}) == len(known):
        return False
    counts = Counter(storages)
    return any(storages[i] is not None and counts[storages[i]] > 1 for i in written)


def storage_or_none(x: Any) -> int | None:
    """What tells the storage of a tensor from others; None for what lies in none."""
    if not isinstance(x, torch.Tensor) or x.layout is not torch.strided:
        return None
    return storage_of(x)


def serving(
    compiled: Callable[..., Any],
    eager: Callable[..., Any],
    fits: Callable[[Sequence[Any]], bool],
    tell: Told,
    why: Reason,
) -> Callable[..., Any]:
    """``compiled`` for calls whose inputs ``fits``, else ``eager``; ``tell`` is told ``why``, once."""
    told = False

    def run(*given: Any) -> Any:
        nonlocal told
        if fits(given):
            return compiled(*given)
        if not told:
            told = True
            tell(why)
        return eager(*given)

    never_captured(run)
    return run


def lying_in(inputs: Sequence[Any], tensors: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """For each tensor the first that lies in its storage, and its place there; alone in one, no place."""
    storages = [storage_or_none(inputs[i]) for i in tensors]
    found = []
    for i, storage in zip(tensors, storages, strict=True):
        alone = storage is None or storages.count(storage) == 1
        found.append((-1, 0) if alone else (storages.index(storage), inputs[i].storage_offset()))
    return tuple(found)


def serving_same_places(
    compiled: Callable[..., Any],
    eager: Callable[..., Any],
    tensors: Sequence[int],
    made_for: tuple[tuple[int, int], ...],
    tell: Told,
) -> Callable[..., Any]:
    """For graphs made for inputs in one storage: they serve inputs at the same places of common storages.

    ``made_for`` are those of the ``tensors`` among the inputs: see ``lying_in``.
    """
    why = eager_reasons.SHARED_OTHERWISE()
    run = serving(compiled, eager, lambda given: lying_in(given, tensors) == made_for, tell, why)
    parts = {"compiled": compiled, "eager": eager, "tensors": tensors, "made_for": made_for, "tell": tell}
    return made_of(run, "serving same places", **parts)


def serving_apart_in_history(
    compiled: Callable[..., Any], eager: Callable[..., Any], written: Sequence[int], tell: Told
) -> Callable[..., Any]:
    """``compiled`` for calls in which no input ``written`` to, that gets a history by it, shares its storage.

    What lies in one storage has one version, also where no element is shared: the write, which comes after the forward
    has saved the other input as it was, would look like one to that.
    """
    why = eager_reasons.ONE_STORAGE()
    return serving(compiled, eager, lambda given: not shares_storage(given, written), tell, why)


def serving_apart(
    compiled: Callable[..., Any],
    eager: Callable[..., Any],
    tensors: Sequence[int],
    count: int,
    lengths: Sequence[int] | None,
    written: Sequence[int],
    tell: Told,
    tracks: bool,
) -> Callable[..., Any]:
    """For graphs made for inputs each of which has its memory for itself.

    Of ``count`` inputs those at the places ``tensors`` are tensors; ``lengths`` are the bytes that the first two of
    them span, None where sizes differ from call to call.
    """
    told = False
    last: list[int] = []
    places = frozenset(written)
    address, whole = torch.Tensor.data_ptr, len(tensors) == count

    def run_all(*given: Any) -> Any:
        nonlocal last
        try:
            pointers = list(map(address, given)) if whole else [given[i].data_ptr() for i in tensors]
        except RuntimeError:  # tensors of a function transform, which lie in no memory
            return compiled(*given)
        if pointers != last:
            if _written_is_shared(given, tensors, places) or (tracks and shares_storage(given, written)):
                return refused(given)
            last = [] if lengths is None else pointers
        return compiled(*given)

    length, other = lengths or (0, 0)

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

    run = run_pair if not tracks and count == 2 and min(length, other) > 0 else run_all
    never_captured(run)
    parts = {"compiled": compiled, "eager": eager, "tensors": tensors, "count": count, "lengths": lengths}
    return made_of(run, "serving apart", **parts, written=written, tell=tell, tracks=tracks)


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
    return start, start + spanned(tensor)


def spanned(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to the end of its last."""
    if tensor.layout is not torch.strided or tensor.numel() == 0:
        return 0
    if tensor.is_contiguous():
        return tensor.nbytes
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return int(last + 1) * tensor.element_size()


def raising_as_captured(
    compiled: Callable[..., Any],
    captured: Callable[..., Any],
    written: Sequence[int],
    tell: Callable[[Reason], None],
    strict: bool,
) -> Callable[..., Any]:
    """``compiled``, and ``captured`` in its place where it raises before it has written to its inputs.

    So it is where eager refuses the write: of the inputs ``written`` to, one was made in inference mode, which is over.
    Where ``captured`` has a result nevertheless, that is returned and ``tell`` is told, or the error is raised if
    ``strict``. AOTAutograd raises the versions of inputs before it runs what writes to them: they are set back.
    """

    def run(*inputs: Any) -> Any:
        for place in written:
            if inputs[place].is_inference() and not is_inference_mode_enabled():
                return captured(*inputs)
        versions = [version_of(inputs[place]) for place in written]
        try:
            return compiled(*inputs)
        except Exception as error:
            if not is_retryable(error):
                raise
            set_versions([inputs[place] for place in written], versions)
            if CALLER.takes_errors:
                raise
            set_retryable(error, False)
            raised = error
        results = captured(*inputs)
        if strict:
            raise raised
        tell(eager_reasons.KERNELS_RAISE(error=brief(raised)))
        return results

    never_captured(run)
    parts = {"compiled": compiled, "captured": captured, "written": written, "tell": tell, "strict": strict}
    return made_of(run, "raising as captured", **parts)
