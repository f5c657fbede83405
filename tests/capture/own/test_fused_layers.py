"""Layers that torch computes by one call in evaluation are captured; what is asked of objects in sets is a fact."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from lamina.capture.frame_reasons import BY_CALLS, REUSED
from lamina.capture.own.callable import interpreted_callable
from lamina.record import Record
from tests.capture.own.machines import MACHINES

PADDED = torch.tensor([[False, False, True, True], [False, False, False, False]])
CAUSAL = torch.ones(4, 4, dtype=torch.bool).triu(1)
NUMBERS = torch.linspace(-1.0, 2.0, 16).view(4, 4)


def _compiled(target: Any, machine: str = "python") -> tuple[Any, list[GraphModule], Record]:
    graphs: list[GraphModule] = []
    record = Record()

    def backend(gm: GraphModule, fakes: Any) -> Callable[..., Any]:
        graphs.append(gm)
        return gm.forward

    compiled = interpreted_callable(target, backend_callable=backend, record=record, machine=MACHINES[machine])
    return compiled, graphs, record


@pytest.mark.parametrize(("norm_first", "activation"), [*itertools.product([False, True], ["relu", "gelu"])])
def test_an_encoder_in_evaluation_is_one_graph(norm_first: bool, activation: str) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first, activation=activation)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    compiled, graphs, record = _compiled(model)
    with torch.no_grad():
        for seed in range(3):
            x = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(seed))
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    (graph,) = graphs
    assert REUSED.number in {d.reason.code for d in record.decisions("capture")}
    assert not any("layer_fwd" in str(node.target) for node in graph.graph.nodes)


@pytest.mark.parametrize("mask", [None, CAUSAL, NUMBERS], ids=["no mask", "causal", "numbers"])
@pytest.mark.parametrize("padding", [None, PADDED, ~PADDED | True], ids=["no padding", "padding", "nothing left"])
def test_masks_are_what_they_are_in_eager(mask: Tensor | None, padding: Tensor | None) -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    compiled, graphs, _ = _compiled(model)
    x = torch.randn(2, 4, 8)
    kwargs = {"src_mask": mask, "src_key_padding_mask": None if padding is None else padding.clone()}
    with torch.no_grad():
        wanted = model(x, **kwargs)
        for _ in range(2):
            torch.testing.assert_close(compiled(x, **kwargs), wanted, rtol=1e-4, atol=1e-5, equal_nan=True)
    assert any(node.target is torch.nn.functional.layer_norm for gm in graphs for node in gm.graph.nodes)


@pytest.mark.parametrize("given", [{}, {"need_weights": False}, {"average_attn_weights": False}])
@pytest.mark.parametrize("padding", [None, PADDED], ids=["no padding", "padding"])
def test_attention_in_evaluation(given: dict[str, bool], padding: Tensor | None) -> None:
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()

    def program(x: Tensor) -> Any:
        return attention(x, x, x, key_padding_mask=padding, **given)

    compiled, graphs, record = _compiled(program)
    x = torch.randn(2, 4, 8)
    with torch.no_grad():
        wanted = program(x)
        for _ in range(2):
            found = compiled(x)
            assert [type(one) for one in found] == [type(one) for one in wanted]
            torch.testing.assert_close([*found], [*wanted], rtol=1e-4, atol=1e-5)
    assert len(graphs) == 1
    assert REUSED.number in {d.reason.code for d in record.decisions("capture")}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("training", [True, False])
def test_an_encoder_with_a_mask_is_not_interpreted_again(training: bool, machine: str) -> None:
    """Its attention gives no weights, but None in their place: no graph held such a call."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train(training)
    compiled, graphs, record = _compiled(model, machine)
    causal = nn.Transformer.generate_square_subsequent_mask(4)
    for mask in (causal, causal, causal, causal.flip(0), NUMBERS):
        x = torch.randn(2, 4, 8, requires_grad=True)
        found, wanted = compiled(x, mask=mask), model(x, mask=mask)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5, equal_nan=True)
        grads = (torch.autograd.grad(y.square().sum(), x)[0] for y in (found, wanted))
        torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5, equal_nan=True)
    assert len(graphs) == 2  # what follows the comparison with a causal mask, for one and for others
    assert {REUSED.number, BY_CALLS.number} <= {d.reason.code for d in record.decisions("capture")}


def test_what_is_computed_otherwise_is_left_to_eager() -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    compiled, _, _ = _compiled(model)
    x = torch.randn(2, 4, 8)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(compiled(x), model(x), rtol=0, atol=0)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x[:, :0]), model(x[:, :0]))
    half = model.to(torch.bfloat16)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x.bfloat16()), half(x.bfloat16()), rtol=0, atol=0)


class _Item:
    def __init__(self, by: float) -> None:
        self.by = by


class _Equal(_Item):
    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Item)

    def __hash__(self) -> int:
        return 1


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("holder", [set, list])
def test_which_object_is_in_a_container_is_a_fact(holder: Any, machine: str) -> None:
    items: list[Any] = [_Item(2.0), _Item(3.0), _Item(5.0)]

    def program(x: Tensor) -> Tensor:
        seen = holder()
        for item in items:
            if item not in seen:
                x = x * item.by
            seen.add(item) if holder is set else seen.append(item)
        return x + len(seen)

    compiled, _, record = _compiled(program, machine)
    first, x = items[0], torch.arange(3.0)
    changes: list[Callable[[], Any]] = [
        lambda: None, lambda: None, lambda: items.__setitem__(1, first), lambda: items.__setitem__(2, first),
        lambda: items.__setitem__(1, _Item(7.0)), lambda: items.__setitem__(0, items[1]),
        lambda: items.__setitem__(2, _Equal(4.0)), lambda: items.__setitem__(1, _Equal(6.0)),
        lambda: setattr(_Item, "__eq__", lambda one, other: True),
    ]  # fmt: skip
    try:
        for change in changes:
            change()
            for _ in range(2):
                torch.testing.assert_close(compiled(x), program(x), rtol=0, atol=0)
    finally:
        del _Item.__eq__
    assert REUSED.number in {d.reason.code for d in record.decisions("capture")}
