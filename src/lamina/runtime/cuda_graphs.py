"""CUDA graphs of a region: recorded where launching is what takes the time, and only for addresses that come again.

A recording fixes the address of every input and output. So it is kept by the addresses of the inputs: nothing large is
ever copied, and inputs that move are copied only if they are a few kilobytes. Outputs are lent out: a recording
is used again when none of its last outputs is alive, and until then the region runs another recording, or without one.
Each has memory of its own, temporaries too: what one replay writes on its way may not be what another one lent out.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from lamina.base.devices import kind_of
from lamina.base.graph_pair import PairedGraph
from lamina.base.reasons import Reason
from lamina.base.recovery import brief
from lamina.runtime import reasons
from lamina.runtime.cuda_host import current_stream, forget_zeros, lend_zeros
from lamina.runtime.cuda_recording import Recording
from lamina.runtime.graph_budget import GraphBudget, pool_bytes
from lamina.runtime.torch_private import CAN_COUNT_USES, is_capturing

__all__ = ["GraphPolicy", "GraphRunner", "Outcome"]

Boxed = Callable[[list[Any]], Any]

_MOST_RECORDINGS = 8
"""CUDA graphs of one region at most; each keeps the memory of its outputs and temporaries."""
_MOST_OF_ONE = 2
"""Recordings of the same addresses: one may run while the other's outputs are in use."""
_COPIED_BYTES = 256 << 10
"""Bytes of an input up to which it is copied to a fixed address instead of recording for its address."""
_WARM_CALLS = 2
"""Calls before times are taken, in which kernels are loaded and workspaces made."""
_MEASURED_CALLS = 5
"""Calls by whose times it is decided whether launches are what takes the time."""
_PATIENCE = 24
"""Calls in a row with addresses never seen before after which the region goes on without graphs."""
_BEHIND = 1.5
"""How many times the host's time the GPU may take and still count as waiting for launches."""
_GAIN = 0.9
"""Share of the direct call's host time that a replay may take to be worth its memory."""
_LEAST_REST, _MOST_REST = 16, 4096
"""Calls after a refusal before the budget is asked again: asking takes a millisecond, so twice as many each time."""
_UNDECIDED_CALLS = 100
"""Calls of a forward that keeps the GPU busy for which it waits to hear how its backward fares."""


@dataclass(frozen=True, slots=True)
class GraphPolicy:
    """When to record. ``insist``: whatever is measured. ``written`` are positions of inputs that the region overwrites;
    such an input is never copied. ``poll`` raises what went wrong in an earlier call, before a replay. Each recording
    is expected to take ``nbytes`` of the ``budget``, if there is one. Where the GPU waits for the launches of a
    backward, time that the host saves in its forward counts, however busy that keeps the GPU: ``half`` says which of
    the two it is.
    """

    insist: bool
    written: frozenset[int] = frozenset()
    poll: Callable[[], None] | None = None
    nbytes: int = 0
    budget: GraphBudget | None = None
    half: PairedGraph | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was decided, and the host's and the GPU's microseconds it rests on (0: not measured)."""

    taken: bool
    reason: Reason
    direct_us: float = 0.0
    gpu_us: float = 0.0
    replay_us: float = 0.0


class GraphRunner:
    """A region that replays recordings where that pays. ``call`` runs it directly; ``report`` gets each decision.

    Safe to call from several threads. Streams have recordings of their own.
    """

    def __init__(self, call: Boxed, device: int, policy: GraphPolicy, report: Callable[[Outcome], None]) -> None:
        self.call, self.device, self.policy, self.report = call, device, policy, report
        self.off = ""
        self.recordings: dict[tuple[int, ...], list[Recording]] = {}
        self.count = 0
        self._calls = self._strangers = 0
        self._seen: Counter[tuple[int, ...]] = Counter()
        self._moving: tuple[int, ...] = ()
        self._addresses: list[tuple[int, ...]] = []
        self._samples: list[tuple[float, Any, Any]] = []
        self._direct_us = self._gpu_us = 0.0
        self._replays: list[float] = []
        self._wanted = policy.insist
        self._undecided = 0
        self._rest, self._next_rest = 0, _LEAST_REST
        self._share = None if policy.budget is None else policy.budget.share(self)
        self._guard = threading.RLock()
        self._told: set[str] = set()
        self._insisted = False
        if not CAN_COUNT_USES:
            self._stop(reasons.HOLDERS_UNKNOWN())

    def __call__(self, args: list[Any]) -> Any:
        if self.off or is_capturing():
            return self.call(args)
        if self._rest and not self.recordings:
            self._rest -= 1
            return self.call(args)
        with self._guard:
            if self.policy.poll is not None:
                self.policy.poll()
            key = self._key(args)
            known = self.recordings.get(key, ())
            for recording in known:
                if recording.is_free():
                    return self._replay(recording, args)
            if len(known) == 1:
                # A thread of autograd's that is done may not have let go of what the backward read.
                time.sleep(0)
                if known[0].is_free():
                    return self._replay(known[0], args)
            return self._direct(key, args)

    def _key(self, args: list[Any]) -> tuple[int, ...]:
        """Stream, addresses and sizes; inputs that are copied do not count."""
        words = [a.data_ptr() if isinstance(a, torch.Tensor) else a for a in args]
        for position in self._moving:
            words[position] = 0
        return (current_stream(self.device), *words)

    def _replay(self, recording: Recording, args: list[Any]) -> Any:
        if len(self._replays) >= _MEASURED_CALLS or self.policy.insist:
            results = recording.replay(args, self._moving)
            args.clear()
            return results
        start = time.perf_counter()
        results = recording.replay(args, self._moving)
        args.clear()
        self._replays.append((time.perf_counter() - start) * 1e6)
        if len(self._replays) == _MEASURED_CALLS:
            self._judge_replays()
        return results

    def _judge_replays(self) -> None:
        replay = statistics.median(self._replays)
        taken = replay < _GAIN * self._direct_us
        reason = reasons.LAUNCHES_DOMINATE() if taken else reasons.REPLAY_NOT_FASTER()
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
            self._skip(reasons.OUTPUTS_IN_USE(count=_MOST_OF_ONE))
        elif self.count >= _MOST_RECORDINGS:
            self._skip(reasons.TOO_MANY(count=_MOST_RECORDINGS))
        elif self._rest:
            self._rest -= 1
        else:
            return self._record(key, args)
        return self.call(args)

    # ---- does it pay ----------------------------------------------------------------------------------------------

    def _measured(self, args: list[Any]) -> Any:
        """Run directly, taking the time on both sides, and decide once there are enough samples."""
        if self._undecided and self.policy.half is not None:
            self._hear(self.policy.half)
            return self.call(args)
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
        self._wanted = self._gpu_us <= _BEHIND * self._direct_us
        half = self.policy.half
        if self._wanted and half is not None and half.is_backward:
            half.pair.backward_waits = True
        if self._wanted:
            return
        if half is None or half.is_backward:
            self._stop(reasons.GPU_IS_BUSY())
        else:
            self._hear(half)

    def _hear(self, half: PairedGraph) -> None:
        """Decide on a forward that keeps the GPU busy by what is known of its backward by now."""
        self._undecided += 1
        if half.pair.backward_waits:
            self._wanted = True
        elif half.pair.backward_waits is not None or self._undecided > _UNDECIDED_CALLS:
            self._stop(reasons.GPU_IS_BUSY())

    def _skip(self, reason: Reason) -> None:
        """Calls like this one run directly, while recordings go on serving others; told once of each reason."""
        if reason not in self._told:
            self._told.add(reason)
            self.report(Outcome(False, reason, self._direct_us, self._gpu_us))

    def _stop(self, reason: Reason, told: bool = False) -> None:
        self.off = reason
        half = self.policy.half
        if half is not None and half.is_backward:
            half.pair.backward_waits = False
        self._forget()
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
            self._skip(reasons.ADDRESSES_CEASED())
        elif self._strangers > _PATIENCE:
            self._stop(reasons.ADDRESSES_MOVE())
        if self._moving or len(self._addresses) < 4:
            return
        moving = tuple(k for k, found in enumerate(zip(*self._addresses, strict=True)) if len(set(found)) > 1)
        nbytes = sum(args[k].numel() * args[k].element_size() for k in moving)
        dense = all(args[k].is_contiguous() for k in moving)
        if moving and dense and nbytes <= _COPIED_BYTES and not set(moving) & self.policy.written:
            self._moving = moving
            self._forget()
            self._seen.clear()
            self.count = 0

    def _forget(self) -> None:
        self.recordings.clear()
        if self._share is not None:
            self._share.give_back()

    # ---- recording ------------------------------------------------------------------------------------------------

    def _record(self, key: tuple[int, ...], args: list[Any]) -> Any:
        """Record this call and replay it; run directly, and say why, where it cannot be recorded."""
        if self._share is not None and (refusal := self._share.take(self.policy.nbytes)):
            self._rest, self._next_rest = self._next_rest, min(2 * self._next_rest, _MOST_REST)
            self._skip(refusal)
            return self.call(args)
        copies = [torch.empty_like(args[k], requires_grad=False) for k in self._moving]
        given = list(args)
        for position, copy in zip(self._moving, copies, strict=True):
            given[position] = copy
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        zeros = lend_zeros(self.device, stream.cuda_stream)
        graph = torch.cuda.CUDAGraph()
        try:
            with (
                torch.cuda.device(self.device),
                torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"),
            ):
                outputs = self.call(list(given))
        except Exception as error:
            self._stop(reasons.NOT_RECORDABLE(error=brief(error)))
            return self.call(args)
        finally:
            forget_zeros(self.device, stream.cuda_stream)
        if not all(_on_gpu(output) for output in outputs if isinstance(output, torch.Tensor)):
            self._stop(reasons.OUTPUT_ON_CPU())
            return self.call(args)
        try:
            recording = Recording(graph, outputs, given, copies, zeros)
        except TypeError:
            self._stop(reasons.OUTPUT_OF_OTHER_TYPE())
            return self.call(args)
        if self._share is not None:
            self._share.add(_kept(graph, self.device) - self.policy.nbytes)
        self.recordings.setdefault(key, []).append(recording)
        self.count += 1
        if self.policy.insist and not self._insisted:
            self._insisted = True
            self.report(Outcome(True, reasons.ASKED_FOR()))
        return self._replay(recording, args)


def _timer() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _on_gpu(output: torch.Tensor) -> bool:
    return kind_of(output).queued


def _kept(graph: Any, device: int) -> int:
    """Bytes of the memory pool of a recording."""
    return pool_bytes(device).get(tuple(graph.pool()), (0, 0))[0]
