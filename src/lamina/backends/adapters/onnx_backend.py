"""Backends that run ONNX models: they differ in what runs a model, and in the dtypes it computes exactly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch.fx import GraphModule

from lamina.backends.adapters.onnx_graph import onnx_model, translates
from lamina.backends.api import Backend

__all__ = ["onnx_backend"]


class _Session(Protocol):
    """A model ready to run, and its bytes."""

    model: bytes

    def __call__(self, *inputs: Any) -> list[torch.Tensor]: ...


def onnx_backend(name: str, session: Callable[[bytes], _Session], dtypes: tuple[torch.dtype, ...]) -> Backend:
    """Inference on the CPU by the package ``name``; sizes are fixed when a graph is compiled.

    ``session`` makes a model of ``dtypes`` ready, or raises ``NotImplementedError`` with the reason.
    """

    def compile(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        del example_inputs
        return session(onnx_model(gm))

    def save(compiled: Any) -> bytes:
        model: bytes = compiled.model
        return model

    def load(data: bytes, gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        del gm, example_inputs
        return session(data)

    return Backend(
        name,
        compile,
        devices=("cpu",),
        dtypes=dtypes,
        training=False,
        dynamic=False,
        supports=translates,
        save=save,
        load=load,
        version="2",
        requires=("onnx", name),
    )
