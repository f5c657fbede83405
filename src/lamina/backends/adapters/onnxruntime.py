"""ONNX Runtime on the CPU: graphs become ONNX models, sessions run them."""

from __future__ import annotations

from typing import Any

import torch

from lamina.backends.adapters.onnx_backend import onnx_backend
from lamina.backends.adapters.optional import optional

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


ONNXRUNTIME = onnx_backend(
    "onnxruntime", _Session, (torch.float32, torch.float64, torch.int64, torch.int32, torch.bool)
)
"""Inference on the CPU by ONNX Runtime; sizes are fixed when it compiles, and what has no translation is left out."""
