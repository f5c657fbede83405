"""Activation checkpointing whose regions draw random numbers: the backward draws again what the forward drew."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import lamina
from tests.aot.reference import Reference, operations

Function = Callable[[Tensor], Tensor]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="lamina runs")  # nothing here is to fall back to ATen calls
        yield
    torch._dynamo.reset()


def _noise(x: Tensor) -> Tensor:
    return x.sin() * torch.rand_like(x)


def _several_draws(x: Tensor) -> Tensor:
    return (x.sin() * torch.rand(x.shape)).exp() * torch.bernoulli(torch.full_like(x, 0.5)).cos() * torch.randn_like(x)


def _attention(x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x, x.sin(), x.cos(), dropout_p=0.5)


def _dropout(x: Tensor) -> Tensor:
    return F.dropout(x.sin(), 0.3)


def _gradient(loss: Tensor, x: Tensor) -> Tensor:
    """The gradient at the leaf ``x``; ``torch.autograd.grad`` is not for checkpoints with ``use_reentrant=True``."""
    x.grad = None
    loss.backward()
    assert x.grad is not None
    return x.grad


def _step(function: Function, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Result and gradient under a fixed seed, and what the generator gives next."""
    torch.manual_seed(7)
    out = function(x)
    return out.detach(), _gradient(out.square().sum(), x), torch.rand(3)


@pytest.mark.parametrize("body", [_noise, _several_draws, _attention, _dropout])
def test_draws_of_eagers_generator(body: Function) -> None:
    def block(x: Tensor) -> Tensor:
        return checkpoint(body, checkpoint(body, x, use_reentrant=False) * 2, use_reentrant=False)

    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    expected = _step(block, x)
    actual = _step(lamina.compile(block, options={"numerics": "eager"}), x)
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e)


@pytest.mark.parametrize("body", [_noise, _several_draws])
def test_draws_that_fast_numerics_leave_to_the_generator(body: Function) -> None:
    def block(x: Tensor) -> Tensor:
        return checkpoint(body, x, use_reentrant=False) * 2

    x = torch.randn(40, requires_grad=True)
    for a, e in zip(_step(lamina.compile(block), x), _step(block, x), strict=True):
        torch.testing.assert_close(a, e)


@pytest.mark.parametrize("numerics", ["fast", "eager"])
def test_the_recomputed_mask_is_the_forwards(numerics: str) -> None:
    def block(x: Tensor) -> Tensor:
        return checkpoint(F.dropout, x, 0.25, use_reentrant=False)

    compiled = lamina.compile(block, options={"numerics": numerics})
    x = torch.ones(1000, requires_grad=True)
    masks = []
    for _ in range(2):
        out = compiled(x)
        torch.rand(5)  # the generator goes on between forward and backward
        gradient = _gradient(out.sum(), x)
        assert torch.equal(gradient, out.detach())
        masks.append(gradient != 0)
        assert 0.65 < masks[-1].float().mean() < 0.85
    assert not torch.equal(*masks)


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.dropout(F.gelu(self.up(self.norm(x))), 0.3, self.training)
        return x + F.dropout(self.down(hidden), 0.2, self.training)


class _Stack(nn.Module):
    def __init__(self, checkpointed: bool, **keywords: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_Block(16) for _ in range(3))
        self.checkpointed, self.keywords = checkpointed, keywords

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, **self.keywords) if self.checkpointed else block(x)
        return x


def _numerical_gradient(function: Function, x: Tensor, direction: Tensor, step: float) -> Tensor:
    """The derivative along ``direction`` with the draws held fixed by the seed."""
    sums = []
    for sign in (1, -1):
        torch.manual_seed(3)
        sums.append(function((x.detach() + sign * step * direction).requires_grad_()).square().sum().detach())
    return (sums[0] - sums[1]) / (2 * step)


@pytest.mark.by_dynamo("eager, and the own front end with it, draws other numbers the second time", "False-False")
@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("preserve_rng_state", [False, True])
def test_blocks_with_dropout(use_reentrant: bool, preserve_rng_state: bool) -> None:
    model = _Stack(True, use_reentrant=use_reentrant, preserve_rng_state=preserve_rng_state).double()
    compiled = lamina.compile(model)
    x = torch.randn(10, 16, dtype=torch.float64, requires_grad=True)
    direction = torch.randn_like(x)
    torch.manual_seed(3)
    gradient = _gradient(compiled(x).square().sum(), x)
    expected = _numerical_gradient(compiled, x, direction, 1e-5)
    torch.testing.assert_close((gradient * direction).sum(), expected, rtol=1e-6, atol=1e-6)

    model.eval()
    actual, expected = (_gradient(m(x).square().sum(), x) for m in (compiled, model))
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_blocks_draw_as_in_eager(use_reentrant: bool) -> None:
    model = _Stack(True, use_reentrant=use_reentrant)
    x = torch.randn(10, 16, requires_grad=True)
    expected = _step(model, x)
    actual = _step(lamina.compile(model, options={"numerics": "eager"}), x)
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e)


def _saved_bytes(model: nn.Module, x: Tensor, numerics: str) -> tuple[int, list[str]]:
    """Bytes of the tensors, other than parameters and the input, that the backward takes; and its operations."""
    reference = Reference(numerics)
    reference.compile(model)(x).sum().backward()
    saved = [
        n.meta["val"]
        for n in reference.graph("backward").find_nodes(op="placeholder")
        if not n.name.startswith(("primals", "tangents"))
    ]
    return sum(t.numel() * t.element_size() for t in saved), operations(reference.graph("backward"))


def test_a_checkpointed_region_saves_its_input_and_the_seed() -> None:
    x = torch.randn(64, 16, requires_grad=True)
    kept, _ = _saved_bytes(_Stack(False), x, "fast")
    bytes_, backward = _saved_bytes(_Stack(True, use_reentrant=False), x, "fast")
    assert bytes_ == 2 * 64 * 16 * 4 + 8  # the two values between blocks
    assert bytes_ < kept / 4
    assert backward.count("lamina.philox_uniform.default") == 6
    assert "lamina.philox_seed.default" not in backward


def test_a_checkpointed_region_saves_states_of_eagers_generator() -> None:
    x = torch.randn(256, 16, requires_grad=True)
    kept, _ = _saved_bytes(_Stack(False), x, "eager")
    bytes_, backward = _saved_bytes(_Stack(True, use_reentrant=False), x, "eager")
    assert bytes_ == 2 * 256 * 16 * 4 + 6 * torch.get_rng_state().numel()
    assert bytes_ < kept / 4
    assert backward.count("lamina.set_rng_state.default") == 12


class _Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x * 2).sin()


@pytest.mark.by_dynamo("asks for the words of Dynamo's warning", "compiled", "itself", "part")
@pytest.mark.parametrize("place", ["itself", "compiled", "part"])
def test_hooks_that_call_a_module_again_in_the_backward(place: str) -> None:
    """Its first call is uncompiled as well, since the second one is, which has to save the same."""
    by_hooks = pytest.importorskip("torch.distributed._composable").checkpoint
    model, x = _Outer(), torch.randn(2, 4, requires_grad=True)
    expected = _gradient(model(x).sum(), x)
    compiled = lamina.compile(model)
    by_hooks({"itself": model, "compiled": compiled, "part": model.inner}[place])
    with pytest.warns(lamina.LaminaWarning, match="hooks of a module"):
        out = compiled(x)
    torch.testing.assert_close(_gradient(out.sum(), x), expected)
    torch.testing.assert_close(_gradient(compiled(x).sum(), x), expected)


def test_a_compiled_part_of_a_module_that_is_called_again_in_the_backward() -> None:
    by_hooks = pytest.importorskip("torch.distributed._composable").checkpoint
    model, x = _Outer(), torch.randn(2, 4, requires_grad=True)
    expected = _gradient(model(x).sum(), x)
    compiled = model.inner = lamina.compile(model.inner)
    by_hooks(model)
    torch.testing.assert_close(_gradient(model(x).sum(), x), expected)
    assert compiled.record.stages
