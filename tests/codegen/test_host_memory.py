"""Large temporaries of host programs for the CPU: memory of their own, or that of an operand written over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import lamina
from lamina.base.machine_target import target_of
from lamina.codegen import host_memory, host_reuse
from lamina.codegen.host import emit_host
from lamina.codegen.reuse import taken_over
from lamina.ir.access import reads, writes
from lamina.ir.plan import Plan
from lamina.lower.to_loops import lower
from lamina.runtime.outputs import release_blocks
from lamina.schedule import loop_planning
from lamina.schedule.fuse import fuse
from lamina.schedule.plan import make_plan


@pytest.fixture(autouse=True)
def own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have small tensors treated as large ones are."""
    monkeypatch.setattr(loop_planning, "_OWN_MEMORY", 1)
    monkeypatch.setattr(host_reuse, "_WORTH_ASKING", 1)
    monkeypatch.setattr(host_memory, "_LARGE", 1)
    release_blocks()


def planned(function: Callable[..., Any], *inputs: Tensor) -> Plan:
    gm = make_fx(function, tracing_mode="fake")(*inputs)
    return make_plan(fuse(lower(gm, "memory")), target_of(torch.device("cpu"), isa="avx2"))


TAKEN: dict[str, tuple[Callable[..., Any], bool]] = {
    "elementwise": (lambda y: y.exp() + 1, True),
    "two results": (lambda y: (y.exp(), y.sin()), True),
    "a row's sum that the result needs": (lambda y: y * y.sum(1, keepdim=True), True),
    "softmax": (lambda y: y.softmax(1), True),
    "a row's sum of its own": (lambda y: (y * 2, y.sum(1)), False),
    "column sums beside": (lambda y: (y * 2, y.sum(0)), False),
    "a result that needs the sum, one that does not": (lambda y: (y * y.sum(1, keepdim=True), y.exp()), False),
    "a running sum": (lambda y: y.cumsum(1) * y, False),
    "turned": (lambda y: y.T.contiguous() + 1, False),
    "another row": (lambda y: y + y.roll(1, 0), False),
}


@pytest.mark.parametrize("name", TAKEN)
def test_what_loops_are_through_with_is_written_over(name: str) -> None:
    function, allowed = TAKEN[name]
    plan = planned(lambda x: function(x @ x), torch.randn(32, 32))
    last = {n: at for at, step in enumerate(plan.steps) for n in reads(step) | writes(step)}
    found = taken_over(plan, {b.name for b in plan.buffers if b.kind != "input"}, last)
    assert ("mm" in found.values()) == allowed


def test_results_are_not_put_in_memory_that_may_be_larger_or_that_was_saved() -> None:
    plan = planned(lambda x: ((x @ x).exp() @ x).sin() @ x, torch.randn(32, 32))
    text = emit_host(plan).text
    assert text.count("its last reader writes it over") == 2
    plan = planned(lambda x: (x @ x).exp(), torch.randn(32, 32))
    assert "its last reader" not in emit_host(plan).text  # the temporary's storage may be larger
    plan = planned(lambda x: x.exp(), torch.randn(32, 32))
    given = [name for name in plan.inputs if isinstance(name, str)]
    assert "only_owner" not in emit_host(plan, given).text
    plan = planned(lambda x, y: x.exp() @ y, torch.randn(32, 32), torch.randn(32, 32))
    given = [name for name in plan.inputs if isinstance(name, str)]
    assert "if only_owner(references(" in emit_host(plan, given).text


class Layers(nn.Module):
    """Norms, gates and products, of whose backward most operands die early."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(24), nn.RMSNorm(24), nn.GroupNorm(3, 24)])
        self.ups, self.downs = (nn.ModuleList(nn.Linear(24, 24, bias=False) for _ in range(3)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for norm, up, down in zip(self.norms, self.ups, self.downs, strict=True):
            h = norm(x)
            x = x + down(F.silu(up(h)) * h.softmax(-1))
        return F.gelu(x).pow(2).mean()


class Images(nn.Module):
    """Convolutions and batch norms with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(6, 6, 3, padding=1) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm2d(6) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.relu(x + norm(conv(F.silu(x))))
        return x.square().mean()


def _gradients(call: Callable[..., Tensor], x: Tensor, model: nn.Module, retain: bool) -> list[Tensor]:
    model.zero_grad()
    given = x.clone().requires_grad_()
    loss = call(given)
    loss.backward(retain_graph=retain)  # type: ignore[no-untyped-call]
    if retain:
        loss.backward()  # type: ignore[no-untyped-call]
    assert given.grad is not None
    return [loss.detach(), given.grad, *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize(("model", "shape"), [(Layers, (10, 24)), (Images, (2, 6, 9, 7))])
def test_gradients_are_right_where_memory_is_written_over(model: type[nn.Module], shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    eager = model()
    compiled: Any = lamina.compile(eager, options={"compare_eager": "off", "strict": True})
    x = torch.randn(shape)
    for retain in (False, True, False):  # a second backward finds what was saved as it was
        want = _gradients(eager, x, eager, retain)
        torch.testing.assert_close(_gradients(compiled, x, eager, retain), want, rtol=1e-4, atol=1e-5)
    texts = [str(s.value) for s in compiled.record.stages if s.name == "host" and s.region.endswith("backward")]
    assert any("its last reader writes it over" in text and "only_owner" in text for text in texts)


def test_a_hook_that_keeps_what_was_saved_keeps_its_values() -> None:
    torch.manual_seed(0)
    model = Layers()
    compiled: Any = lamina.compile(model, options={"compare_eager": "off", "strict": True})
    x = torch.randn(10, 24)
    for _ in range(2):
        kept: list[tuple[Tensor, Tensor]] = []

        def keep(tensor: Tensor, kept: list[tuple[Tensor, Tensor]] = kept) -> Tensor:
            kept.append((tensor, tensor.clone()))
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = compiled(x)
        loss.backward()
        assert len(kept) > 5
        for tensor, before in kept:
            assert torch.equal(tensor, before)
