"""On models written the naive way, the intended rewrites are made, and values and gradients stay."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from lamina.record import Record
from lamina.rewrite.rules import activations, attention
from tests.rewrite.naive_models import MODELS, NaiveModel
from tests.rewrite.rules.capturing import applied, rewritten, run_changed

LEAST = 0.95


def _made(model: NaiveModel) -> Counter[str]:
    """Run the rewritten model against the model itself; the rewrites that were made, by the first words of rules."""
    torch.manual_seed(0)
    network, inputs, record = model.build(), model.inputs(), Record()
    found, _ = run_changed(network, inputs, rewritten(record, finite=True))
    expected = network(*inputs)
    close = {"rtol": 2e-4, "atol": 2e-5}
    torch.testing.assert_close(found, expected, **close)
    for one, other in zip(_gradients(network, found), _gradients(network, expected), strict=True):
        torch.testing.assert_close(one, other, **close)
    return Counter(kind for name in applied(record) for kind in model.intended if name.startswith(kind))


def _gradients(network: torch.nn.Module, result: object) -> tuple[torch.Tensor | None, ...]:
    tensors = result if isinstance(result, tuple) else (result,)
    total = sum(t.square().sum() for t in tensors)
    return torch.autograd.grad(total, list(network.parameters()), allow_unused=True)


def test_the_intended_rewrites_are_made(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    # The models are small; which rewrites pay at which size is measured elsewhere.
    monkeypatch.setattr(attention, "reason_against", lambda *args, **kwargs: "")
    monkeypatch.setattr(activations, "_memory_bound", lambda x: True)
    rows, wanted, done = [], 0, 0
    for name, model in MODELS.items():
        made = _made(model)
        for kind, count in model.intended.items():
            rows.append(f"{name:16} {kind:24} {made[kind]} of {count}")
            wanted, done = wanted + count, done + min(made[kind], count)
    with capsys.disabled():
        print("\n" + "\n".join(rows) + f"\n{done} of {wanted} intended rewrites")
    assert len(MODELS) == 12
    assert done >= LEAST * wanted, "\n".join(rows)
