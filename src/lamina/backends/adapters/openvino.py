"""OpenVINO on the CPU: graphs become ONNX models, which it reads."""

from __future__ import annotations

from typing import Any

import torch

from lamina.backends.adapters.onnx_backend import onnx_backend
from lamina.backends.adapters.optional import optional

__all__ = ["OPENVINO"]


class _Compiled:
    """A model compiled by OpenVINO. Every call's outputs are fresh memory."""

    def __init__(self, model: bytes) -> None:
        openvino = optional("openvino")
        self.model = model
        core = openvino.Core()
        settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
        try:
            self.compiled = core.compile_model(core.read_model(model), "CPU", settings)
        except RuntimeError as error:
            raise NotImplementedError(f"OpenVINO does not take it: {error}") from error

    def __call__(self, *inputs: Any) -> list[torch.Tensor]:
        results = self.compiled([x.detach().contiguous().numpy() for x in inputs], share_outputs=False)
        return [torch.from_numpy(results[out]) for out in self.compiled.outputs]


OPENVINO = onnx_backend("openvino", _Compiled, (torch.float32, torch.bool))
"""Inference on the CPU by OpenVINO in float32: its CPU plugin computes doubles and 64-bit integers in fewer bits."""
