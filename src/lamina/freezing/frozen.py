"""What is computed from parameters and buffers alone, kept from one call to the next for as long as none has changed.

A tensor counts as changed when it has another address, as after ``param.data = other``, or when torch has counted up
its version, as after most writes. Two that are not counted are seen too: those of torch's fused optimizers, and those
of batch norms to their running statistics. Results are kept by the addresses of the tensors that they were computed
from, so that modules that share a compiled graph each have their own, and they go when the memory of one of these
tensors does: an address that comes again is never taken for the tensor that had it before.
"""

from __future__ import annotations

import functools
import gc
import operator
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import register_optimizer_step_post_hook

from lamina.base.devices import kind_of
from lamina.base.torch_private import boxed
from lamina.base.user_warnings import warn_user
from lamina.errors import BadArgument
from lamina.runtime.torch_private import is_capturing, version_of, without_autocast

__all__ = ["Frozen", "thaw"]

Boxed = Callable[[list[Any]], Any]

_ADDRESS = torch.Tensor.data_ptr
_MOST_KEPT = 256
"""Sets of parameters whose results one region keeps at once, in the modules that share it."""

_ROW_TO_WARN = 16
"""Calls in a row that had to compute anew after which the user is told."""

_alive: weakref.WeakSet[Frozen] = weakref.WeakSet()
"""Frozen values in use, which a write to a parameter drops."""


def thaw(model: torch.nn.Module | None = None) -> int:
    """Drop what ``options={"freeze": True}`` keeps: the next call computes it anew from the parameters as they are.

    For writes that torch does not count: through ``tensor.data``, through memory shared with NumPy or another
    framework, by a CUDA graph that one replays oneself. With ``model`` only results that were computed from a
    parameter or buffer of it, which may be the compiled one. Returns the number of results dropped. Raises
    ``BadArgument`` for what is no module.
    """
    given: object = model
    if given is not None and not isinstance(given, torch.nn.Module):
        raise BadArgument(
            f"thaw was given a {type(given).__name__}",
            remedy="pass the module whose parameters were written to, or nothing: thaw() drops everything kept",
        )
    tensors = () if model is None else (*model.parameters(), *model.buffers())
    # Parameters that have no memory yet (lazy modules) have nothing kept.
    addresses = None if model is None else {t.data_ptr() for t in tensors if not is_lazy(t)}
    return sum(frozen.drop(addresses) for frozen in list(_alive))


def _after_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """Forget what was computed from the parameters of an optimizer that made a step: fused ones count no version."""
    if not _alive:
        return
    try:
        addresses = {p.data_ptr() for group in optimizer.param_groups for p in group["params"]}
    except RuntimeError:  # a tensor without memory of its own
        addresses = None
    for frozen in list(_alive):
        frozen.drop(addresses)


@functools.cache
def _watch_optimizers() -> None:
    # Within a compiled step it runs between graphs: what it asks for are addresses.
    hook: Callable[..., None] = torch.compiler.disable(_after_step)  # type: ignore[no-untyped-call]
    register_optimizer_step_post_hook(hook)


class _Kept:
    """Results, the versions of the tensors they were computed from, and weak references to those tensors' memory.

    ``counters`` are tensors beside the sources whose versions count too.
    """

    __slots__ = ("counters", "memory", "results", "versions")

    def __init__(self, versions: tuple[int, ...], counters: tuple[Any, ...], results: tuple[Any, ...]) -> None:
        self.versions, self.counters, self.results = versions, counters, results
        self.memory: list[Any] = []


class Frozen:
    """A region as a folding graph, which computes from parameters and buffers alone, and a main graph.

    ``fold`` takes the inputs at ``sources`` and gives results, ``main`` the inputs at ``others`` and then those.
    ``note`` is told the seconds of each run of ``fold``.
    """

    def __init__(
        self,
        name: str,
        fold: Boxed,
        main: Boxed,
        sources: Sequence[int],
        others: Sequence[int],
        note: Callable[[float], None],
    ) -> None:
        self.name, self._fold, self._main, self._note = name, fold, main, note
        self._sources, self._others = _picker(sources), _picker(others)
        self._entries: dict[tuple[int, ...], _Kept] = {}
        self._lock = threading.Lock()
        self._row = 0
        boxed(self)
        _alive.add(self)
        _watch_optimizers()

    def __call__(self, args: list[Any]) -> Any:
        sources = self._sources(args)
        kept = self._entries.get(tuple(map(_ADDRESS, sources)))
        if kept is None or not _current(kept, sources):
            results = self._anew(sources)
        else:
            self._row = 0
            results = kept.results
        inputs = [*self._others(args), *results]
        del sources, kept, results
        args.clear()
        return self._main(inputs)

    def drop(self, addresses: set[int] | None = None) -> int:
        """Forget what is kept, of all sources or of those at some addresses; how many results that were."""
        found = [key for key in list(self._entries) if addresses is None or not addresses.isdisjoint(key)]
        dropped = [self._entries.pop(key, None) for key in found]
        return sum(len(kept.results) for kept in dropped if kept is not None)

    def _anew(self, sources: tuple[Any, ...]) -> tuple[Any, ...]:
        with self._lock:
            key = tuple(map(_ADDRESS, sources))
            kept = self._entries.get(key)
            if kept is not None and _current(kept, sources):  # by another thread meanwhile
                return kept.results
            if not _can_be_kept(sources):
                return self._computed(sources)
            self._row += 1
            if self._row == _ROW_TO_WARN:
                warn_user(
                    f"lamina: parameters of {self.name} change at every call, so freezing them only costs time: "
                    "leave out the option freeze, or compile what changes them by itself"
                )
            counters = _counters(sources)
            versions = tuple(map(version_of, (*sources, *counters)))  # before: a write meanwhile must be seen
            kept = _Kept(versions, counters, self._computed(sources))
            entries = self._entries
            kept.memory = [weakref.ref(t.untyped_storage(), lambda _: entries.pop(key, None)) for t in sources]
            while len(entries) >= _MOST_KEPT:
                entries.pop(next(iter(entries)), None)
            entries[key] = kept
            return kept.results

    def _computed(self, sources: tuple[Any, ...]) -> tuple[Any, ...]:
        start = time.perf_counter()
        with torch.inference_mode(False), torch.no_grad(), without_autocast():
            results = tuple(self._fold(list(sources)))
        devices = {t.device for t in results if kind_of(t).queued}
        for device in devices:  # other streams will read them without waiting for this one
            if not is_capturing():
                torch.cuda.current_stream(device).synchronize()
        self._note(time.perf_counter() - start)
        return results


def _current(kept: _Kept, sources: tuple[Any, ...]) -> bool:
    """Whether no source has been written to since."""
    try:
        return tuple(map(version_of, (*sources, *kept.counters) if kept.counters else sources)) == kept.versions
    except RuntimeError:  # made in inference mode since
        return False


def _can_be_kept(sources: Iterable[Any]) -> bool:
    """Whether writes to all of these will be seen, and results outlive this call."""
    if any(t.is_inference() for t in sources):
        message = (
            "lamina: parameters made in inference mode have no version, so freezing them has no effect: "
            "make them outside of torch.inference_mode()"
        )
        warn_user(message)
        return False
    return not (any(kind_of(t).queued for t in sources) and is_capturing())


def _counters(sources: tuple[Any, ...]) -> tuple[Any, ...]:
    """For running statistics among the sources the counters of batches of the batch norms that they belong to.

    Torch's batch norm writes to its statistics without counting up their versions, but its module counts batches.
    """
    statistics = {id(t): t for t in sources if t.dim() == 1 and not isinstance(t, torch.nn.Parameter)}
    if not statistics:
        return ()
    found = {}
    for holder in gc.get_referrers(*statistics.values()):
        if type(holder) is dict and isinstance(holder.get("num_batches_tracked"), torch.Tensor):
            counter = holder["num_batches_tracked"]
            if any(id(value) in statistics for value in list(holder.values())) and not counter.is_inference():
                found[id(counter)] = counter
    return tuple(found.values())


def _picker(places: Sequence[int]) -> Callable[[list[Any]], tuple[Any, ...]]:
    """A function that takes the items at ``places`` out of a list."""
    if len(places) > 1:
        picker: Callable[[list[Any]], tuple[Any, ...]] = operator.itemgetter(*places)
        return picker
    return lambda args: tuple(args[place] for place in places)
