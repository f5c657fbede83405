"""What editing FX graphs takes from torch beyond its documented interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule
from torch.fx import graph as code_of_graphs
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.utils._python_dispatch import TorchDispatchMode, autograd_would_have_decomposed

from lamina.base.recipes import captured

__all__ = [
    "DEVICE_OF",
    "DispatchMode",
    "autograd_decomposes",
    "calls_of",
    "flatten",
    "forward_of",
    "graph_module",
    "unflatten",
    "write_powers",
]

DEVICE_OF = torch.ops.prim.device.default
"""How a dispatch mode sees the question for a fake tensor's device: not an operation of a graph."""


def graph_module(root: GraphModule, graph: Graph, *, with_meta: bool = True) -> GraphModule:
    """A graph module whose Python code is only generated when something runs or prints it.

    It shares the ``meta`` of ``root`` if ``with_meta``; else it has an empty one of its own.
    """
    result = _LazyGraphModule(root, graph)
    if with_meta:
        result.meta = root.meta
    return result


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode: sees every operation of its thread below what is active outside."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()  # type: ignore[no-untyped-call]


def autograd_decomposes(operation: OpOverload, args: Any, kwargs: Any) -> bool:
    """Whether ``operation`` on these operands is nothing but a sequence of others."""
    return bool(autograd_would_have_decomposed(operation, pytree.tree_leaves((args, kwargs))))


def flatten(value: Any) -> tuple[list[Any], Any]:
    """The leaves of nested tuples, lists and dicts, and how they nest."""
    leaves, spec = pytree.tree_flatten(value)
    return leaves, spec


def unflatten(leaves: Sequence[Any], spec: Any) -> Any:
    """The inverse of ``flatten``."""
    return leaves[0] if spec.is_leaf() else pytree.tree_unflatten(list(leaves), spec)


class _Power(str):
    """How a power is written: with a negative base in parentheses, since ``-2 ** x`` is ``-(2 ** x)``."""

    def format(self, base: str, exponent: str) -> str:  # type: ignore[override]
        return f"({base}) ** {exponent}" if base.startswith("-") else f"{base} ** {exponent}"


def write_powers() -> None:
    """Let the Python code of graphs have powers of negative numbers, which torch writes without parentheses."""
    powers: dict[str, str] = code_of_graphs.magic_methods
    powers["pow"] = _Power("{} ** {}")


def forward_of(gm: GraphModule) -> Callable[..., Any]:
    """The function of a graph, its Python code generated: else the first call is one of the module, which prints."""
    _LazyGraphModule.force_recompile(gm)
    return gm.forward


def calls_of(gm: GraphModule) -> Callable[..., Any]:
    """The calls of a graph, which are made one by one; another process can make them too."""
    forward: Callable[..., Any] | None = None

    def calls(*inputs: Any) -> Any:
        nonlocal forward
        if forward is None:
            forward = forward_of(gm)
        return forward(*inputs)

    captured(calls, gm, ())
    return calls
