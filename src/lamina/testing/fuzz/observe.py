"""Runs a program and writes down all that it shows: values, layouts, sharing, versions, errors, global state."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import linecache
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from lamina.base.reference import in_double
from lamina.base.torch_private import version_of
from lamina.errors import BadArgument
from lamina.testing.fuzz.torch_private import autocast_depth, state_of_thread
from lamina.testing.fuzz.values import Backwards, differentiating, drawing

__all__ = ["Raised", "Seen", "Trace", "load", "observe", "traced"]

CompileFunction = Callable[..., Any]
_numbers = itertools.count()
_MODULE = "random_program_"
"""What names of programs' modules begin with."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.layout)


@dataclass(frozen=True, slots=True)
class Seen:
    """A tensor at the time it was shown: a copy, and what the copy does not tell."""

    value: Tensor
    kind: str
    stride: tuple[int, ...]
    requires_grad: bool
    leaf: bool | None
    """None where torch refuses to tell: a view made in inference mode whose base was written to outside of it."""
    inference: bool


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception that was shown, or that ended the program."""

    kind: str
    text: str
    bases: tuple[str, ...] = ()
    """Names of the class and of those that it derives from."""

    @classmethod
    def of(cls, error: Exception) -> Raised:
        """What a program shows of an exception."""
        return cls(type(error).__name__, str(error), tuple(c.__name__ for c in type(error).__mro__))


@dataclass(slots=True)
class Trace:
    """All that one run showed. Leaves are named by the number of the ``yield`` and the path inside its value."""

    leaves: dict[str, Any] = field(default_factory=dict)
    late: dict[str, Seen] = field(default_factory=dict)
    """Tensors as they were at the end."""
    written: dict[str, bool] = field(default_factory=dict)
    """Whether the version of a tensor was raised after it was first shown."""
    sharing: dict[str, tuple[str, int]] = field(default_factory=dict)
    """For each tensor the first shown one in the same memory, and how many bytes it begins behind that."""
    same: dict[str, str] = field(default_factory=dict)
    """For each tensor the first name it was shown by."""
    states: list[dict[str, Any]] = field(default_factory=list)
    """The global state at each yield and at the end."""
    warned: list[str] = field(default_factory=list)
    failed: frozenset[int] = frozenset()
    """The numbers of the calls of ``backward`` that raised."""
    draws_numbers: bool = False


def load(source: str) -> Callable[[CompileFunction], Iterator[Any]]:
    """The function ``program`` of a program's text. Raises ``BadArgument`` where there is none."""
    name = f"<program {next(_numbers)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    # Dynamo imports the module whose globals a function has, to read them from inside of another function. In functions
    # of torch's own it keeps the first one of a name: each program has a name of its own, which all its runs have.
    called = f"{_MODULE}{zlib.crc32(source.encode()):08x}"
    for other in [one for one in sys.modules if one.startswith(_MODULE) and one != called]:
        del sys.modules[other]
    module = sys.modules[called] = ModuleType(called)
    exec(compile(source, name, "exec"), module.__dict__)
    program = module.__dict__.get("program")
    if not callable(program):
        raise BadArgument(
            "the file has no function 'program'",
            remedy="define program(compile): it compiles functions with compile(function) and yields what they return",
        )
    return program  # type: ignore[no-any-return]


def observe(
    source: str,
    compile: CompileFunction,
    *,
    draw: int = 0,
    wide: bool = False,
    kept: bool = False,
    within: AbstractContextManager[Any] | None = None,
    backwards: Backwards | None = None,
) -> Trace:
    """Run a program's text with this compile function; with ``wide`` in double precision.

    With ``kept`` autograd saves copies, so that no write to what it would save is in the way of a gradient. The
    program runs ``within`` a context, if one is given, and calls ``backward`` as ``backwards`` says.

    The state of the process (modes, default dtype, random numbers) is the same afterwards.
    """

    def shown() -> Iterator[tuple[str, Any]]:
        for number, value in enumerate(load(source)(compile)):
            yield str(number), value

    hooks = saved_tensors_hooks(_copied, _as_it_is) if kept else nullcontext()
    how = backwards or Backwards()
    with drawing(draw), differentiating(how), hooks, within or nullcontext():
        trace = traced(shown, wide=wide)
    trace.failed = frozenset(how.failed)
    return trace


def traced(program: Callable[[], Iterator[tuple[str, Any]]], *, wide: bool = False, seed: int = 0) -> Trace:
    """All that ``program`` shows: named values, one after the other. With ``wide`` it runs in double precision.

    The state of the process (modes, default dtype, random numbers) is the same afterwards.
    """
    trace = Trace()
    live: list[tuple[str, Tensor, int]] = []
    with _state_kept(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with in_double() if wide else nullcontext():
            torch.manual_seed(seed)
            before, around = torch.get_rng_state(), _around()
            try:
                for name, shown in program():
                    _note(trace, live, name, shown)
                    trace.states.append(_state(around))
            except Exception as raised:
                trace.leaves["end"] = Raised.of(raised)
            trace.states.append(_state(around))
            trace.draws_numbers = not torch.equal(before, torch.get_rng_state())
            _finish(trace, live)
    trace.warned = [str(w.message) for w in caught]
    return trace


def _copied(saved: Tensor) -> Tensor:
    with torch.no_grad():
        return saved.detach().clone()


def _as_it_is(saved: Tensor) -> Tensor:
    return saved


def _note(trace: Trace, live: list[tuple[str, Tensor, int]], path: str, shown: Any) -> None:
    if isinstance(shown, Tensor):
        trace.leaves[path] = _seen(shown)
        live.append((path, shown, version_of(shown)))
    elif isinstance(shown, Exception):
        trace.leaves[path] = Raised.of(shown)
    elif isinstance(shown, Mapping):
        trace.leaves[path] = f"{type(shown).__name__} of {list(shown)}"
        for key, item in shown.items():
            _note(trace, live, f"{path}[{key!r}]", item)
    elif isinstance(shown, Sequence) and not isinstance(shown, (str, bytes)):
        trace.leaves[path] = f"{type(shown).__name__} of {len(shown)}"
        for index, item in enumerate(shown):
            _note(trace, live, f"{path}[{index}]", item)
    elif dataclasses.is_dataclass(shown) and not isinstance(shown, type):
        _note(trace, live, path, {f.name: getattr(shown, f.name) for f in dataclasses.fields(shown)})
    elif isinstance(shown, _PLAIN):
        trace.leaves[path] = shown
    else:
        trace.leaves[path] = type(shown).__name__


def _seen(tensor: Tensor) -> Seen:
    strided = tensor.layout is torch.strided
    with torch.no_grad():
        plain = tensor.detach().as_subclass(Tensor)
        value = (plain if strided else plain.to_dense()).clone().resolve_conj().resolve_neg()
    return Seen(
        value,
        f"{type(tensor).__name__} {tensor.layout} {tensor.is_conj()} {tensor.is_neg()}",
        tuple(tensor.stride()) if strided else (),
        tensor.requires_grad,
        _is_leaf(tensor),
        tensor.is_inference(),
    )


def _is_leaf(tensor: Tensor) -> bool | None:
    try:
        return tensor.is_leaf
    except RuntimeError:
        return None


def _finish(trace: Trace, live: list[tuple[str, Tensor, int]]) -> None:
    storages: dict[int, tuple[str, int]] = {}
    objects: dict[int, str] = {}
    for path, tensor, first in live:
        trace.late[path] = _seen(tensor)
        trace.written[path] = version_of(tensor) != first
        trace.same[path] = objects.setdefault(id(tensor), path)
        if tensor.layout is torch.strided and tensor.numel():
            place = int(tensor.storage_offset()) * tensor.element_size()
            name, start = storages.setdefault(_memory(tensor), (path, place))
            trace.sharing[path] = (name, place - start)


def _memory(tensor: Tensor) -> int:
    """Where a tensor's memory is; a number of its own for what a function transform has left wrapped."""
    try:
        return tensor.untyped_storage().data_ptr()
    except RuntimeError:
        return -id(tensor)


def _state(before: dict[str, object]) -> dict[str, Any]:
    """The state that calls leave behind; of what may be set around a run whether it is as ``before``."""
    return {
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "autocast dtype": torch.get_autocast_dtype("cpu"),
        "autocast depth": autocast_depth(),
        "default dtype": torch.get_default_dtype(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        **{name: "as before" if held == before[name] else held for name, held in _around().items()},
        "random state": hashlib.sha256(bytes(torch.get_rng_state().tolist())).hexdigest(),
    }


def _around() -> dict[str, object]:
    """What may be set around a run, as hooks on saved tensors are for one that keeps copies."""
    return {
        "anomaly mode": torch.is_anomaly_enabled(),
        "precision of products": torch.get_float32_matmul_precision(),
        "threads": torch.get_num_threads(),
        **state_of_thread(),
    }


@contextmanager
def _state_kept() -> Iterator[None]:
    grad, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    autocast, kind = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    deterministic, generator = torch.are_deterministic_algorithms_enabled(), torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_grad_enabled(grad)
        torch.set_default_dtype(dtype)
        torch.set_autocast_enabled("cpu", autocast)
        torch.set_autocast_dtype("cpu", kind)
        torch.use_deterministic_algorithms(deterministic)
        torch.set_rng_state(generator)
