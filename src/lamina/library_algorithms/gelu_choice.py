"""Whether the library's GELU around a product is faster than a kernel after the product: asked of a clock.

The kernel is not made for this: it counts as long as its bytes take, which is the least that it can.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from lamina.backends.torch_private import outside_of_tracing
from lamina.base.decision import Decision
from lamina.base.target import Target
from lamina.library_algorithms.clock import flush_bytes, sampler, unasked
from lamina.library_algorithms.cublas_lt import ALGORITHMS, backward, forward, loaded
from lamina.library_algorithms.gelu_operations import addmm_gelu
from lamina.library_algorithms.reasons import ALGORITHM
from lamina.runtime.cache import Cache, digest
from lamina.tuning.choose import guess, measured, remembered
from lamina.tuning.cuda_bench import require_memory
from lamina.tuning.measure import Sampler
from lamina.tuning.values import Candidate, Choice, Policy, Task

__all__ = ["GeluChoice"]

_VERSION = "3"
_SETTLING = 32
"""Products before the first that is timed: large ones draw so much power that the clock rate falls, for all alike."""

_SMALLEST = 1 << 35
"""Multiplications below which the gain is small, and a kernel of ours for both may be as fast: it does the forward of
8192x768x3072 in 82 us (H100), the library in 83 (H200)."""

_PRODUCT = "product"


class GeluChoice:
    """Answers ``gelu_rewrite.py`` for one GPU; ``note`` is told of each answer."""

    def __init__(
        self, device: int, target: Target, cache: Cache, policy: Policy, note: Callable[[Decision], None]
    ) -> None:
        self.device, self.target, self.cache, self.policy, self.note = device, target, cache, policy, note

    def __call__(self, product: Node, operation: Any, values: Sequence[Tensor], summed: bool) -> int | None:
        """The algorithm of the library to call ``operation`` with, or None."""
        choice = self._choice(product, operation, values, summed)
        found: int | None = choice.winner.value
        facts = tuple((label, round(us, 1)) for label, us in choice.times.items())
        reason = ALGORITHM(source=choice.source, why=choice.reason)
        self.note(Decision("library epilogue", (product.name,), found is not None, reason, facts))
        return found

    def _choice(self, product: Node, operation: Any, values: Sequence[Tensor], summed: bool) -> Choice:
        """Among the plain product, which is the best guess, and the operation with each of the algorithms."""
        candidates = (Candidate(_PRODUCT, None), *(Candidate(f"algorithm {k}", k) for k in range(ALGORITHMS)))
        left, right = values[1:] if operation is addmm_gelu else values[:2]
        if left.numel() * right.shape[1] < _SMALLEST:
            return guess(Task(product.name, "", candidates), "the product is small")
        if why := unasked(self.device):
            return guess(Task(product.name, "", candidates), why)
        layouts = [(v.dtype, tuple(v.shape), v.stride()) for v in values]
        machine = (self.target.name, self.target.processors, loaded(self.device).version)
        key = digest("gelu product", _VERSION, str(operation), repr(layouts), repr(summed), repr(machine))
        task = Task(product.name, key, candidates)
        if (found := remembered(task, self.policy, self.cache)) is not None:
            return found
        try:
            samplers = functools.partial(self._samplers, operation, values, summed)
            with outside_of_tracing():  # a fake tensor's address is zero
                return measured(task, self.policy, self.cache, samplers, {}, self.policy.seconds)
        except RuntimeError as error:  # torch's out-of-memory error is one
            return guess(task, f"it cannot be timed: {error}"[:160])

    def _samplers(self, operation: Any, values: Sequence[Tensor], summed: bool) -> Mapping[str, Sampler]:
        left, right = values[1:] if operation is addmm_gelu else values[:2]
        nbytes = left.element_size() * left.shape[0] * right.shape[1]
        flushed = flush_bytes(self.target)
        require_memory(4 * nbytes + sum(v.numel() * v.element_size() for v in values) + flushed, self.device)
        where = torch.device("cuda", self.device)
        with torch.cuda.device(where), torch.no_grad():
            generator = torch.Generator(where).manual_seed(0)
            operands = [
                torch.empty_strided(v.shape, v.stride(), dtype=v.dtype, device=where).normal_(generator=generator)
                for v in values
            ]
            flush = torch.empty(flushed // 4, dtype=torch.int32, device=where)
        once = nbytes / self.target.copy_gbs / 1e3
        alone: Callable[[], object]
        with_gelu: Any
        if operation is addmm_gelu:
            alone, with_gelu, after, later = functools.partial(torch.addmm, *operands), forward, 2 * once, 0.0
        else:  # the kernel after the product sums as well; without it the sum reads the result once more
            alone, with_gelu, after = functools.partial(torch.mm, *operands[:2]), backward, 3 * once
            later = once if summed else 0.0
        with torch.cuda.device(where), torch.no_grad():
            for _ in range(_SETTLING):
                alone()
        samplers = {_PRODUCT: sampler(self.device, alone, flush, after)}
        for k in range(ALGORITHMS):
            run = functools.partial(with_gelu, *operands, k)
            samplers[f"algorithm {k}"] = sampler(self.device, run, flush, later)
        return samplers
