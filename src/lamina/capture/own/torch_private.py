"""Private torch names of our own front end: state, modes and fake tensors, as read in torch 2.11 to 2.13."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._C import _functorch
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.autograd import forward_ad
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from lamina.base.devices import kind_of
from lamina.base.fakes.torch_private import empty_strided
from lamina.capture.own.saved_tensors.torch_private import itself

__all__ = [
    "FUNCTIONS_OF_TORCH",
    "LAYERS",
    "LEADING_OUT",
    "SETTINGS",
    "SET_GRAD",
    "as_plain_tensors",
    "asking_numbers",
    "autocast_states",
    "compiling",
    "fake_mode",
    "has_other_modes",
    "held_beneath",
    "in_ordinary_state",
    "is_fake",
    "is_plain",
    "is_wrapped",
    "looking_like",
    "meta_tensor",
    "mode_with_numbers",
    "out_of_inference_mode",
    "paused",
    "recording",
    "resumed",
    "settings",
    "take_place",
    "unhooked",
    "unseen",
    "without_function_modes",
]

FUNCTIONS_OF_TORCH: type = type(torch._C._VariableFunctions)
"""The class of the object that has functions of torch's as attributes, which nothing changes."""
SET_GRAD: Callable[[bool], None] = torch._C._set_grad_enabled
"""What switches the grad mode, which function modes see."""

LEADING_OUT = frozenset(("_base", "_backward_hooks"))
"""Private attributes of a tensor that lead to what is in no graph: what it is a view of, and its hooks."""
LAYERS: dict[Any, str] = {
    torch._transformer_encoder_layer_fwd: "encoder layer",
    torch._native_multi_head_attention: "attention",
}
"""Functions that compute a whole layer where no gradient is wanted."""

as_plain_tensors = torch._C.DisableTorchFunctionSubclass
"""A context in which operations see no class of a tensor's."""
is_wrapped: Callable[[torch.Tensor], bool] = _functorch.is_functorch_wrapped_tensor
"""Whether a tensor is one of a ``torch.func`` transform's."""
unseen = torch._C.DisableTorchFunction
"""A context in which no function mode and no class of a tensor's sees operations."""
_function_modes: Callable[[], list[Any]] = _get_current_function_mode_stack


def in_ordinary_state() -> bool:
    """Whether no function or dispatch mode, no ``torch.func`` transform, no dual level and no trace is in progress."""
    return not (
        _function_modes()
        or _get_current_dispatch_mode_stack()
        or _functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
        or torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
    )


def autocast_states() -> tuple[Any, ...]:
    """What autocast does on CPUs and GPUs: (device, enabled, dtype) each, and whether it caches casts."""
    enabled, dtype = torch.is_autocast_enabled, torch.get_autocast_dtype
    return (
        ("cpu", enabled("cpu"), dtype("cpu")),
        ("cuda", enabled("cuda"), dtype("cuda")),
        torch.is_autocast_cache_enabled(),
    )


def settings() -> tuple[Any, ...]:
    """What torch's settings say that decides how operations compute."""
    return tuple(ask() for ask in SETTINGS)


SETTINGS: tuple[Callable[[], Any], ...] = (
    torch.get_default_dtype,
    torch._C._get_deterministic_algorithms,
    torch._C._get_float32_matmul_precision,
    torch.get_num_threads,
    torch._C._get_cudnn_benchmark,
    torch._C._get_cudnn_deterministic,
    torch._C._get_cudnn_enabled,
    torch.is_inference_mode_enabled,
)
"""Functions that tell torch's settings."""


def has_other_modes() -> bool:
    """Whether there are function modes beside that which records."""
    return len(_function_modes()) > 1


def out_of_inference_mode() -> contextlib.AbstractContextManager[None]:
    """Tensors without values are made within, which remember what they are views of; without gradients, as before."""
    return _out_of_inference_mode() if torch.is_inference_mode_enabled() else _AS_IT_IS


_AS_IT_IS = contextlib.nullcontext()


@contextlib.contextmanager
def _out_of_inference_mode() -> Iterator[None]:
    with torch.inference_mode(False), torch.no_grad():
        yield


@contextlib.contextmanager
def without_function_modes() -> Iterator[None]:
    """No function mode for what is done within."""
    popped: list[Any] = []
    try:  # which an interrupt may end anywhere
        while torch._C._len_torch_function_stack():
            popped.append(torch._C._pop_torch_function_stack())
        yield
    finally:
        _surely(_put_back, popped)


def _put_back(modes: list[Any]) -> None:
    while modes:
        torch._C._push_on_torch_function_stack(modes.pop())


def _surely(undo: Callable[[Any], Any], what: Any) -> None:
    """``undo(what)``, once more if an interrupt ends it."""
    try:
        undo(what)
    except BaseException:
        undo(what)
        raise


@contextlib.contextmanager
def recording(mode: Any) -> Iterator[None]:
    """``mode`` on top of the function modes."""
    try:
        torch._C._push_on_torch_function_stack(mode)
        yield
    finally:
        _surely(paused, mode)


def paused(mode: Any) -> bool:
    """Take ``mode`` off the function modes, if it is on top; whether it was."""
    stack = _function_modes()
    if not stack or stack[-1] is not mode:
        return False
    torch._C._pop_torch_function_stack()
    return True


def resumed(mode: Any) -> bool:
    """Put ``mode`` on top of the function modes, unless the program has entered modes of its own; whether it is."""
    if not in_ordinary_state():
        return False
    torch._C._push_on_torch_function_stack(mode)
    return True


def fake_mode() -> Any:
    """A mode in which operations compute no values."""
    return FakeTensorMode(allow_non_fake_inputs=False)


def mode_with_numbers() -> Any:
    """The same for graphs that ask tensors for numbers, which have no values then."""
    shapes = importlib.import_module("torch.fx.experimental.symbolic_shapes")  # which takes long to load
    return FakeTensorMode(allow_non_fake_inputs=False, shape_env=shapes.ShapeEnv())


def asking_numbers(mode: Any) -> contextlib.AbstractContextManager[Any]:
    """Numbers that are made within belong to nobody."""
    found: contextlib.AbstractContextManager[Any] = mode.shape_env.ignore_fresh_unbacked_symbols()
    return found


def compiling(mode: Any) -> contextlib.AbstractContextManager[Any]:
    """A graph is compiled within, whose tensors without values are of ``mode``; AOTAutograd notes what it finds."""
    return tracing(TracingContext(mode))


@contextlib.contextmanager
def unhooked() -> Iterator[None]:
    """Computation of which hooks of the caller's on saved tensors see nothing, and torch logs no errors."""
    before, _LOG.disabled = _LOG.disabled, True
    try:
        with torch.autograd.graph.saved_tensors_hooks(itself, itself):
            yield
    finally:
        _LOG.disabled = before


_LOG = logging.getLogger("torch._subclasses.fake_tensor")
"""Where torch writes each error of a computation without values, which are eager's to tell."""


def is_from_a_hook(error: BaseException) -> bool:
    """Whether the caller's hook on saved tensors raised ``error``, as those of non-reentrant checkpoints do."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    code = getattr(inspect.unwrap(hooks[0]), "__code__", None) if hooks else None
    return code is not None and any(frame.f_code is code for frame, _ in traceback.walk_tb(error.__traceback__))


def looking_like(tensor: torch.Tensor) -> Any:
    """A tensor with the size, strides, offset, dtype and device of ``tensor``, and its conj and neg bits."""
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    offset = tensor.storage_offset()
    if offset == 0:
        made = empty_strided(tensor.size(), tensor.stride(), tensor.dtype, tensor.device)
    else:
        memory = torch.empty(offset + max(extent, 0), dtype=tensor.dtype, device=tensor.device)
        made = memory.as_strided(tensor.size(), tensor.stride(), offset).detach()
    made = torch._conj(made) if tensor.is_conj() else made
    return torch._neg_view(made) if tensor.is_neg() else made


def cause_of_error(error: Exception) -> str:
    """Why a call without values raised ``error``: "size", "value" or "formula", or "" where eager raises it too."""
    if isinstance(error, DynamicOutputShapeException):
        return "size"
    shapes = importlib.import_module("torch.fx.experimental.symbolic_shapes")
    if isinstance(error, DataDependentOutputException | shapes.GuardOnDataDependentSymNode):
        return "value"
    return "formula" if isinstance(error, UnsupportedOperatorException) else ""


def is_fake(value: Any) -> bool:
    """Whether ``value`` is a tensor without values."""
    return isinstance(value, FakeTensor)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is an ordinary one in memory, of which a fake one tells all."""
    return (
        tensor.layout is torch.strided
        and not tensor.is_nested
        and kind_of(tensor).generated
        and not tensor.is_quantized
        and (not tensor.is_inference() or torch.is_inference_mode_enabled())
        and not _functorch.is_functorch_wrapped_tensor(tensor)
        and not is_fake(tensor)
    )


def meta_tensor(kind: type[torch.Tensor], fake: torch.Tensor) -> Any:
    """A tensor of class ``kind`` that looks as ``fake`` does and has no memory."""
    return torch.Tensor._make_wrapper_subclass(
        kind,
        fake.size(),
        strides=fake.stride(),
        storage_offset=fake.storage_offset(),
        dtype=fake.dtype,
        layout=fake.layout,
        device=fake.device,
        requires_grad=fake.requires_grad,
    )


def held_beneath(tensor: torch.Tensor) -> int:
    """How many references to the object ``tensor`` are of the tensor beneath it."""
    uses: int = tensor._use_count()  # type: ignore[attr-defined]
    return _KEPT if uses > 1 else 0


def _kept_for_others() -> int:
    """References that a tensor has to its own object while others hold it beneath Python: one, in newer versions."""
    tensor = torch.empty(1)
    before = sys.getrefcount(tensor)
    view = tensor.view(1)
    kept = sys.getrefcount(tensor) - before
    del view
    return kept


_KEPT = _kept_for_others()


def take_place(made: torch.Tensor, real: torch.Tensor) -> None:
    """Make the object ``made`` the tensor that ``real`` is, for those too who hold that tensor beneath Python.

    ``torch.utils.swap_tensors`` refuses where autograd holds one, as it does of a result that others depend on.
    """
    hooks = real._backward_hooks
    made.__class__, real.__class__ = real.__class__, made.__class__
    made.__dict__, real.__dict__ = real.__dict__, made.__dict__
    torch._C._swap_tensor_impl(made, real)
    if hooks is not None:  # which belong to the object
        made._backward_hooks = hooks
