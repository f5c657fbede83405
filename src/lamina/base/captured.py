"""What tracing noted on the nodes of a captured graph: the fake tensors they stand for and whose memory those are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from lamina.base.symbolic.torch_private import is_fake
from lamina.base.torch_private import storage_of

__all__ = [
    "MODULES",
    "NOTES",
    "OF_A_MODULE",
    "UNSEEN_RESULTS",
    "argument",
    "example",
    "fakes",
    "is_custom_function",
    "mark_unsaved_result",
    "may_be_alike",
    "memory",
    "tensors",
    "unsaved_result",
]

NOTES = "custom"
"""The ``meta`` that AOTAutograd gives to all that it traces of a node, and to what it traces of its gradient."""
_UNSAVED_RESULT = "lamina_unsaved_result"
MODULES = "nn_module_stack"
"""The ``meta`` with the modules that a node computes for, from the outermost one on: paths and classes."""
OF_A_MODULE = "of_a_module"
"""The ``meta`` of an input that is a parameter or buffer, where results of such may be kept."""
UNSEEN_RESULTS = "unseen_results"
"""The ``meta`` of an output: the places of results that other graphs read and nobody else, so that none is watched."""


def example(node: Any) -> Any:
    """The value that tracing had for ``node``, None for an argument that is no node."""
    return node.meta.get("example_value") if isinstance(node, Node) else None


def argument(value: Any) -> Any:
    """The value that tracing had for an argument of a captured call: the argument itself if it is no node."""
    return example(value) if isinstance(value, Node) else value


def mark_unsaved_result(node: Node) -> None:
    """Note that ``node`` gives what another call gave whose gradient does not ask for its result, as this one's may."""
    node.meta[NOTES] = {**(node.meta.get(NOTES) or {}), _UNSAVED_RESULT: node.name}


def unsaved_result(node: Node) -> str | None:
    """The name of the call so marked that ``node`` was traced of, or of whose gradient it was."""
    name: str | None = (node.meta.get(NOTES) or {}).get(_UNSAVED_RESULT)
    return name


def is_custom_function(node: Node) -> bool:
    """Whether ``node`` calls a custom ``torch.autograd.Function``."""
    return getattr(node.target, "__name__", "") == "autograd_function_apply"


def tensors(node: Node) -> list[torch.Tensor]:
    """The tensors among the results of ``node``."""
    return [one for one in _results(node) if isinstance(one, torch.Tensor)]


def fakes(node: Node) -> list[Any]:
    """The fake tensors among the results of ``node``."""
    return [one for one in _results(node) if is_fake(one)]


def _results(node: Node) -> Sequence[Any]:
    value = example(node)
    return value if isinstance(value, (tuple, list)) else (value,)


def memory(value: Any) -> Any:
    """What tells the memory of a fake tensor from that of others; None for other values, and without strides."""
    return storage_of(value) if is_fake(value) and value.layout is torch.strided else None


def may_be_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one memory may have the same elements in the same order: no number tells them apart."""
    if one.dtype != other.dtype or one.dim() != other.dim():
        return False
    places = [(*x.shape, x.storage_offset(), *_steps(x)) for x in (one, other)]
    return all(not (isinstance(a, int) and isinstance(b, int)) or a == b for a, b in zip(*places, strict=True))


def _steps(tensor: torch.Tensor) -> list[Any]:
    """The strides, None where a dimension may have a single element, whose stride says nothing."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return [step if isinstance(size, int) and size != 1 else None for size, step in sizes]
