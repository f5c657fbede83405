"""Outputs that are inputs or views of them, outputs that share storage, and the strides of outputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.compilers import CompileFunction
from tests.semantics.program import agree

VIEWS = {
    "identity": lambda x: x,
    "identity_twice": lambda x: (x, x),
    "view": lambda x: x.view(-1),
    "transpose": lambda x: x.t(),
    "row": lambda x: x[1],
    "slice": lambda x: x[:, 1:3],
    "step": lambda x: x[::2, ::3],
    "expand": lambda x: x[:, None].expand(4, 5, 6),
    "detach": lambda x: (x.detach(), x + 1),
    "two_views": lambda x: (x[0], x[0:2]),
    "unbind": lambda x: x.unbind(1),
    "chunk": lambda x: x.chunk(2),
    "as_strided": lambda x: x.as_strided((3, 2), (2, 1), 1),
    "view_and_value": lambda x: (x.view(2, 12), x * 2),
    "narrow_squeeze": lambda x: x.narrow(0, 1, 1).squeeze(0),
    "diagonal": lambda x: x.diagonal(),
    "unfold": lambda x: x.unfold(1, 2, 2),
}

INTERMEDIATES = {
    "value_and_view": lambda x: (lambda y: (y, y.view(-1)))(x * 2),
    "two_views": lambda x: (lambda y: (y[0], y[1:]))(x.sin()),
    "same_value_twice": lambda x: (lambda y: (y, y))(x + 1),
    "transpose_of_value": lambda x: (x * 2).t(),
    "split": lambda x: (x * 3).split(2),
    "detached": lambda x: (lambda y: (y, y.detach()))(x.cos()),
    "expanded": lambda x: x.sum(1, keepdim=True).expand(4, 6),
}

STRIDES = {
    "transposed_operand": lambda x: x.t() + 1,
    "mixed_operands": lambda x: x.t() + torch.ones(6, 4),
    "permuted": lambda x: x.view(2, 2, 6).permute(2, 0, 1) * 2,
    "permuted_contiguous": lambda x: x.view(2, 2, 6).permute(2, 0, 1).contiguous() * 2,
    "clone": lambda x: x.t().clone(),
    "reduced": lambda x: x.view(2, 2, 6).permute(2, 0, 1).sum(1),
    "reduced_keepdim": lambda x: x.t().amax(0, keepdim=True),
    "channels_last": lambda x: F.relu(x.view(1, 2, 2, 6).to(memory_format=torch.channels_last)),
    "to_contiguous_format": lambda x: x.t().clone(memory_format=torch.contiguous_format),
    "softmax_of_transposed": lambda x: x.t().softmax(0),
    "concatenated": lambda x: torch.cat([x.t(), x.t()], 1),
    "stack_then_select": lambda x: torch.stack([x, x * 2], -1)[..., 0],
    "matrix_product": lambda x: (x @ x.t()).t(),
    "empty_like": lambda x: torch.zeros_like(x.t()) + 0,
    "broadcast": lambda x: x.t()[:, None] * x.t()[:, :, None],
    "expanded_operand": lambda x: x[:1].expand(4, 6) * 2,
    "where": lambda x: torch.where(x.t() > 0, x.t(), 0.0),
    "layer_norm_of_transposed": lambda x: F.layer_norm(x.t(), (4,)),
    "channels_last_pool": lambda x: F.avg_pool2d(x.view(1, 2, 2, 6).to(memory_format=torch.channels_last), 2),
}


def _table(table: dict[str, Any]) -> Any:
    return pytest.mark.parametrize("program", list(table.values()), ids=list(table))


@_table(VIEWS)
@pytest.mark.parametrize("grad", [False, True], ids=["plain", "grad"])
def test_views_of_inputs(compile: CompileFunction, program: Any, grad: bool) -> None:
    agree(compile, lambda: (program, (torch.randn(4, 6, requires_grad=grad),)))


@_table(INTERMEDIATES)
@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize("grad", [False, True], ids=["plain", "grad"])
def test_views_of_intermediates(compile: CompileFunction, program: Any, grad: bool) -> None:
    agree(compile, lambda: (program, (torch.randn(4, 6, requires_grad=grad),)))


@pytest.mark.sampled(one_in=12)
@_table(STRIDES)
@pytest.mark.parametrize("grad", [False, True], ids=["plain", "grad"])
def test_strides_are_those_of_eager(compile: CompileFunction, program: Any, grad: bool) -> None:
    agree(compile, lambda: (program, (torch.randn(4, 6, requires_grad=grad),)))


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_convolution_keeps_the_layout(compile: CompileFunction, layout: str) -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        return F.relu(F.conv2d(x, w) + 1)

    def build() -> Any:
        x = torch.randn(2, 4, 8, 8)
        if layout == "channels_last":
            x = x.to(memory_format=torch.channels_last)
        return program, (x, torch.randn(8, 4, 3, 3))

    agree(compile, build)


def test_writing_to_a_returned_view_changes_the_input(compile: CompileFunction) -> None:
    x = torch.zeros(4, 4)
    compiled = compile(lambda t: (t.t()[1:], t + 1), dynamic=False)
    view, value = compiled(x)
    view.fill_(3)
    value.fill_(5)
    expected = torch.zeros(4, 4)
    expected.t()[1:].fill_(3)
    torch.testing.assert_close(x, expected, rtol=0, atol=0)


def test_results_of_earlier_calls_are_left_alone(compile: CompileFunction) -> None:
    compiled = compile(lambda t: (t.exp().sum(1), t.sin() * 2), dynamic=False)
    inputs = [torch.randn(64, 256) for _ in range(6)]
    results = [compiled(x) for x in inputs]
    for x, (total, wave) in zip(inputs, results, strict=True):
        torch.testing.assert_close(total, x.exp().sum(1))
        torch.testing.assert_close(wave, x.sin() * 2)


def test_gradients_of_earlier_calls_are_left_alone(compile: CompileFunction) -> None:
    compiled = compile(lambda t: (t.exp() * t.sin()).sum(), dynamic=False)
    inputs = [torch.randn(64, 64, requires_grad=True) for _ in range(4)]
    losses = [compiled(x) for x in inputs]
    gradients = [torch.autograd.grad(loss, x)[0] for loss, x in reversed(list(zip(losses, inputs, strict=True)))]
    for x, gradient in zip(reversed(inputs), gradients, strict=True):
        expected = (x.exp() * (x.sin() + x.cos())).detach()
        torch.testing.assert_close(gradient, expected)


def test_result_used_as_the_next_input(compile: CompileFunction) -> None:
    compiled = compile(lambda t: t * 1.5 + t.sum(), dynamic=False)
    x = expected = torch.randn(100)
    for _ in range(5):
        x, expected = compiled(x), expected * 1.5 + expected.sum()
    torch.testing.assert_close(x, expected)


def test_in_place_on_a_returned_value_does_not_leak(compile: CompileFunction) -> None:
    compiled = compile(lambda t: t.sum(0) + torch.ones(8), dynamic=False)
    x = torch.randn(3, 8)
    first = compiled(x)
    first.mul_(1000)
    torch.testing.assert_close(compiled(x), x.sum(0) + 1)


def test_complex_views(compile: CompileFunction) -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.view_as_real(x), torch.view_as_complex(torch.view_as_real(x) * 2)

    agree(compile, lambda: (program, (torch.randn(4, 3, dtype=torch.complex64),)))


def test_reinterpreted_bits(compile: CompileFunction) -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.view(torch.int32), (x * 2).view(torch.int16) & 3

    agree(compile, lambda: (program, (torch.randn(4, 6),)), exact=False)


@pytest.mark.parametrize("shape", [(2, 4, 4), (2, 5, 5), (3, 8, 4), (4, 6, 6)])
def test_a_result_that_is_another_in_a_new_shape_has_its_memory(
    shape: tuple[int, ...], compile: CompileFunction
) -> None:
    """Lengths that do not divide each other need a division with rest for each index, and lie at even distances yet."""

    def function(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        one = x * 2
        other = one.reshape(one.shape[-1], -1)
        return one, other, other.exp().sum()

    one, other, total = compile(function, dynamic=False)(x := torch.randn(shape))
    torch.testing.assert_close((one, other, total), function(x))
    assert other.data_ptr() == one.data_ptr()


SHARED = {
    "lengths that divide each other": lambda v: (v.reshape(4, 3, -1).view(-1, 6), v),
    "two views": lambda v: (v.reshape(4, 3, -1).view(-1, 6), v.view(8, -1).detach()),
    "views of a view": lambda v: (v.unflatten(0, (2, -1)).view(8, -1), v.reshape(4, 3, -1).view(-1, 6), v[1:]),
    "of turned dimensions": lambda v: (v.transpose(0, 1).unflatten(1, (2, -1)), v.transpose(0, 1).flatten(0, 1)),
}


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("name", SHARED)
def test_results_of_run_time_sizes_share_memory_as_in_eager(name: str, compile: CompileFunction) -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        v = x * 2
        return SHARED[name](v)

    compiled = compile(function, dynamic=True)
    for size in (8, 4):
        x = torch.randn(size, 6, 4)
        results, expected = compiled(x), function(x)
        results[0].add_(1), expected[0].add_(1)
        torch.testing.assert_close(results, expected)


def test_gradients_of_windows_whose_steps_become_numbers(compile: CompileFunction) -> None:
    """Elements that share memory have a gradient each, whether or not the steps were symbols at first."""

    def function(x: Tensor, step: int) -> tuple[Tensor, Tensor]:
        v = torch.cat([x, x + 1]).as_strided((2, 2), (step, 1))
        return v, v * 2

    compiled = compile(function, dynamic=True)
    for step in (2, 3, 1):
        gradients = []
        for run in (compiled, function):
            x = torch.randn(3, requires_grad=True)
            one, other = run(x, step)
            (one * torch.tensor([[1.0, 2], [3, 4]]) + other * torch.tensor([[1.0, 20], [3, 5]])).sum().backward()
            gradients.append(x.grad)
        assert torch.equal(*gradients)


def test_a_view_that_eager_refuses_is_refused_before_the_write(compile: CompileFunction) -> None:
    """Fake tensors take this view, past a dimension of one element."""

    def function(x: Tensor) -> Tensor:
        v = x[..., ::2]
        b = v.mT.transpose(0, -1)[:, ::3].view(-1, 6)
        v.add_(1)
        return b

    compiled = compile(function)
    for size in (8, 4):
        with pytest.raises(RuntimeError):
            compiled(x := torch.zeros(size, 6, 4))
        assert not x.any()


PARTS = {
    "chunk": lambda x: x.chunk(2)[0],
    "split": lambda x: x.view(-1).split(2)[1],
    "part of a part": lambda x: x.chunk(2)[1][1:],
}


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PARTS)
def test_parts_of_an_input_are_lost_by_a_write_to_it(name: str, dynamic: bool, compile: CompileFunction) -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        return x - 0.5, x.view(-1), PARTS[name](x)

    compiled = compile(function, dynamic=dynamic)
    for size in (6, 8):
        x = torch.randn(size, requires_grad=True)
        results = compiled(x)
        torch.testing.assert_close(results, function(x))
        x.detach().zero_()
        with pytest.raises(RuntimeError, match="multiple views"):
            results[2].sum()
