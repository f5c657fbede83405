"""Questions about symbolic numbers, conditions on them and fake tensors, under torch's private names (2.11 to 2.13)."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager
from torch.fx.experimental import _config
from torch.fx.experimental.symbolic_shapes import (
    GuardOnDataDependentSymNode,
    free_symbols,
    free_unbacked_symbols,
    guard_or_false,
    guard_or_true,
    statically_known_true,
)
from torch.utils._sympy.functions import FloorDiv, IntTrueDiv

from lamina.base.symbolic.environment.torch_private import AskedTooLate, is_settled

__all__ = [
    "DataDependentGuard",
    "contiguous",
    "depends_on_data",
    "detached",
    "from_arguments",
    "has_symbols",
    "hint",
    "is_constant",
    "is_fake",
    "is_guarded",
    "is_positive",
    "is_quotient",
    "is_sure",
    "is_true",
    "is_zero",
    "known_float",
    "symbols_of",
]


DataDependentGuard = GuardOnDataDependentSymNode
"""Raised where tracing must know a number that only a run tells."""


def contiguous(tensor: torch.Tensor, memory_format: torch.memory_format = torch.contiguous_format) -> bool:
    """Whether a tensor is laid out so; run-time sizes are then guarded to be so or not; false where only data tells."""
    try:
        return bool(tensor.is_contiguous(memory_format=memory_format))
    except (DataDependentGuard, AskedTooLate):
        return False


def is_fake(value: object) -> bool:
    """Whether ``value`` is a fake tensor: it knows its shape and has no numbers."""
    return isinstance(value, FakeTensor)


def detached(tensor: torch.Tensor) -> torch.Tensor:
    """What ``tensor.detach()`` gives, of which no mode learns; of a fake tensor at a seventh of the time."""
    if type(tensor) is not FakeTensor or tensor.constant is not None or _is_special(tensor):
        return tensor.detach()
    with in_kernel_invocation_manager(tensor.fake_mode):
        alias = tensor.detach()
    return FakeTensor(tensor.fake_mode, alias, tensor.fake_device)


def _is_special(fake: FakeTensor) -> bool:
    symbolic = fake.fake_mode.shape_env is not None and has_symbols(fake)
    return symbolic or fake.layout is not torch.strided or torch.is_inference_mode_enabled()


def hint(size: int | torch.SymInt, unknown: int = 4096) -> int:
    """A likely value of ``size``, with no guard added; ``unknown`` for a size nobody knows."""
    if not isinstance(size, torch.SymInt):
        return int(size)
    value = size.node._hint
    return unknown if value is None else int(value)


def symbols_of(value: Any) -> list[Any]:
    """The symbols in the sizes, strides and offset of ``value``, in name order."""
    return sorted(free_symbols(value), key=lambda s: str(s.name))


def from_arguments(
    integers: Sequence[int | torch.SymInt], fakes: Sequence[Any]
) -> Callable[[Sequence[Any]], tuple[int, ...]] | None:
    """A function of arguments like ``fakes`` that gives the ``integers``; None where they hang on more than that tells.

    Symbols are read from integers among the arguments and from the sizes of tensors.
    """
    expressions = [n.node.expr if isinstance(n, torch.SymInt) else n for n in integers]
    symbols = sorted({s for n in integers for s in free_symbols(n)}, key=str)
    if not symbols:
        constant = tuple(map(int, expressions))
        return lambda given: constant
    places: dict[Any, tuple[int, int | None]] = {}
    for i, fake in enumerate(fakes):
        sizes = enumerate(fake.shape) if isinstance(fake, torch.Tensor) else [(None, fake)]
        for axis, n in sizes:
            if isinstance(n, torch.SymInt) and n.node.expr.is_symbol:
                places.setdefault(n.node.expr, (i, axis))
    if not places.keys() >= set(symbols):
        return None
    reads = [places[s] for s in symbols]

    @functools.lru_cache
    def evaluated(*values: int) -> tuple[int, ...]:
        known = dict(zip(symbols, values, strict=True))
        return tuple([e if isinstance(e, int) else int(e.xreplace(known)) for e in expressions])

    def read(given: Sequence[Any]) -> tuple[int, ...]:
        return evaluated(*[int(given[i] if axis is None else given[i].shape[axis]) for i, axis in reads])

    return read


def has_symbols(tensor: torch.Tensor) -> bool:
    """Whether a fake tensor's sizes, strides or offset are known only at run time."""
    numbers = (*tensor.shape, *tensor.stride(), tensor.storage_offset())
    return any(isinstance(n, torch.SymInt) and not isinstance(n.node.maybe_as_int(), int) for n in numbers)


def depends_on_data(value: int | torch.SymInt) -> bool:
    """Whether an integer has symbols that only the data of a call tells."""
    return bool(free_unbacked_symbols(value))


def is_true(condition: bool | torch.SymBool) -> bool:
    """Whether a condition on symbols is known to hold. Adds no guard."""
    return statically_known_true(condition)


def is_sure(condition: bool | torch.SymBool) -> bool:
    """Whether a condition on symbols is known to hold, or holds and is then guarded; false where only data tells."""
    return statically_known_true(condition) or (not is_settled(condition) and guard_or_false(condition))


def is_guarded(condition: bool | torch.SymBool) -> bool:
    """Whether a condition on symbols holds, which is then guarded; true as well where only data tells."""
    with _hints_asked():
        return guard_or_true(condition)


def is_zero(step: int | torch.SymInt) -> bool:
    """Whether a stride is zero. One that may be is then guarded to be so or not; only data's are taken not to be."""
    with _hints_asked():
        return guard_or_false(step == 0)


def _hints_asked() -> contextlib.AbstractContextManager[Any]:
    """Inside, a question about symbols that have values is answered by these and guarded, whatever torch is set to."""
    if not _config.backed_size_oblivious:
        return contextlib.nullcontext()
    found: contextlib.AbstractContextManager[Any] = _config.patch(backed_size_oblivious=False)  # type: ignore[attr-defined]
    return found


def is_positive(size: int | torch.SymInt) -> bool:
    """Whether a size is at least one. A symbolic one is then guarded to be so; without a hint it is not known to be."""
    return is_sure(size > 0)


def is_constant(value: Any) -> bool:
    """Whether a number or truth value of tracing is known, whatever symbols it came from."""
    return isinstance(value, (bool, int)) or (
        isinstance(value, (torch.SymBool, torch.SymInt)) and not value.node.expr.free_symbols
    )


def known_float(value: Any) -> Any:
    """The float that a symbolic one is known to be, NaN and infinities included, which no guard compares; or ``value``
    itself.
    """
    known = isinstance(value, torch.SymFloat) and not value.node.expr.free_symbols
    return float(value.node.expr) if known else value


def is_quotient(value: Any, float_too: bool) -> bool:
    """Whether ``value`` is a symbol's floor division; with ``float_too``, a symbolic float in which integers divide."""
    if float_too:
        return isinstance(value, torch.SymFloat) and value.node.expr.has(IntTrueDiv)
    return isinstance(value, torch.SymInt) and isinstance(value.node.expr, FloorDiv)
