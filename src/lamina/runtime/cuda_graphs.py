"""CUDA graphs of a region: recorded where launching is what takes the time, and only for addresses that come again.

A recording fixes the address of every input and output. So it is kept by the addresses of the inputs: nothing large is
ever copied, and inputs that move are copied only if they are a few kilobytes. Outputs are lent out: a recording
is used again when none of its last outputs is alive, and until then the region runs another recording, or without one.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lamina.runtime.cuda_host import current_stream, forget_zeros, lend_zeros, reinterpret
from lamina.runtime.torch_private import CAN_COUNT_USES, is_capturing, storage_uses

__all__ = ["GraphPolicy", "GraphRunner", "Outcome"]

Boxed = Callable[[list[Any]], Any]

_MOST_RECORDINGS = 8
_MOST_OF_ONE = 2
"""Recordings of the same addresses: one may run while the other's outputs are in use."""
_COPIED_BYTES = 256 << 10
_WARM_CALLS = 2
_MEASURED_CALLS = 5
_PATIENCE = 24
"""Calls in a row with addresses never seen before after which the region goes on without graphs."""
_BEHIND = 1.5
"""How many times the host's time the GPU may take and still count as waiting for launches."""
_GAIN = 0.9
"""Share of the direct call's host time that a replay may take to be worth its memory."""


@dataclass(frozen=True, slots=True)
class GraphPolicy:
    """When to record. ``insist``: whatever is measured. ``written`` are positions of inputs that the region overwrites;
    such an input is never copied. ``poll`` raises what went wrong in an earlier call, before a replay.
    """

    insist: bool
    written: frozenset[int] = frozenset()
    poll: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was decided, and the host's and the GPU's microseconds it rests on (0: not measured)."""

    taken: bool
    reason: str
    direct_us: float = 0.0
    gpu_us: float = 0.0
    replay_us: float = 0.0


class _Recording:
    """One graph with the memory its outputs live in."""

    def __init__(self, graph: Any, outputs: Sequence[Any], copies: Sequence[torch.Tensor], zeros: Any) -> None:
        self.graph, self.copies, self.zeros = graph, list(copies), zeros
        self.storages = [t.untyped_storage() for t in outputs if isinstance(t, torch.Tensor)]
        self.makers = [(t, t.shape, t.stride()) if isinstance(t, torch.Tensor) else (t, (), None) for t in outputs]
        self.counts = self._counts()

    def _counts(self) -> list[tuple[int, int]]:
        return [(storage_uses(s._cdata), sys.getrefcount(s)) for s in self.storages]

    def is_free(self) -> bool:
        """Whether nobody holds an output of the last replay."""
        return self._counts() == self.counts

    def replay(self, moving: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """The outputs as new tensors on the recording's memory."""
        for copy, given in zip(self.copies, moving, strict=True):
            copy.copy_(given.detach())
        self.graph.replay()
        return tuple(
            value if strides is None else reinterpret(value, shape, strides, 0) for value, shape, strides in self.makers
        )


class GraphRunner:
    """A region that replays recordings where that pays. ``call`` runs it directly; ``report`` gets each decision.

    Safe to call from several threads. Streams have recordings of their own.
    """

    def __init__(self, call: Boxed, device: int, policy: GraphPolicy, report: Callable[[Outcome], None]) -> None:
        self.call, self.device, self.policy, self.report = call, device, policy, report
        self.off = ""
        self.recordings: dict[tuple[int, ...], list[_Recording]] = {}
        self.count = 0
        self._calls = self._strangers = 0
        self._seen: Counter[tuple[int, ...]] = Counter()
        self._moving: tuple[int, ...] = ()
        self._addresses: list[tuple[int, ...]] = []
        self._samples: list[tuple[float, Any, Any]] = []
        self._direct_us = self._gpu_us = 0.0
        self._replays: list[float] = []
        self._wanted = policy.insist
        self._pools: dict[int, Any] = {}
        self._guard = threading.RLock()
        self._told: set[str] = set()
        if not CAN_COUNT_USES:
            self._stop("this torch does not say who holds an output")

    def __call__(self, args: list[Any]) -> Any:
        if self.off or is_capturing():
            return self.call(args)
        with self._guard:
            if self.policy.poll is not None:
                self.policy.poll()
            key = self._key(args)
            for recording in self.recordings.get(key, ()):
                if recording.is_free():
                    return self._replay(recording, args)
            return self._direct(key, args)

    def _key(self, args: list[Any]) -> tuple[int, ...]:
        """Stream, addresses and sizes; inputs that are copied do not count."""
        words = [a.data_ptr() if isinstance(a, torch.Tensor) else a for a in args]
        for position in self._moving:
            words[position] = 0
        return (current_stream(self.device), *words)

    def _replay(self, recording: _Recording, args: list[Any]) -> Any:
        if len(self._replays) >= _MEASURED_CALLS or self.policy.insist:
            results = recording.replay([args[k] for k in self._moving])
            args.clear()
            return results
        start = time.perf_counter()
        results = recording.replay([args[k] for k in self._moving])
        args.clear()
        self._replays.append((time.perf_counter() - start) * 1e6)
        if len(self._replays) == _MEASURED_CALLS:
            self._judge_replays()
        return results

    def _judge_replays(self) -> None:
        replay = statistics.median(self._replays)
        taken = replay < _GAIN * self._direct_us
        reason = "launches dominate" if taken else "a replay takes the host as long as the launches"
        self.report(Outcome(taken, reason, self._direct_us, self._gpu_us, replay))
        if not taken:
            self._stop(reason, told=True)

    def _direct(self, key: tuple[int, ...], args: list[Any]) -> Any:
        self._calls += 1
        if self._calls <= _WARM_CALLS:
            return self.call(args)
        if not self._wanted:
            return self._measured(args)
        known = self._seen[key] > 0
        self._seen[key] += 1
        self._strangers = 0 if known else self._strangers + 1
        if not known:
            self._note_strangers(args)
        elif len(self.recordings.get(key, ())) >= _MOST_OF_ONE:
            self._skip(f"the outputs of {_MOST_OF_ONE} recordings of the same addresses are in use")
        elif self.count >= _MOST_RECORDINGS:
            self._skip(f"there are {_MOST_RECORDINGS} recordings, and none is of the addresses of this call")
        else:
            return self._record(key, args)
        return self.call(args)

    # ---- does it pay ----------------------------------------------------------------------------------------------

    def _measured(self, args: list[Any]) -> Any:
        """Run directly, taking the time on both sides, and decide once there are enough samples."""
        if len(self._samples) >= _MEASURED_CALLS and self._samples[-1][2].query():
            self._decide()
            return self.call(args)
        if len(self._samples) >= _MEASURED_CALLS:
            return self.call(args)
        begin, end = _timer(), _timer()
        begin.record()
        start = time.perf_counter()
        results = self.call(args)
        seconds = time.perf_counter() - start
        end.record()
        self._samples.append((seconds, begin, end))
        return results

    def _decide(self) -> None:
        self._direct_us = statistics.median(seconds * 1e6 for seconds, _, _ in self._samples)
        self._gpu_us = statistics.median(begin.elapsed_time(end) * 1e3 for _, begin, end in self._samples)
        self._samples.clear()
        # A GPU that is kept busy falls behind the host; one that waits for launches is done soon after the host.
        if self._gpu_us > _BEHIND * self._direct_us:
            self._stop("the GPU is busy for longer than launching takes")
        else:
            self._wanted = True

    def _skip(self, reason: str) -> None:
        """Calls like this one run directly, while recordings go on serving others; told once of each reason."""
        if reason not in self._told:
            self._told.add(reason)
            self.report(Outcome(False, reason, self._direct_us, self._gpu_us))

    def _stop(self, reason: str, told: bool = False) -> None:
        self.off = reason
        self.recordings.clear()
        if not told:
            self.report(Outcome(False, reason, self._direct_us, self._gpu_us))

    # ---- addresses ------------------------------------------------------------------------------------------------

    def _note_strangers(self, args: list[Any]) -> None:
        """Find the inputs that move; go on without graphs if they are large, or addresses never come again."""
        words = tuple(a.data_ptr() if isinstance(a, torch.Tensor) else 0 for a in args)
        self._addresses = [*self._addresses[-3:], words]
        if len(self._seen) > 4 * _PATIENCE:
            self._seen.clear()
        if self._strangers > _PATIENCE and self.recordings:
            self._skip("the addresses of its inputs no longer come again")
        elif self._strangers > _PATIENCE:
            self._stop("the addresses of its inputs do not come again")
        if self._moving or len(self._addresses) < 4:
            return
        moving = tuple(k for k, found in enumerate(zip(*self._addresses, strict=True)) if len(set(found)) > 1)
        nbytes = sum(args[k].numel() * args[k].element_size() for k in moving)
        dense = all(args[k].is_contiguous() for k in moving)
        if moving and dense and nbytes <= _COPIED_BYTES and not set(moving) & self.policy.written:
            self._moving = moving
            self.recordings.clear()
            self._seen.clear()
            self.count = 0

    # ---- recording ------------------------------------------------------------------------------------------------

    def _record(self, key: tuple[int, ...], args: list[Any]) -> Any:
        """Record this call and replay it; run directly, and say why, where it cannot be recorded."""
        copies = [torch.empty_like(args[k], requires_grad=False) for k in self._moving]
        given = list(args)
        for position, copy in zip(self._moving, copies, strict=True):
            given[position] = copy
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        zeros = lend_zeros(self.device, stream.cuda_stream)
        pool = self._pools.setdefault(key[0], torch.cuda.graph_pool_handle())
        graph = torch.cuda.CUDAGraph()
        try:
            with (
                torch.cuda.device(self.device),
                torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"),
            ):
                outputs = self.call(list(given))
        except Exception as error:
            self._stop(f"it cannot be recorded: {type(error).__name__}: {error}")
            return self.call(args)
        finally:
            forget_zeros(self.device, stream.cuda_stream)
        refusal = _refusal(outputs, given)
        if refusal:
            self._stop(refusal)
            return self.call(args)
        recording = _Recording(graph, outputs, copies, zeros)
        self.recordings.setdefault(key, []).append(recording)
        self.count += 1
        if self.policy.insist and self.count == 1:
            self.report(Outcome(True, "asked for"))
        return self._replay(recording, args)


def _timer() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _refusal(outputs: Sequence[Any], inputs: Sequence[Any]) -> str:
    """Why outputs cannot be lent out, or an empty string."""
    given = {t.untyped_storage().data_ptr() for t in inputs if isinstance(t, torch.Tensor)}
    for output in outputs:
        if not isinstance(output, torch.Tensor):
            continue
        if not output.is_cuda:
            return "an output is on the CPU"
        if output.numel() and output.untyped_storage().data_ptr() in given:
            return "an output shares memory with an input"
    return ""
