"""Triton kernels of the user's own, launched between the kernels of a region."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Node

from lamina.base.user_kernels import UserKernel, name_user_kernel
from lamina.ir.index import Expr, as_expr
from lamina.lower.context import Lowering
from lamina.lower.custom_memory import as_in_eager, writable
from lamina.lower.rules import CannotLower
from lamina.lower.torch_private import triton_constants, triton_kernel
from lamina.lower.values import TensorValue

__all__ = ["TRITON_LAUNCH", "kernel_name", "launch_user_kernel"]

TRITON_LAUNCH = "triton_kernel_wrapper_functional"
"""The higher-order operation that a captured ``kernel[grid](...)`` becomes."""

_REASON = "a Triton kernel of the user's own"


def launch_user_kernel(low: Lowering, env: Mapping[Node, Any], node: Node, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Append the launch; the new values of the tensors the kernel writes to, by parameter.

    Raises ``CannotLower`` for a launch with descriptors of the tensor memory accelerator, which ATen then runs.
    """
    if node.kwargs.get("tma_descriptor_metadata"):
        raise CannotLower(f"{node.name} passes tensor descriptors")
    kernel, constants = triton_kernel(int(kwargs["kernel_idx"])), triton_constants(int(kwargs["constant_args_idx"]))
    given: Any = node.kwargs["kwargs"]
    values: dict[str, Any] = kwargs["kwargs"]
    written: list[str] = [str(name) for name in kwargs["tensors_to_clone"] if isinstance(values[name], TensorValue)]
    others = [n for name, n in given.items() if name not in written and isinstance(n, Node)]
    results: dict[str, Any] = {}
    arguments: list[Any] = []
    for name, value in values.items():
        if name in written:
            rest = others + [n for other, n in given.items() if other in written and other != name]
            results[name] = value = writable(low, env, node, given[name], rest)
        if isinstance(value, TensorValue):
            operand = given[name]
            assert isinstance(operand, Node)
            arguments.append(as_in_eager(low, node, operand, value))
        elif isinstance(value, Expr | int | float | bool | str | None):
            arguments.append(value)
        else:
            raise CannotLower(f"{node.name} passes a {type(value).__name__}")
    op = name_user_kernel(kernel_name(node), UserKernel(kernel, tuple(values), constants))
    grids = tuple(tuple(_extent(node, n) for n in grid) for grid in kwargs["grid"])
    mutated = tuple(dict.fromkeys(r.buffer for r in results.values()))
    low.library(node, op, (grids, *arguments), {}, (), _REASON, mutates=mutated)
    return results


def kernel_name(node: Node) -> str:
    """The name of the function that the user wrote, under autotuning and heuristics."""
    kernel: Any = triton_kernel(int(node.kwargs["kernel_idx"]))  # type: ignore[arg-type]
    while not hasattr(kernel, "__name__") and hasattr(kernel, "fn"):
        kernel = kernel.fn
    return re.sub(r"\W", "_", str(getattr(kernel, "__name__", "kernel")))


def _extent(node: Node, value: Any) -> Expr:
    if isinstance(value, torch.SymFloat | float) or not isinstance(value, Expr | int):
        raise CannotLower(f"{node.name} has a grid of {type(value).__name__}")
    return as_expr(value)
