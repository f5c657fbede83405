"""CUDA graphs: the same values, outputs that stay valid, no large copies, and a reason for each decision."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lamina
from lamina.base.decision import Decision
from lamina.runtime.graph_budget import graph_budget


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch.compiler.reset()
    gc.collect()
    graph_budget.cache_clear()  # what is recorded of functions that other tests keep would count
    torch.manual_seed(0)


def decisions(compiled: Any) -> list[Decision]:
    return [d for d in compiled.record.decisions("graph") if "forward" in d.subject[0] or "inference" in d.subject[0]]


def blocks(layers: int = 4, width: int = 64) -> nn.Sequential:
    made = [m for _ in range(layers) for m in (nn.Linear(width, width), nn.LayerNorm(width), nn.GELU())]
    return nn.Sequential(*made).cuda()


def insisting(model: Any) -> Any:
    return lamina.compile(model, mode="reduce-overhead", options={"strict": True})


@torch.no_grad()
def test_replays_give_eager_s_values_for_new_inputs_in_old_places() -> None:
    model, x = blocks(), torch.empty(16, 64, device="cuda")
    compiled = insisting(model)
    for _ in range(12):
        x.normal_()
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
    assert [d.taken for d in decisions(compiled)] == [True]


@torch.no_grad()
def test_outputs_that_are_kept_stay_valid() -> None:
    model, x = blocks(), torch.empty(16, 64, device="cuda")
    compiled, kept = insisting(model), []
    for _ in range(20):
        x.normal_()
        kept.append((compiled(x), model(x)))
    for ours, theirs in kept:
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_views_of_outputs_keep_them() -> None:
    model, x = blocks(), torch.empty(16, 64, device="cuda")
    compiled, kept = insisting(model), []
    for _ in range(12):
        x.normal_()
        kept.append((compiled(x)[3:5].t(), model(x)[3:5].t()))
    for ours, theirs in kept:
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_small_inputs_may_move() -> None:
    model = blocks()
    compiled, given = insisting(model), []
    for _ in range(16):
        given.append(torch.randn(16, 64, device="cuda"))  # all alive, so each at a new address
        torch.testing.assert_close(compiled(given[-1]), model(given[-1]), rtol=1e-4, atol=1e-4)
    assert [d.taken for d in decisions(compiled)] == [True]


@torch.no_grad()
def test_large_inputs_that_move_are_not_copied() -> None:
    model = blocks(width=512)
    compiled, given = insisting(model), []
    for _ in range(40):
        given.append(torch.randn(512, 512, device="cuda"))
        compiled(given[-1])
    (decision,) = decisions(compiled)
    assert not decision.taken
    assert "do not come again" in decision.reason


def test_training() -> None:
    model, x = blocks(), torch.randn(32, 64, device="cuda")
    twin = blocks()
    twin.load_state_dict(model.state_dict())
    compiled = insisting(model)
    ours = torch.optim.SGD(model.parameters(), lr=0.1)
    theirs = torch.optim.SGD(twin.parameters(), lr=0.1)
    for _ in range(15):
        losses = []
        for call, optimizer in ((compiled, ours), (twin, theirs)):
            optimizer.zero_grad()
            loss = call(x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        torch.testing.assert_close(*losses, rtol=1e-3, atol=1e-4)
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    assert [(d.subject, d.taken) for d in compiled.record.decisions("graph")] == [
        (("Sequential0_forward",), True),
        (("Sequential0_backward",), True),
    ]


def test_what_one_replay_writes_is_not_what_another_one_lent_out() -> None:
    model, x = blocks(), torch.empty(16, 64, device="cuda")
    compiled, held = insisting(model), []
    for _ in range(8):
        compiled(x.normal_())
    for _ in range(40):  # streams to record on come again after 32
        torch.cuda.Stream()
    for _ in range(4):
        with torch.no_grad():
            held = [*held[-1:], (compiled(x.normal_()), model(x))]
        for ours, theirs in held:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_random_numbers_differ_from_replay_to_replay() -> None:
    def function(x: Tensor) -> Tensor:
        for _ in range(4):
            x = F.dropout(F.layer_norm(x, (64,)), 0.5, True)
        return x

    compiled, x = insisting(function), torch.randn(64, 64, device="cuda")
    found = [compiled(x).clone() for _ in range(12)]
    assert all(not torch.equal(a, b) for k, a in enumerate(found) for b in found[:k])


@torch.no_grad()
def test_inputs_that_are_overwritten() -> None:
    def function(x: Tensor, total: Tensor) -> Tensor:
        y = F.layer_norm(x, (64,)).cumsum(0)
        total += y.sum(0)
        return y.softmax(-1) @ y.t()

    compiled, x = insisting(function), torch.randn(32, 64, device="cuda")
    ours, theirs = torch.zeros(64, device="cuda"), torch.zeros(64, device="cuda")
    for _ in range(12):
        torch.testing.assert_close(compiled(x, ours), function(x, theirs), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


@torch.no_grad()
def test_at_most_eight_recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[torch.cuda.CUDAGraph] = []
    begin = torch.cuda.CUDAGraph.capture_begin

    def counted(graph: torch.cuda.CUDAGraph, *args: Any, **keywords: Any) -> None:
        recorded.append(graph)
        begin(graph, *args, **keywords)

    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_begin", counted)
    model = blocks()
    compiled = insisting(model)
    inputs = [torch.randn(2048, 64, device="cuda") for _ in range(12)]
    for _ in range(4):
        for x in inputs:
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
    assert len(recorded) == 8
    taken, full = decisions(compiled)
    assert (taken.taken, full.taken) == (True, False)
    assert "there are 8 recordings" in full.reason


@torch.no_grad()
def test_default_mode_records_where_launches_dominate() -> None:
    model, x = blocks(8), torch.randn(8, 64, device="cuda")
    compiled = lamina.compile(model, options={"strict": True})
    for _ in range(30):
        result = compiled(x)
        torch.cuda.synchronize()
    torch.testing.assert_close(result, model(x), rtol=1e-4, atol=1e-4)
    (decision,) = decisions(compiled)
    assert decision.taken, decision
    assert dict(decision.facts)["replay_us"] < dict(decision.facts)["host_us"]


def test_default_mode_records_training_where_launches_dominate() -> None:
    model, x = blocks(8, 512), torch.randn(64, 512, device="cuda")  # gradients of 8 MiB, and as much that is saved
    compiled = lamina.compile(model, options={"strict": True})
    for _ in range(60):
        model.zero_grad()
        compiled(x).square().mean().backward()
        torch.cuda.synchronize()
    found = {d.subject[0]: d for d in compiled.record.decisions("graph") if d.taken}
    assert sorted(found) == ["Sequential0_backward", "Sequential0_forward"], compiled.record.decisions("graph")
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(x).square().mean().backward()
    for ours, p in zip(gradients, model.parameters(), strict=True):
        torch.testing.assert_close(ours, p.grad, rtol=1e-3, atol=1e-5)


@torch.no_grad()
def test_default_mode_does_not_where_the_gpu_is_busy() -> None:
    model, x = blocks(2, 16384), torch.randn(64, 16384, device="cuda")
    compiled = lamina.compile(model, options={"strict": True})
    for _ in range(12):
        compiled(x)
    torch.cuda.synchronize()
    compiled(x)
    assert [d.taken for d in decisions(compiled)] == [False]


@torch.no_grad()
def test_mode_without_graphs_has_none() -> None:
    model, x = blocks(), torch.randn(8, 64, device="cuda")
    compiled = lamina.compile(model, mode="max-autotune-no-cudagraphs")
    for _ in range(12):
        compiled(x)
    assert not decisions(compiled)


@torch.no_grad()
def test_inside_the_user_s_own_graph() -> None:
    model, x = blocks(), torch.randn(8, 64, device="cuda")
    compiled = insisting(model)
    for _ in range(8):
        compiled(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = compiled(x)
    x.normal_()
    graph.replay()
    torch.testing.assert_close(result, model(x), rtol=1e-4, atol=1e-4)
