"""Graphs of equal blocks, which run part by part."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

import lamina
from lamina.backends import cpu
from lamina.base.captured import UNSEEN_RESULTS
from lamina.capture.frame_reasons import IN_PARTS, REUSED
from lamina.capture.own import blocks, flushing
from lamina.capture.own.callable import interpreted_callable
from lamina.capture.own.segment import Segment
from lamina.record import Record
from lamina.runtime.build import build_together

_LAYERS, _WIDTH, _ROWS = 8, 128, 400


class Block(nn.Module):
    """A norm and two linear layers around an activation, beside what they change."""

    def __init__(self, width: int, drop: float) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        found = self.up(self.norm(x)).tanh().mul(1.5).add(0.25)
        return x + self.drop(self.down(found.sigmoid())) * mask


class Blocks(nn.Module):
    """Equal blocks; gives what each of those ``shown`` computes, too. ``at`` chooses a row of the last result."""

    def __init__(self, drop: float = 0.0, shown: int = 0, width: int = _WIDTH, layers: int = _LAYERS) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block(width, drop) for _ in range(layers))
        self.shown = shown

    def forward(self, x: Tensor, at: Tensor) -> tuple[Tensor, ...]:
        mask, kept, x = (x > -1).float(), [], x.sin()
        for block in self.blocks:
            x = block(x, mask)
            kept.append(x)
        return (torch.nn.functional.embedding(at, x).cos(), *kept[: self.shown])


def _given() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(_ROWS, _WIDTH), torch.tensor([0, 3])


def _captured(model: nn.Module, **options: Any) -> tuple[Any, list[GraphModule], Record]:
    """A callable whose graphs run as they were captured, its graphs, and its record."""
    graphs: list[GraphModule] = []
    record = Record()

    def backend(gm: GraphModule, fakes: Any) -> Callable[..., Any]:
        graphs.append(gm)
        return gm.forward

    return interpreted_callable(model, backend_callable=backend, record=record, **options), graphs, record


def _codes(record: Record) -> set[str]:
    return {str(decision.reason.code) for decision in record.decisions("capture")}


def _same_numbers(model: nn.Module, call: Callable[..., Any], x: Tensor, at: Tensor) -> None:
    """What ``call`` computes, and the gradients that its results lead to, beside those of ``model``."""
    results = []
    for function in (model, call):
        own = x.clone().requires_grad_()
        torch.manual_seed(2)
        first, *kept = function(own, at)
        first.square().sum().backward(inputs=[*model.parameters(), own], retain_graph=bool(kept))
        between = torch.autograd.grad(first.sum(), kept) if kept else ()
        gradients = [own.grad, *(p.grad for p in model.parameters())]
        model.zero_grad()
        results.append([first, *kept, *between, *gradients])
    for wanted, found in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted, rtol=2e-4, atol=2e-5)


def test_equal_blocks_are_compiled_once_and_called_again() -> None:
    model = Blocks()
    call, graphs, record = _captured(model)
    for _ in range(3):
        _same_numbers(model, call, *_given())
    assert len(graphs) == 3  # what comes before, a block, and what comes after
    codes = _codes(record)
    assert {str(IN_PARTS.number), str(REUSED.number)} <= codes


def test_blocks_compute_what_eager_does_with_kernels() -> None:
    model = Blocks()
    compiled = lamina.compile(deepcopy(model), options={"capture": "own"})
    x, at = _given()
    for _ in range(2):
        compiled.zero_grad()
        model.zero_grad()
        compiled(x, at)[0].square().sum().backward()
        model(x, at)[0].square().sum().backward()
        for one, other in zip(compiled.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=2e-4, atol=2e-5)


def test_random_numbers_are_those_of_eager() -> None:
    model = Blocks(drop=0.3)
    call, graphs, _ = _captured(model)
    for _ in range(2):
        _same_numbers(model, call, *_given())
    assert len(graphs) == 3


def test_what_the_program_holds_between_blocks_has_its_gradient() -> None:
    model = Blocks(shown=5)
    call, graphs, _ = _captured(model)
    for _ in range(2):
        _same_numbers(model, call, *_given())
    unseen = [len(graph.graph.output_node().meta[UNSEEN_RESULTS]) for graph in graphs]
    results = [len(graph.graph.output_node().args[0]) for graph in graphs]
    assert any(unseen)
    assert any(one < all_of_it for one, all_of_it in zip(unseen, results, strict=True))


@pytest.mark.parametrize("by_view", [False, True], ids=["itself", "by a view"])
def test_a_gradient_goes_by_what_the_program_holds_where_a_cut_is_after_what_depends_on_it(by_view: bool) -> None:
    torch.manual_seed(3)
    ups, downs = ([torch.randn(size, 64).mul(0.1).requires_grad_() for _ in range(6)] for size in (128, 64))

    def function(x: Tensor) -> tuple[Tensor, ...]:
        kept = []
        for up, down in zip(ups, downs, strict=True):
            found = torch.nn.functional.linear(x.sin().mul(1.5), up)
            x = x.add(found.tanh().view(-1, 2, 64).sum(1)).mul(0.9)
            kept.append(x.view(-1) if by_view else x)
            x = x + torch.nn.functional.linear(x.sigmoid().mul(1.1), down)  # cut after this linear: reads both
        return x.square().sum(), *kept

    compiled = lamina.compile(function, options={"capture": "own"})
    gradients = []
    for call in (function, compiled, compiled):
        total, *kept = call(torch.linspace(-1, 1, 64 * 2048).view(2048, 64).requires_grad_())
        held = [one._base if by_view else one for one in kept]
        for one in held:
            one.retain_grad()
        total.backward(inputs=held)
        gradients.append([one.grad for one in held])
    for found in gradients[1:]:
        torch.testing.assert_close(found, gradients[0], rtol=1e-3, atol=1e-3)
    call, _, record = _captured(function)
    call(torch.ones(2048, 64))
    assert str(IN_PARTS.number) in _codes(record)


def test_a_call_that_is_not_interpreted_lets_go_of_what_later_parts_do_not_read() -> None:
    model, made, most = Blocks(), [], []

    def backend(gm: GraphModule, fakes: Any) -> Callable[..., Any]:
        def run(*given: Tensor) -> Any:
            most.append(sum(one() is not None for one in made))
            results = gm.forward(*given)
            made.extend(weakref.ref(one) for one in results)
            return results

        return run

    record = Record()
    call = interpreted_callable(model, backend_callable=backend, record=record)
    with torch.no_grad():
        for _ in range(3):
            del made[:], most[:]
            call(*_given())
    assert str(REUSED.number) in _codes(record)
    assert len(most) == _LAYERS + 1
    assert max(most) <= 4  # the mask, what a block has given, and what it is made of


def test_other_sizes_have_parts_too() -> None:
    model = Blocks()
    call, graphs, _ = _captured(model)
    x, at = _given()
    for rows in (_ROWS, 32, 48, 16, 40):
        _same_numbers(model, call, x[:rows], at)
    assert len(graphs) == 6  # of the first size, and of all others


def test_a_graph_is_one_if_that_is_asked_for_or_its_blocks_are_few_or_small() -> None:
    for model, whole in (Blocks(), True), (Blocks(layers=4), False), (Blocks(width=16), False):
        call, graphs, _ = _captured(model, fullgraph=whole)
        x, at = _given()
        call(x[:, : model.blocks[0].norm.normalized_shape[0]], at)
        assert len(graphs) == 1


@pytest.mark.parametrize("drop", [0.0, 0.3])
def test_an_error_of_the_last_part_leaves_what_was_computed_before(drop: float) -> None:
    model = Blocks(drop=drop, shown=2)
    kept: list[Tensor] = []

    def function(x: Tensor, at: Tensor) -> Tensor:
        try:
            mask = (x > -1).float()
            for block in model.blocks:
                x = block(x, mask)
                kept.append(x)
        finally:
            pass
        return torch.nn.functional.embedding(at, x)

    x, _ = _given()
    found = []
    for call in (function, _captured(function)[0]):
        kept.clear()
        torch.manual_seed(2)
        with pytest.raises(IndexError):
            call(x, torch.tensor([_ROWS + 1]))
        found.append([*kept, torch.rand(3)])
    for wanted, one in zip(*found, strict=True):
        torch.testing.assert_close(one, wanted)


def test_an_interrupt_between_parts_leaves_what_eager_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    model, made = Blocks(drop=0.3), []
    part = flushing.part_of_graph

    def interrupted(*given: Any) -> Any:
        made.append(1)
        if len(made) == 4:
            raise KeyboardInterrupt
        return part(*given)

    kept: list[Tensor] = []

    def function(x: Tensor) -> Tensor:
        mask = (x > -1).float()
        for block in model.blocks:
            x = block(x, mask)
            kept.append(x)
        return x

    x, _ = _given()
    torch.manual_seed(2)
    function(x)
    wanted = [*kept]
    kept.clear()
    monkeypatch.setattr(flushing, "part_of_graph", interrupted)
    torch.manual_seed(2)
    with pytest.raises(KeyboardInterrupt):
        _captured(function)[0](x)
    assert len(made) == 4
    for one, other in zip(kept, wanted, strict=True):
        torch.testing.assert_close(one, other)


def _batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of how many regions kernels are built, for each batch from now on."""
    found: list[int] = []

    def counted(groups: Any, **how: Any) -> Any:
        found.append(len(groups))
        return build_together(groups, **how)

    monkeypatch.setattr(cpu, "build_together", counted)
    return found


def test_the_kernels_of_all_parts_are_one_batch_each_way(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    batches, model = _batches(monkeypatch), Blocks()
    call = lamina.compile(model, options={"capture": "own", "compare_eager": "off", "cache_dir": str(tmp_path)})
    x, at = _given()
    found = call(x.clone().requires_grad_(), at)[0]
    (parts,) = batches
    assert parts >= 3
    found.square().sum().backward()
    assert batches == [parts, parts]
    model.zero_grad()
    _same_numbers(model, call, x, at)
    assert batches == [parts, parts]


def test_parts_that_look_otherwise_than_expected_are_compiled_when_they_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    batches, model = _batches(monkeypatch), Blocks()

    def expected(part: Segment, fake: Any) -> Any:
        part.expected[id(fake)] = ("another look",)
        return fake

    monkeypatch.setattr(blocks, "_expected", expected)
    call = lamina.compile(model, options={"capture": "own", "compare_eager": "off", "cache_dir": str(tmp_path)})
    _same_numbers(model, call, *_given())
    assert len(batches) > 2
