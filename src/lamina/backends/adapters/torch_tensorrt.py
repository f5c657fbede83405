"""Torch-TensorRT: captured graphs handed to its own backend for torch.compile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import GraphModule

from lamina.backends.adapters.optional import optional
from lamina.backends.api import Backend
from lamina.backends.torch_private import torch_backend

__all__ = ["TORCH_TENSORRT"]


def _compile(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    optional("torch_tensorrt")  # registers itself
    compiled: Callable[..., Any] = torch_backend("torch_tensorrt")(gm, list(example_inputs))
    return compiled


TORCH_TENSORRT = Backend(
    "torch_tensorrt",
    _compile,
    graph="torch",
    devices=("cuda",),
    training=False,
    dynamic=False,
    requires=("torch_tensorrt",),
)
"""Inference on a GPU by TensorRT; what it does not take it leaves to torch itself."""
