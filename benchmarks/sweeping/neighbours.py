"""Every operator of torch's database between arithmetic, its largest sample repeated until it is worth timing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.limit import TookTooLong, at_most
from benchmarks.patterns import private_copy
from benchmarks.sweeping.case import Case, Problem, Skipped, Variant
from lamina.base.reference import mapped
from lamina.testing import tensors
from tests.ops.torch_private import DrawsWatch, Sample, operators, sample_of

__all__ = ["Repeat", "between", "cases", "repeated"]

ELEMENTS = 1 << 19
"""So many elements the largest tensor of a sample gets, where eager takes no longer than it may; times ``scale``."""

LONGEST, LEAST = 0.05, {"cpu": 2e-4, "cuda": 5e-5}
"""Seconds that eager may take for an operator, and those it takes at least if it is worth timing."""

PATIENCE = 8.0
"""Seconds in which one way to enlarge a sample has to be tried."""

Repeat = Callable[[Tensor, int], Tensor]


@cache
def _known() -> dict[str, Any]:
    return operators()


def cases() -> list[Case]:
    """One program for each operator."""
    return [
        Case(f"operators/{name}", (f"operator {name}",), partial(_problem, name), f"# {name} between arithmetic\n")
        for name in _known()
    ]


def between(operator: Callable[..., Any], first: Any, rest: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """The operator on scaled inputs, its results scaled and moved."""
    value = operator(mapped(first, _before), *rest, **named)
    return mapped(value, _after)


def _before(leaf: Any) -> Any:
    return leaf * 0.875 if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf


def _after(leaf: Any) -> Any:
    return leaf * 0.5 + 0.25 if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf


def _everywhere(tensor: Tensor, times: int) -> Tensor:
    """The last two axes longer, so that the whole is ``times`` as large; the data stays in its operator's domain."""
    if tensor.dim() < 2:
        return tensor.repeat(times) if tensor.dim() else tensor
    side = max(1, round(times**0.5))
    return tensor.repeat(*[1] * (tensor.dim() - 2), side, side)


def _first(tensor: Tensor, times: int) -> Tensor:
    return tensor.repeat(times, *[1] * (tensor.dim() - 1)) if tensor.dim() else tensor


def _last(tensor: Tensor, times: int) -> Tensor:
    return tensor.repeat(*[1] * (tensor.dim() - 1), times) if tensor.dim() else tensor


def _batch(tensor: Tensor, times: int) -> Tensor:
    """A new first axis; for operators that count axes from the last."""
    return tensor.repeat(times, *[1] * tensor.dim())


def repeated(sample: Sample, repeat: Repeat, times: int) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The sample's arguments with every tensor repeated, fresh leaves where they were."""

    def larger(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if leaf.layout != torch.strided or leaf.is_quantized:
            raise Skipped("a tensor of the sample is not strided")
        return repeat(leaf.detach(), times).clone().requires_grad_(leaf.requires_grad)

    return mapped((sample.input, sample.args, sample.kwargs), larger)  # type: ignore[no-any-return]


@cache
def _plan(name: str, dtype: torch.dtype, device: str, scale: float) -> tuple[Repeat, int, bool]:
    """How and how often a sample is repeated, so that eager takes it and takes about some milliseconds; and whether
    the operator draws random numbers.
    """
    operator = _known()[name]
    try:
        sample = sample_of(operator, (dtype,), largest=True, device=device)
    except LookupError:
        raise Skipped("the operator does not take this type") from None
    except Exception as problem:
        raise Skipped(f"no sample: {type(problem).__name__}") from None
    elements = max((t.numel() for t in tensors((sample.input, sample.args, sample.kwargs))), default=0)
    if not elements:
        raise Skipped("the sample has no elements")
    slow = False
    for repeat, times in _ways(max(2, int(ELEMENTS * scale) // elements)):
        took, random = _tried(operator.op, sample, repeat, times, device)
        if LEAST[device] <= took <= LONGEST:
            return repeat, times, random
        slow = slow or took > LONGEST
    raise Skipped("the sample can only be enlarged to a longer time" if slow else "the sample cannot be enlarged")


def _ways(times: int) -> Iterator[tuple[Repeat, int]]:
    for count in (times, times // 16, times // 256):
        if count >= 2:
            yield from ((repeat, count) for repeat in (_everywhere, _batch, _first, _last))


def _tried(operator: Callable[..., Any], sample: Sample, repeat: Repeat, times: int, device: str) -> tuple[float, bool]:
    """Seconds that eager takes, none where it refuses, and whether it draws random numbers."""
    try:
        with at_most(PATIENCE), torch.no_grad():
            arguments = repeated(sample, repeat, times)
            with DrawsWatch() as watch:
                first = _seconds(lambda: between(operator, *arguments), device)
            if first > 20 * LONGEST:
                return first, watch.draws
            return _seconds(lambda: between(operator, *arguments), device), watch.draws
    except Skipped:
        raise
    except TookTooLong:
        return PATIENCE, False
    except Exception:  # this operator takes no samples repeated so
        return 0.0, False


def _seconds(call: Callable[[], Any], device: str) -> float:
    synchronise = torch.cuda.synchronize if device == "cuda" else lambda: None
    synchronise()
    start = time.perf_counter()
    call()
    synchronise()
    return time.perf_counter() - start


def _problem(name: str, variant: Variant) -> Problem:
    repeat, times, random = _plan(name, variant.torch_dtype, variant.device, variant.scale)
    operator = _known()[name].op
    sample = sample_of(_known()[name], (variant.torch_dtype,), largest=True, device=variant.device)
    first, rest, named = repeated(sample, repeat, times)
    leaves = tuple(t.requires_grad_(variant.training) for t in tensors((first, rest, named)) if t.requires_grad)

    def program(first: Any, rest: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return between(operator, first, rest, named)

    return Problem(private_copy(program), (first, rest, named), leaves if variant.training else (), random)
