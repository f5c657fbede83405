"""Recurrent layers, where a setting of Dynamo's has them captured: results and gradients are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import lamina
from tests.capture.torch_private import recurrent_layers_captured

OPTIONS = {"compare_eager": "off", "progress": False}
WAYS: dict[str, Callable[[nn.Module], Any]] = {
    "compile": lambda module: lamina.compile(module, options=OPTIONS),
    "behind": lambda module: torch.compile(module, backend="lamina", options=OPTIONS),
}
LAYERS: dict[str, Callable[[], nn.Module]] = {
    "LSTM": lambda: nn.LSTM(4, 5),
    "two layers": lambda: nn.LSTM(4, 5, num_layers=2, bidirectional=True, batch_first=True),
    "frozen bias": lambda: _frozen(nn.LSTM(4, 5)),
    "GRU": lambda: nn.GRU(4, 5),
}


def _frozen(module: nn.LSTM) -> nn.LSTM:
    module.bias_ih_l0.requires_grad_(False)
    return module


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", LAYERS)
def test_weights_are_trained(name: str, way: str) -> None:
    torch.compiler.reset()
    torch.manual_seed(0)
    module, x = LAYERS[name](), torch.randn(3, 2, 4)
    wanted = module(x)[0]
    wanted.square().sum().backward()
    gradients = [None if p.grad is None else p.grad.clone() for p in module.parameters()]
    module.zero_grad()
    with recurrent_layers_captured():
        found = WAYS[way](module)(x)[0]
        found.square().sum().backward()
    torch.testing.assert_close(found, wanted)
    for parameter, gradient in zip(module.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


@pytest.mark.by_dynamo("is about what Dynamo captures")
def test_inference_takes_the_call_of_the_library() -> None:
    torch.compiler.reset()
    module, x = nn.LSTM(4, 5), torch.randn(3, 2, 4)
    with recurrent_layers_captured(), torch.no_grad():
        compiled = lamina.compile(module, options=OPTIONS)
        torch.testing.assert_close(compiled(x)[0], module(x)[0])
    called = {decision.subject[0] for decision in compiled.record.decisions("library")}
    assert "aten.mkldnn_rnn_layer.default" in called
