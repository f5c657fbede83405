"""ONNX Runtime on the CPU: graphs become ONNX models, sessions run them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from lamina.backends.adapters.onnx_graph import onnx_model, translates
from lamina.backends.adapters.optional import optional
from lamina.backends.api import Backend

__all__ = ["ONNXRUNTIME"]


class _Session:
    """A model and the session that runs it. Every call's outputs are fresh memory."""

    def __init__(self, model: bytes) -> None:
        runtime = optional("onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3  # errors only
        self.model = model
        try:
            self.session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # a class that only the package knows
            raise NotImplementedError(f"ONNX Runtime does not take it: {error}") from error
        self.inputs = [one.name for one in self.session.get_inputs()]

    def __call__(self, *inputs: Any) -> list[torch.Tensor]:
        arrays = {name: x.detach().contiguous().numpy() for name, x in zip(self.inputs, inputs, strict=True)}
        numpy = optional("numpy")
        return [torch.from_numpy(numpy.asarray(out)) for out in self.session.run(None, arrays)]


def _compile(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    del example_inputs
    return _Session(onnx_model(gm))


def _save(compiled: Callable[..., Any]) -> bytes:
    assert isinstance(compiled, _Session)
    return compiled.model


def _load(data: bytes, gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    del gm, example_inputs
    return _Session(data)


ONNXRUNTIME = Backend(
    "onnxruntime",
    _compile,
    devices=("cpu",),
    dtypes=(torch.float32, torch.float64, torch.int64, torch.int32, torch.bool),
    training=False,
    dynamic=False,
    supports=translates,
    save=_save,
    load=_load,
    version="1",
    requires=("onnx", "onnxruntime"),
)
"""Inference on the CPU by ONNX Runtime; sizes are fixed when it compiles, and what has no translation is left out."""
