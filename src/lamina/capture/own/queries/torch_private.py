"""Private torch names of what asks for torch's state and devices, as read in torch 2.11 to 2.13."""

from __future__ import annotations

import sys
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch.overrides import get_overridable_functions
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from lamina.capture.own.torch_private import SET_GRAD, autocast_states

__all__ = [
    "DEVICE_QUERIES",
    "FUNCTION_MODES_ENTERED",
    "STATE_QUERIES",
    "STATE_READERS",
    "asks_for_compiling",
    "is_autocast_switch",
    "overridable",
]

_MAKERS = (
    "arange bartlett_window blackman_window empty empty_strided eye full hamming_window hann_window kaiser_window "
    "linspace logspace ones rand rand_like randint randint_like randn randn_like randperm range scalar_tensor tensor "
    "tril_indices triu_indices zeros"
)
"""Functions that make tensors of numbers, which modes see though no class of tensors overrides them."""


def overridable() -> frozenset[int]:
    """Identities of the functions and methods of torch's that function modes see."""
    found = get_overridable_functions()
    makers = (getattr(torch, name) for name in _MAKERS.split())
    lists = (function for name, function in vars(torch).items() if name.startswith("_foreach_"))
    return frozenset(
        map(id, (SET_GRAD, *makers, *lists, *(function for functions in found.values() for function in functions)))
    )


DEVICE_QUERIES: frozenset[Any] = frozenset(
    (
        torch.cuda.is_available,
        torch.cuda.is_initialized,
        torch.cuda.device_count,
        torch.cuda.is_current_stream_capturing,
        torch.backends.cuda.flash_sdp_enabled,
        torch.backends.cuda.math_sdp_enabled,
        torch.backends.cuda.mem_efficient_sdp_enabled,
        torch.backends.cuda.cudnn_sdp_enabled,
    )
)
"""Functions of torch's that ask for devices and how they are used, and change nothing."""

_ASK_FOR_COMPILING = frozenset(("torch.compiler", "torch._utils", "torch._dynamo.external_utils"))


def asks_for_compiling(function: Any) -> bool:
    """Whether a function is one of torch's that tell whether ``torch.compile`` captures the program."""
    if type(function) is not FunctionType or function.__name__ != "is_compiling":
        return False
    module = function.__module__
    return module in _ASK_FOR_COMPILING and vars(sys.modules[module]).get("is_compiling") is function


STATE_READERS = frozenset(
    (
        ("torch.distributed.distributed_c10d", "is_initialized"),
        ("torch.distributed.distributed_c10d", "WORLD"),
        ("torch.distributed.distributed_c10d", "default_pg"),
    )
)
"""Functions of torch's, by module and name, that read attributes which tell state, and can be interpreted."""

STATE_QUERIES: frozenset[Any] = frozenset(
    (
        torch.is_grad_enabled,
        torch.is_inference_mode_enabled,
        torch._C._get_tracing_state,
        torch.is_autocast_enabled,
        torch.get_autocast_dtype,
        torch.is_autocast_cache_enabled,
        torch._C._is_any_autocast_enabled,
        torch._C._is_autocast_available,
        torch._C._log_api_usage_once,
        torch._jit_internal.is_scripting,
        torch.jit._trace.is_tracing,
        torch._C._is_tracing,
        torch.compiler.is_compiling,
        torch.compiler.is_dynamo_compiling,
        torch.compiler.is_exporting,
        _get_current_dispatch_mode_stack,  # no mode in the ordinary state
    )
)
"""Functions of torch's that ask for state and change nothing."""

FUNCTION_MODES_ENTERED = torch._C._is_torch_function_mode_enabled
"""Tells whether there is a function mode, of which the recorder is one that the program does not know."""

_OF_A_DEVICE = frozenset((torch.set_autocast_enabled, torch.set_autocast_dtype))
_OF_AUTOCAST: frozenset[Any] = frozenset(
    (
        torch.set_autocast_cache_enabled,
        torch.autocast_increment_nesting,
        torch.autocast_decrement_nesting,
        torch.clear_autocast_cache,
    )
)


def is_autocast_switch(function: Any, args: tuple[Any, ...]) -> bool:
    """Whether a call changes what the state of torch says of autocast, or its levels, and nothing else."""
    if type(function) is not BuiltinFunctionType:
        return False
    if function in _OF_A_DEVICE:
        return len(args) == 2 and args[0] in [kind for kind, *_ in autocast_states()[:-1]]
    return function in _OF_AUTOCAST
