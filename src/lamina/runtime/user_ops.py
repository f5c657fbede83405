"""What host programs call for operations and kernels of the user's own.

An operation made with ``torch.library.custom_op`` takes 15 to 30 microseconds on its way through the dispatcher, most
of them for autograd, which a compiled region has behind it. Here its function is called directly, with the same check
that what it returns shares no memory with what it was given.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from lamina.base.user_kernels import user_kernel
from lamina.errors import BadArgument
from lamina.runtime.host import aten
from lamina.runtime.torch_private import below_autograd, dispatch_is_watched, python_functions, shares_memory

__all__ = ["user_kernel", "user_op", "wrong_result"]


def user_op(op: str, device: str) -> Callable[..., Any]:
    """The operation ``op`` ("space.name.overload") as a region calls it for tensors on "cpu" or "cuda".

    That is its Python function for that device where it has one, otherwise the operation itself.
    """
    space, _, name = op.partition(".")
    overload: Any = aten(f"{space}::{name}")
    functions = python_functions(overload)
    if functions is None or (device not in functions and None not in functions):
        return overload  # type: ignore[no-any-return]
    which = device if device in functions else None
    below = below_autograd()

    def call(*args: Any, **kwargs: Any) -> Any:
        if dispatch_is_watched():
            return overload(*args, **kwargs)
        # Looked up at each call, since another may be registered; without the shell that hides it from capture,
        # which a compiled region is not part of.
        function = functions[which]
        function = getattr(function, "__wrapped__", function)
        with below():
            result = function(*args, **kwargs)
        if result is not None and shares_memory(args, kwargs, result):
            raise RuntimeError(_aliasing(op, function))
        return result

    return call


def wrong_result(op: str, result: torch.Tensor, shape: Sequence[int], dtype: torch.dtype) -> BadArgument:
    """The error to raise when an operation returned something else than its fake implementation says."""
    found = f"{result.dtype} of shape {list(result.shape)}"
    return BadArgument(
        f"the custom operation {op} returned {found}, where its register_fake says {dtype} of shape {list(shape)}",
        remedy="make register_fake return an empty tensor of the shape and dtype that the operation returns",
    )


def _aliasing(op: str, function: Callable[..., Any]) -> str:
    module = inspect.getmodule(function)
    where = "" if module is None else f" (with implementation in {module.__name__})"
    return (
        f"{op}{where}: what a custom operation returns must not be one of its inputs, nor share memory with one or "
        "with another result; return a clone instead"
    )
