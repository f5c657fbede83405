"""Sizes that change: one graph for all of them, right at each."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lamina
from benchmarks.compilers import CompileFunction
from benchmarks.torch_private import graph_count, reset_graph_count
from tests.semantics.program import cotangent, raises_alike

SIZES = [(4, 16), (2, 7), (8, 33), (3, 64), (5, 5), (16, 129)]


def _causal_softmax(x: Tensor) -> Tensor:
    scores = x @ x.transpose(-1, -2)
    length = x.shape[1]
    mask = torch.ones(length, length, dtype=torch.bool).tril()
    return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ x / length


PROGRAMS: dict[str, Any] = {
    "pointwise": lambda x: x.sin() * 2 + x,
    "row_reduction": lambda x: x.softmax(-1) + x.mean(-1, keepdim=True),
    "column_reduction": lambda x: x.sum(0) + x.amax(1).sum(0),
    "full_reduction": lambda x: x.var() + x.sum() / x.shape[1],
    "flatten": lambda x: x.reshape(x.shape[0] * x.shape[1], -1) * 2,
    "transpose_and_add": lambda x: x.transpose(0, 1) + x.shape[0],
    "concatenate": lambda x: torch.cat([x, x.flip(1), torch.zeros(x.shape[0], 2, x.shape[2])], 1),
    "pad": lambda x: F.pad(x, (1, 2, 3, 0), value=1.0),
    "slice": lambda x: x[:, 1:-1] * x[:, 2:].sum(),
    "positions": lambda x: x + torch.arange(x.shape[1])[:, None] / x.shape[0],
    "cumulative": lambda x: x.cumsum(1),
    "attention": _causal_softmax,
    "layer_norm": lambda x: F.layer_norm(x, (6,)),
    "normalise_over_dynamic": lambda x: F.layer_norm(x.transpose(1, 2), (x.shape[1],)),
    "split": lambda x: x.split([x.shape[1] // 2, x.shape[1] - x.shape[1] // 2], 1)[1] * 2,
    "expand": lambda x: x[:1].expand(x.shape[0], -1, -1) + x,
    "sizes_returned": lambda x: (x * 2, x.shape[0] * x.shape[1] + 1, x.numel()),
    "index": lambda x: x[:, torch.arange(x.shape[1] - 1, -1, -1)],
}


@pytest.mark.by_dynamo("counts Dynamo's graphs", "normalise_over_dynamic-plain", "pad-plain", "slice-plain")
@pytest.mark.sampled(one_in=14)
@pytest.mark.parametrize("grad", [False, True], ids=["plain", "grad"])
@pytest.mark.parametrize("name", list(PROGRAMS))
def test_one_graph_for_all_sizes(compile: CompileFunction, compiler_name: str, name: str, grad: bool) -> None:
    reset_graph_count()
    program = PROGRAMS[name]
    compiled = compile(program, dynamic=True)
    for batch, length in SIZES:
        x = torch.randn(batch, length, 6, requires_grad=grad)
        mine, theirs = compiled(x), program(x)
        if isinstance(theirs, tuple):
            assert mine[1:] == theirs[1:]
            mine, theirs = mine[0], theirs[0]
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
        assert mine.stride() == theirs.stride()
        if grad:
            ours, true = (torch.autograd.grad(t, x, cotangent(t, 0))[0] for t in (mine, theirs))
            torch.testing.assert_close(ours, true, rtol=1e-4, atol=1e-5)
    if compiler_name != "eager":
        assert graph_count() == 1, f"{graph_count()} graphs were captured for {len(SIZES)} sizes"


class Block(nn.Module):
    """A transformer block with attention by hand."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(self.before(x)).split(width, -1)
        )
        scores = q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5
        mask = torch.ones(length, length, dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(mask, float("-inf")).softmax(-1) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.after(x))))


@pytest.mark.by_dynamo("counts Dynamo's graphs")
def test_training_a_block_over_batch_and_sequence(compile: CompileFunction, compiler_name: str) -> None:
    reset_graph_count()
    model = Block()
    compiled = compile(model, dynamic=True)
    for batch, length in SIZES:
        x = torch.randn(batch, length, 32)
        results = []
        for function in (compiled, model):
            model.zero_grad()
            out = function(x)
            out.square().mean().backward()
            results.append([out, *(p.grad for p in model.parameters())])
        for mine, theirs in zip(*results, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=2e-4, atol=2e-5)
    if compiler_name != "eager":
        assert graph_count() == 1, f"{graph_count()} graphs were captured"


def test_automatic_mode_settles_after_the_second_size(compile: CompileFunction, compiler_name: str) -> None:
    reset_graph_count()
    compiled = compile(lambda x: x.softmax(-1) * 2)
    for batch, length in SIZES:
        x = torch.randn(batch, length)
        torch.testing.assert_close(compiled(x), x.softmax(-1) * 2)
    if compiler_name != "eager":
        assert graph_count() <= 3


def test_static_mode_compiles_each_size(compile: CompileFunction) -> None:
    compiled = compile(lambda x: x.exp().sum(0), dynamic=False)
    for batch, length in SIZES:
        x = torch.randn(batch, length)
        torch.testing.assert_close(compiled(x), x.exp().sum(0))


@pytest.mark.parametrize("shape", [(0, 3), (1, 3), (1, 1), (2, 0)], ids=str)
def test_sizes_zero_and_one_with_dynamic_shapes(compile: CompileFunction, shape: tuple[int, int]) -> None:
    compiled = compile(lambda x: (x.sum(0), x * 2 + x.sum(1, keepdim=True), x.reshape(-1)), dynamic=True)
    for size in (shape, (5, 6), shape):
        x = torch.randn(size)
        for mine, theirs in zip(compiled(x), (x.sum(0), x * 2 + x.sum(1, keepdim=True), x.reshape(-1)), strict=True):
            torch.testing.assert_close(mine, theirs)


def test_dynamic_strides_and_offsets(compile: CompileFunction) -> None:
    compiled = compile(lambda x: x * 2 + x.sum(-1, keepdim=True), dynamic=True)
    for batch, length in SIZES:
        base = torch.randn(length + 3, 2 * batch)
        for x in (base.t()[1:, 3:], base[1:, ::2], base.contiguous()):
            torch.testing.assert_close(compiled(x), x * 2 + x.sum(-1, keepdim=True))


def test_dynamic_mutation(compile: CompileFunction) -> None:
    def program(x: Tensor) -> Tensor:
        x[:, : x.shape[1] // 2] += 1
        return x.sum(1)

    compiled = compile(program, dynamic=True)
    for batch, length in SIZES:
        x = torch.randn(batch, length)
        y = x.clone()
        torch.testing.assert_close(compiled(x), program(y))
        torch.testing.assert_close(x, y)


def test_dynamic_dropout_backward(compile: CompileFunction) -> None:
    compiled = compile(lambda x: F.dropout(x, 0.5).sum(1) * 2, dynamic=True)
    for batch, length in SIZES:
        x = torch.ones(batch, length, requires_grad=True)
        out = compiled(x)
        (gradient,) = torch.autograd.grad(out.sum(), x)
        torch.testing.assert_close(gradient.sum(1), out.detach())


def test_two_dynamic_inputs_must_agree(compile: CompileFunction) -> None:
    raises_alike(compile, lambda: (lambda x, y: x + y, (torch.randn(4, 3), torch.randn(5, 3))), dynamic=True)


def test_branch_on_a_size(compile: CompileFunction) -> None:
    def program(x: Tensor) -> Tensor:
        return x.sin() if x.shape[0] > 4 else x.cos()

    compiled = compile(program, dynamic=True)
    for batch, length in SIZES:
        x = torch.randn(batch, length)
        torch.testing.assert_close(compiled(x), program(x))


@pytest.mark.parametrize("shape", [(2, 34), (4, 6)])
def test_two_sums_down_columns_of_repeated_rows(shape: tuple[int, int]) -> None:
    """The first sum is kept for each row of the loop that the second one is over."""
    torch.compiler.reset()

    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        rows = x.repeat(2, 1)
        every_other = rows.expand(2, *rows.shape)[..., ::2]
        return every_other, every_other.abs().sqrt()

    compiled = lamina.compile(program, dynamic=True, options={"strict": True})
    x, y = (torch.linspace(0.5, 2.0, shape[0] * shape[1]).reshape(shape).requires_grad_() for _ in range(2))
    (mine,) = torch.autograd.grad([r.sum() for r in compiled(x[:, ::2])], x, [torch.ones(())] * 2)
    (theirs,) = torch.autograd.grad([r.sum() for r in program(y[:, ::2])], y, [torch.ones(())] * 2)
    torch.testing.assert_close(mine, theirs)
