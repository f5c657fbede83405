"""The algorithm of large library products chosen by a clock.

cuBLASLt proposes several algorithms for a product, and torch takes the one that the library thinks the fastest. Here
each is timed, once for every layout on a GPU, and one that is clearly faster than torch's own call takes its place.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lamina.backends.torch_private import outside_of_tracing
from lamina.base.decision import Decision
from lamina.base.dtypes import torch_dtype
from lamina.base.target import Target
from lamina.ir.index import Expr
from lamina.ir.loops import Buffer, BufferView, LibraryCall
from lamina.ir.plan import Plan
from lamina.ir.product import HALVES
from lamina.library_algorithms.clock import flush_bytes, sampler, unasked
from lamina.library_algorithms.cublas_lt import ALGORITHMS, loaded
from lamina.library_algorithms.cublas_products import multiply
from lamina.library_algorithms.product_operations import CHOSEN
from lamina.library_algorithms.reasons import ALGORITHM
from lamina.runtime.cache import Cache, digest
from lamina.schedule.products import library_us
from lamina.tuning.choose import guess, measured, remembered
from lamina.tuning.cuda_bench import require_memory
from lamina.tuning.measure import Sampler, in_turns
from lamina.tuning.values import Candidate, Choice, Policy, Task

__all__ = ["AlgorithmChoice"]

_VERSION = "1"
_LEAST, _LEAST_THOROUGH = 30.0, 10.0
"""Microseconds that a product is estimated to take from which it is asked for, and where time does not count."""

_CLEARLY = 1.02
"""How much faster than torch's own call an algorithm must be."""

_OWN = "torch"
"""The candidate that is no algorithm of ours."""


@dataclass(frozen=True, slots=True)
class _Operand:
    """A window of a product's operand: all that its time may depend on."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Question:
    """A product: the operation, its element type, a bias if it has one, both factors."""

    op: str
    dtype: str
    operands: tuple[_Operand, ...]

    @property
    def multiplied(self) -> int:
        """Multiplications."""
        left, right = self.operands[-2:]
        return left.shape[0] * left.shape[1] * right.shape[1]

    @property
    def result(self) -> tuple[int, int]:
        """The result's shape."""
        return self.operands[-2].shape[0], self.operands[-1].shape[1]


class AlgorithmChoice:
    """Gives the library products of one region's plans their algorithms; ``choices`` has what was decided so far.

    The answer to a question stays the same for the region, so that plans of it can be told apart by what they do.
    """

    def __init__(self, device: int, target: Target, cache: Cache, policy: Policy) -> None:
        self.device, self.target, self.cache = device, target, cache
        self.least = _LEAST if policy.doubt < float("inf") else _LEAST_THOROUGH
        self.policy = replace(policy, candidates=ALGORITHMS + 1, tie=_CLEARLY)
        self.left = policy.seconds
        self.choices: dict[_Question, Choice] = {}
        self.calls: dict[_Question, dict[str, None]] = {}

    def __call__(self, plan: Plan) -> Plan:
        """The plan with each product by its algorithm; those that take longest are asked for first."""
        buffers = plan.buffer_map()
        found = {s.name: q for s in plan.steps if isinstance(s, LibraryCall) and (q := self._question(s, buffers))}
        for name, question in found.items():
            self.calls.setdefault(question, {})[name] = None
        for question in sorted(dict.fromkeys(found.values()), key=lambda q: -q.multiplied):
            if question not in self.choices:
                self.choices[question] = self._choice(question)
        algorithms = {name: self.choices[q].winner.value for name, q in found.items()}
        if all(algorithm is None for algorithm in algorithms.values()):
            return plan
        steps = tuple(
            replace(s, op=CHOSEN[s.op], args=(*s.args, algorithms[s.name]))
            if isinstance(s, LibraryCall) and algorithms.get(s.name) is not None
            else s
            for s in plan.steps
        )
        return replace(plan, steps=steps)

    @property
    def seconds(self) -> float:
        """What measuring took."""
        return sum(choice.seconds for choice in self.choices.values())

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """One for each distinct product, of all its calls: taken if it has another algorithm than torch's."""
        return tuple(
            Decision(
                "algorithm",
                tuple(self.calls[question]),
                choice.winner.value is not None,
                ALGORITHM(source=choice.source, why=choice.reason),
                tuple((f"{label}_us", round(us, 1)) for label, us in choice.times.items()),
            )
            for question, choice in self.choices.items()
        )

    def _question(self, call: LibraryCall, buffers: Mapping[str, Buffer]) -> _Question | None:
        """What is to be asked of a call; None where it is small, or no product that this is about."""
        if call.op not in CHOSEN or call.kwargs or call.outs[0] is None:
            return None
        if not all(isinstance(a, BufferView) for a in call.args):
            return None
        out = buffers[call.outs[0]]
        used = [out, *(buffers[a.buffer] for a in call.args)]
        numbers = [*out.shape, *out.strides, *(e for a in call.args for e in (*a.shape, *a.strides))]
        if out.dtype not in HALVES or any(b.dtype != out.dtype or not b.on_gpu for b in used):
            return None
        if not all(e.is_int for e in numbers) or not all(_aligned(a.offset) for a in call.args):
            return None
        operands = tuple(_Operand(_numbers(a.shape), _numbers(a.strides)) for a in call.args)
        question = _Question(call.op, out.dtype, operands)
        if _numbers(out.strides) != (question.result[1], 1):
            return None
        if len(operands) == 3 and operands[0] != _Operand(question.result[1:], (1,)):
            return None
        return question if library_us(question.multiplied, self.target) >= self.least else None

    def _choice(self, question: _Question) -> Choice:
        """Among torch's own call, which is the best guess, and the algorithms."""
        candidates = (Candidate(_OWN, None), *(Candidate(f"algorithm {k}", k) for k in range(ALGORITHMS)))
        name = next(iter(self.calls[question]))
        if why := unasked(self.device):
            return guess(Task(name, "", candidates), why)
        machine = (self.target.name, self.target.processors, loaded(self.device).version, torch.__version__)
        task = Task(name, digest("product algorithm", _VERSION, repr(question), repr(machine)), candidates)
        if (found := remembered(task, self.policy, self.cache)) is not None:
            return found
        if self.left <= 0:
            return guess(task, f"{self.policy.seconds:g} s of measuring were over")
        started = time.perf_counter()
        try:
            samplers = functools.partial(self.samplers, question)
            with outside_of_tracing():
                return measured(task, self.policy, self.cache, samplers, {}, self.left, timing=in_turns)
        except RuntimeError as error:  # torch's out-of-memory error is one
            return guess(task, f"it cannot be timed: {error}"[:160])
        finally:
            self.left -= time.perf_counter() - started

    def samplers(self, question: _Question) -> Mapping[str, Sampler]:
        """What times each candidate on operands of random numbers. Raises ``RuntimeError`` where there is no memory."""
        dtype, flushed = torch_dtype(question.dtype), flush_bytes(self.target)
        elements = sum(_span(o) for o in question.operands) + question.result[0] * question.result[1]
        require_memory(dtype.itemsize * elements + flushed, self.device)
        with torch.cuda.device(self.device), torch.no_grad():
            generator = torch.Generator(torch.device("cuda", self.device)).manual_seed(0)
            operands, out = _memory(question, generator)
            flush = torch.empty(flushed // 4, dtype=torch.int32, device=generator.device)
        return {label: sampler(self.device, run, flush) for label, run in _runs(operands, out)}


def _runs(operands: list[Tensor], out: Tensor) -> Iterable[tuple[str, Callable[[], object]]]:
    """Each candidate's label, and what runs it."""
    *bias, left, right = operands
    own: Any = torch.addmm if bias else torch.mm
    yield _OWN, functools.partial(own, *operands, out=out)
    for k in range(ALGORITHMS):
        yield f"algorithm {k}", functools.partial(multiply, bias[0] if bias else None, left, right, k, out)


def _memory(question: _Question, generator: torch.Generator) -> tuple[list[Tensor], Tensor]:
    """Operands of random numbers, which cost as much power as real ones, and room for the result."""
    dtype, device = torch_dtype(question.dtype), generator.device
    operands = [
        torch.empty(_span(o), dtype=dtype, device=device).normal_(generator=generator).as_strided(o.shape, o.strides)
        for o in question.operands
    ]
    return operands, torch.empty(question.result, dtype=dtype, device=device)


def _aligned(offset: Expr) -> bool:
    """Whether so many elements of two bytes are a multiple of 16 bytes."""
    return offset.is_int and offset.const % 8 == 0


def _span(operand: _Operand) -> int:
    """Elements from the operand's first to its last."""
    return 1 + sum((n - 1) * s for n, s in zip(operand.shape, operand.strides, strict=True))


def _numbers(exprs: Iterable[Expr]) -> tuple[int, ...]:
    return tuple(e.const for e in exprs)
