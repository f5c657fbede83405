"""Models whose work is chosen by data: experts by a router, a depth by a score; and a block with a mask's part."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from benchmarks.compilers import CompileFunction
from tests.aot.models import Block
from tests.semantics.program import agree


class _Router(nn.Module):
    """Each token goes to the expert with the highest score; its tokens are found by masks, or by places."""

    def __init__(self, masks: bool) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(8, 3), nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.masks = masks

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.gate(x)
        chosen = scores.argmax(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            if self.masks:
                mine = chosen == number
                out[mine] = expert(x[mine])
            else:
                places = (chosen == number).nonzero().squeeze(1)
                out = out.index_add(0, places, expert(x[places]) * scores[places, number, None])
        return out, chosen


@pytest.mark.parametrize("masks", [True, False])
@pytest.mark.parametrize("dynamic", [False, True])
def test_experts_chosen_by_argmax(compile: CompileFunction, masks: bool, dynamic: bool) -> None:
    agree(compile, lambda: (_Router(masks), (torch.randn(10, 8),)), dynamic=dynamic)


def test_experts_chosen_for_a_whole_batch(compile: CompileFunction) -> None:
    """The gate's result requires no gradient although its parameters do."""

    class Switch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.experts = nn.Linear(8, 3), nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            return self.experts[int(self.gate(x.mean(0)).argmax())](x).relu()

    agree(compile, lambda: (Switch(), (torch.randn(5, 8),)), calls=2)


def test_a_depth_chosen_by_data(compile: CompileFunction) -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.halt = nn.ModuleList(nn.Linear(8, 8) for _ in range(4)), nn.Linear(8, 1)

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = x + layer(x).tanh()
                if self.halt(x).mean() > 0.1:
                    break
            return x * 2

    agree(compile, lambda: (Deep(), (torch.randn(5, 8),)), calls=2)


def test_a_block_in_training_mode_without_dropout_or_gradients(compile: CompileFunction) -> None:
    """Its mask is sliced from a longer buffer."""
    block, x = Block(16, 2, 12, dropout=0.0), torch.randn(2, 7, 16)
    compiled = compile(block, dynamic=False)
    for steps in (7, 5):
        with torch.no_grad():
            torch.testing.assert_close(compiled(x[:, :steps]), block(x[:, :steps]))


def test_replicate_takes_a_compiled_module(compile: CompileFunction, tmp_path: Path) -> None:
    distributed = pytest.importorskip("torch.distributed")
    if not distributed.is_available() or not distributed.is_gloo_available():
        pytest.skip("needs gloo")
    replicate = pytest.importorskip("torch.distributed._composable").replicate
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        module, x = nn.Linear(4, 4), torch.randn(2, 4)
        plain = copy.deepcopy(module)
        compiled = compile(module)
        replicate(compiled)
        for _ in range(2):
            found, expected = compiled(x), plain(x)
            torch.testing.assert_close(found, expected)
            found.sum().backward()
            expected.sum().backward()
            torch.testing.assert_close(compiled.weight.grad, plain.weight.grad)
    finally:
        distributed.destroy_process_group()


def test_a_concatenation_of_a_concatenation_along_another_dimension(compile: CompileFunction) -> None:
    def joined(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        inner = torch.cat([a.exp(), b.sin()], 1)
        return torch.cat([inner, c.cos()], 0) * 2, inner.sum(0)

    shapes = ((2, 3), (2, 2), (4, 5))
    agree(compile, lambda: (joined, tuple(torch.randn(s, requires_grad=True) for s in shapes)))
