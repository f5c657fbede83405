"""Calls whose results are contiguous in eager, whatever their operands are, are compiled with what depends on them."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lamina

Function = Callable[[Tensor], tuple[Tensor, ...]]


def log_sigmoid(x: Tensor) -> tuple[Tensor, ...]:
    y = F.logsigmoid(x.transpose(1, 2))
    return y * 2, y.reshape(-1)


def joined(x: Tensor) -> tuple[Tensor, ...]:
    y = F.logsigmoid(x.permute(2, 1, 0)[::2])
    return ((F.gelu(y).transpose(0, 1).contiguous() + 1).flatten(1),)


def power(x: Tensor) -> tuple[Tensor, ...]:
    y = torch.pow(2, x.transpose(1, 2))
    return y, y.contiguous()


def product(x: Tensor) -> tuple[Tensor, ...]:
    return (torch.ldexp(x.transpose(1, 2), x.transpose(1, 2)).relu(),)


def norm(x: Tensor) -> tuple[Tensor, ...]:
    y = F.batch_norm(x.transpose(1, 2) * 2, None, None, training=True)
    return y.relu(), y.reshape(-1)


def norm_of_an_image(x: Tensor) -> tuple[Tensor, ...]:
    image = torch.stack([x, x.sin()], 1).permute(0, 3, 2, 1)
    return (F.batch_norm(image, torch.zeros(5), torch.ones(5), x[0, 0], x[1, 0], training=False) + 1,)


def norm_of_channels(x: Tensor) -> tuple[Tensor, ...]:
    image = torch.stack([x, x.sin(), x.cos()], 1).contiguous(memory_format=torch.channels_last)[:, :, ::2]
    y = F.batch_norm(image, None, None, training=True)
    return y, y.permute(0, 2, 3, 1).reshape(-1)


def norm_by_name(x: Tensor) -> tuple[Tensor, ...]:
    volume = torch.stack([torch.stack([x, x.sin(), x.cos()], 1), torch.stack([x.tan(), x, x.exp()], 1)], -1)
    image = volume.permute(0, 4, 1, 2, 3)[:, :, ::2]
    return (F.batch_norm(input=image, running_mean=None, running_var=None, training=True) * 2,)


def norm_of_one_channel(x: Tensor) -> tuple[Tensor, ...]:
    image = x[:, None].clone(memory_format=torch.channels_last)
    y = F.batch_norm(image, None, None, training=True)
    return y, F.conv2d(y, x.detach()[None, :1, :2, :2])


def norm_of_a_norm(x: Tensor) -> tuple[Tensor, ...]:
    y = F.batch_norm(x[0].t(), None, None, training=True)
    return (F.batch_norm(y.reshape(1, 4, -1, 1), None, None, training=True),)


IMAGES = (norm_of_an_image, norm_of_channels, norm_by_name, norm_of_one_channel, norm_of_a_norm)


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("function", [log_sigmoid, joined, power, product, norm, *IMAGES])
def test_results_are_laid_out_and_shared_as_in_eager(function: Function, training: bool) -> None:
    x = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0)).requires_grad_(training)
    with warnings.catch_warnings():
        warnings.simplefilter("error", lamina.LaminaWarning)  # of what is left to eager
        results = lamina.compile(function, dynamic=False, options={"strict": True})(x)
    expected = function(x)
    for mine, theirs in zip(results, expected, strict=True):
        torch.testing.assert_close(mine, theirs, check_stride=True)
    memory = [[t.untyped_storage().data_ptr() for t in found] for found in (results, expected)]
    assert [m == memory[0][0] for m in memory[0]] == [m == memory[1][0] for m in memory[1]]
    if training:
        given = [torch.randn(t.shape, generator=torch.Generator().manual_seed(1)) for t in expected]
        mine, theirs = (torch.autograd.grad(found, x, given)[0] for found in (results, expected))
        torch.testing.assert_close(mine, theirs, check_stride=True)


@pytest.mark.by_dynamo("counts Dynamo's graphs, or asks what it leaves to eager")
def test_a_result_that_is_written_to_is_left_to_eager() -> None:
    def function(x: Tensor) -> Tensor:
        y = F.logsigmoid(x.t()).contiguous()
        y += 1
        return y

    x = torch.randn(5, 7)
    with pytest.warns(lamina.LaminaWarning, match="other strides"):
        result = lamina.compile(function, dynamic=False)(x)
    torch.testing.assert_close(result, function(x), check_stride=True)


@pytest.mark.by_dynamo("counts Dynamo's graphs, or asks what it leaves to eager", "True")
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_batch_norm_across_rows_writes_its_statistics(dynamic: bool) -> None:
    x = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))
    mine, theirs = torch.nn.BatchNorm1d(5), torch.nn.BatchNorm1d(5)
    compiled = lamina.compile(lambda x: mine(x.transpose(1, 2)).relu(), dynamic=dynamic, options={"strict": True})
    if dynamic:  # the layout of the operand is not asked for what is a symbol
        with pytest.warns(lamina.LaminaWarning, match="other strides"):
            result = compiled(x)
    else:
        result = compiled(x)
    torch.testing.assert_close(result, theirs(x.transpose(1, 2)).relu(), check_stride=True)
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(mine.state_dict()[name], value)
