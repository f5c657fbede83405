"""Torch's operator database: a private module of torch, named here only."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch.testing._internal import common_methods_invocations as database
from torch.testing._internal.common_modules import module_db
from torch.utils import deterministic
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = [
    "DTYPES",
    "DrawsWatch",
    "ModuleSample",
    "Sample",
    "error_samples",
    "filled_memory",
    "full_name",
    "graph_breaks",
    "module_samples",
    "modules",
    "operators",
    "sample_of",
    "samples_of",
]

DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64)
SAMPLES = 12
"""Of how many samples the largest is taken."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The first sample of an operator: ``op(input, *args, **kwargs)``."""

    dtype: torch.dtype
    input: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class DrawsWatch(TorchDispatchMode):
    """Notes whether anything run inside draws random numbers from the global generator.

    Many samples set the seed themselves, so that running twice with two seeds would not tell.
    """

    def __init__(self) -> None:
        super().__init__()
        self.draws = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        self.draws |= torch.Tag.nondeterministic_seeded in func.tags and named.get("generator") is None
        return func(*args, **named)


@contextmanager
def filled_memory() -> Iterator[None]:
    """Inside, ``torch.empty`` and its like give NaN and largest integers, as with deterministic algorithms."""
    before, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fills = deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warns)
        deterministic.fill_uninitialized_memory = fills


def full_name(operator: Any) -> str:
    """Name and variant, unique in the database."""
    return f"{operator.name}.{operator.variant_test_name}" if operator.variant_test_name else str(operator.name)


def _unseeded(operator: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return operator(*args, **kwargs)


def operators() -> dict[str, Any]:
    """Every operator of the database by its full name.

    The database sets a seed inside each random operator, which no graph can hold: who calls them does that here.
    """
    database.wrapper_set_seed = _unseeded
    return {full_name(op): op for op in database.op_db}


def sample_of(
    operator: Any, dtypes: Iterable[torch.dtype] = DTYPES, largest: bool = False, device: str = "cpu"
) -> Sample:
    """The first sample in the first of ``dtypes`` that the operator takes, or of its first samples the ``largest``.

    Its tensors are on a device of that type. Raises ``LookupError`` if there is none.
    """
    for dtype in dtypes:
        if not operator.supports_dtype(dtype, device):
            continue
        random.seed(0)
        torch.manual_seed(0)
        differentiable = operator.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
        found = [
            Sample(dtype, sample.input, tuple(sample.args), dict(sample.kwargs))
            for sample in islice(
                operator.sample_inputs(device, dtype, requires_grad=differentiable), SAMPLES if largest else 1
            )
        ]
        if found:
            return max(found, key=lambda s: _elements((s.input, s.args, s.kwargs)))
    raise LookupError(f"the database has no sample of {full_name(operator)} on {device} in {tuple(dtypes)}")


def samples_of(operator: Any, dtype: torch.dtype, device: str = "cpu") -> list[Sample]:
    """Every sample of ``operator`` in ``dtype``. Raises ``LookupError`` if it does not take it."""
    if not operator.supports_dtype(dtype, device):
        raise LookupError(f"{full_name(operator)} does not take {dtype} on {device}")
    random.seed(0)
    torch.manual_seed(0)
    differentiable = operator.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    return [
        Sample(dtype, sample.input, tuple(sample.args), dict(sample.kwargs))
        for sample in operator.sample_inputs(device, dtype, requires_grad=differentiable)
    ]


def error_samples(operator: Any, device: str = "cpu") -> list[Sample]:
    """Inputs that ``operator`` must refuse. Raises ``LookupError`` if the database has none."""
    if operator.error_inputs_func is None:
        raise LookupError(f"the database has no wrong inputs of {full_name(operator)}")
    random.seed(0)
    torch.manual_seed(0)
    found = [wrong.sample_input for wrong in operator.error_inputs(device)]
    return [Sample(torch.float32, s.input, tuple(s.args), dict(s.kwargs)) for s in found]


@dataclass(frozen=True, slots=True)
class ModuleSample:
    """A module to be made and the arguments of its ``forward``."""

    make: Callable[[], torch.nn.Module]
    described: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def modules() -> dict[str, Any]:
    """Every class of modules in the database by its name, without those whose parameters their first call makes."""
    return {info.name: info for info in module_db if not info.is_lazy}


def module_samples(info: Any, dtype: torch.dtype, training: bool, device: str = "cpu") -> list[ModuleSample]:
    """Every sample of a class of modules. Raises ``LookupError`` if it is not made for ``dtype``."""
    if dtype not in info.dtypes:
        raise LookupError(f"{info.name} is not made for {dtype}")
    random.seed(0)
    torch.manual_seed(0)
    placed = {"device": device, "dtype": dtype}
    found = info.module_inputs_func(info, **placed, requires_grad=True, training=training)
    return [_module_sample(info, sample, placed) for sample in found if sample.forward_input is not None]


def _module_sample(info: Any, sample: Any, placed: dict[str, Any]) -> ModuleSample:
    made, given = sample.constructor_input, sample.forward_input

    def make() -> torch.nn.Module:
        torch.manual_seed(0)
        module: torch.nn.Module = info.module_cls(*made.args, **made.kwargs)
        return module.to(**placed)

    return ModuleSample(make, sample.desc or "first sample", tuple(given.args), dict(given.kwargs))


def _elements(value: Any) -> int:
    """How many elements the tensors of a sample have together."""
    if isinstance(value, torch.Tensor):
        return value.numel()
    if isinstance(value, dict):
        return _elements(tuple(value.values()))
    return sum(_elements(v) for v in value) if isinstance(value, (tuple, list)) else 0


def graph_breaks() -> list[str]:
    """Why Dynamo left code to Python since this was last asked, the reasons without their hints."""
    reasons = [" ".join(str(reason).split("Hint:")[0].split()) for reason in counters["graph_break"]]
    counters.clear()
    return reasons
