"""What is said of an operation's result without asking it is what it gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from lamina.rewrite.known import known_result

aten = torch.ops.aten
X = (3, 5, 8)


def _x(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.rand(shape or X, dtype=dtype)


def _targets(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64)


KNOWN: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "layer norm": (aten.layer_norm.default, (_x(), [8], _x(8), _x(8), 1e-5)),
    "layer norm, bare": (aten.layer_norm.default, (_x(), [5, 8])),
    "layer norm, half": (aten.layer_norm.default, (_x(dtype=torch.bfloat16), [8], _x(8, dtype=torch.bfloat16))),
    "rms norm": (aten.rms_norm.default, (_x(), [8], _x(8), 1e-6)),
    "rms norm, half": (aten.rms_norm.default, (_x(dtype=torch.bfloat16), [8])),
    "softmax": (aten.softmax.int, (_x(), -1)),
    "softmax, first": (aten.softmax.int, (_x(), 0)),
    "softmax, one row": (aten.softmax.int, (torch.rand(1, 8).as_strided((1, 8), (3, 1)), -1)),
    "log-softmax": (aten.log_softmax.int, (_x(dtype=torch.float16), 1)),
    "cross entropy": (aten.cross_entropy_loss.default, (_x(4, 6), _targets(4), None, 0)),
    "cross entropy, mean": (aten.cross_entropy_loss.default, (_x(4, 6), _targets(4))),
    "cross entropy, half": (aten.cross_entropy_loss.default, (_x(4, 6, dtype=torch.bfloat16), _targets(4), None, 2)),
}

LEFT: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "an operation it does not know": (aten.exp.default, (_x(),)),
    "a norm over another size": (aten.layer_norm.default, (_x(), [7])),
    "a weight of another size": (aten.layer_norm.default, (_x(), [8], _x(5))),
    "a weight of another dtype": (aten.rms_norm.default, (_x(dtype=torch.bfloat16), [8], _x(8))),
    "a norm of whole numbers": (aten.layer_norm.default, (_targets(2, 8), [8])),
    "a transposed operand": (aten.softmax.int, (_x().mT, -1)),
    "a cast": (aten.softmax.int, (_x(), -1, torch.float64)),
    "a dimension that is not there": (aten.softmax.int, (_x(), 3)),
    "another number of targets": (aten.cross_entropy_loss.default, (_x(4, 6), _targets(3))),
    "probabilities as targets": (aten.cross_entropy_loss.default, (_x(4, 6), _x(4, 6))),
    "weights of classes": (aten.cross_entropy_loss.default, (_x(4, 6), _targets(4), _x(6))),
    "smoothed labels": (aten.cross_entropy_loss.default, (_x(4, 6), _targets(4), None, 1, -100, 0.1)),
    "pictures": (aten.cross_entropy_loss.default, (_x(4, 6, 3), _targets(4, 3))),
}


@pytest.mark.parametrize("name", KNOWN)
def test_it_is_what_the_operation_gives(name: str) -> None:
    operation, args = KNOWN[name]
    real = operation(*args)
    mode = FakeTensorMode()
    fakes = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in args]
    with mode:
        told, asked = known_result(operation, fakes, {}), operation(*fakes)
    assert told is not None
    for one in (real, asked):
        assert (told.shape, told.stride(), told.dtype) == (one.shape, one.stride(), one.dtype)
    assert told.device == asked.device


@pytest.mark.parametrize("name", LEFT)
def test_anything_else_is_left_to_the_operation(name: str) -> None:
    operation, args = LEFT[name]
    assert known_result(operation, args, {}) is None


def test_sizes_that_are_symbols_are_left_to_the_operation() -> None:
    seen: list[torch.Tensor] = []

    def keep(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        values = [n.meta["example_value"] for n in gm.graph.find_nodes(op="placeholder")]
        seen.extend(v for v in values if isinstance(v, torch.Tensor))
        assert known_result(aten.softmax.int, (seen[0], -1), {}) is None
        return gm.forward

    torch.compiler.reset()
    torch.compile(lambda x: torch.softmax(x, -1), backend=keep, dynamic=True)(_x())
    assert any(not isinstance(n, int) for n in seen[0].shape)
