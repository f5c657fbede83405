"""Writes to and around every kind of view: values, memory that is shared, strides and gradients are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lamina

View = Callable[[Tensor], Tensor]

VIEWS: dict[str, View] = {
    "dropout of nothing": lambda x: F.dropout(x, 0.0),
    "dropout in evaluation": lambda x: F.dropout(x, 0.5, False),
    "torch.dropout in evaluation": lambda x: torch.dropout(x, 0.3, False),
    "module in evaluation": torch.nn.Dropout().eval(),
    "alpha dropout in evaluation": lambda x: F.alpha_dropout(x, 0.5, False),
    "feature dropout in evaluation": lambda x: F.dropout2d(x[None], 0.5, False),
    "contiguous": lambda x: x.contiguous(),
    "to its dtype": lambda x: x.to(torch.float32),
    "float": lambda x: x.float(),
    "view as its dtype": lambda x: x.view(torch.float32),
    "view as integers": lambda x: x.view(torch.int32),
    "view as halves": lambda x: x.view(torch.int16),
    "view as complex numbers": lambda x: torch.view_as_complex(x.view(4, 3, 5, 2)),
    "real parts": lambda x: torch.view_as_complex(x.view(4, 3, 5, 2)).real,
    "imaginary parts": lambda x: torch.view_as_complex(x.view(4, 3, 5, 2)).imag,
    "windows that leave elements out": lambda x: x.unfold(0, 3, 3),
    "windows with gaps": lambda x: x.unfold(1, 2, 3),
    "one window": lambda x: x.unfold(2, 3, 8),
    "windows that meet": lambda x: x.unfold(0, 2, 2),
    "windows of windows": lambda x: x.unfold(0, 3, 4).unfold(1, 2, 5),
    "windows of a slice": lambda x: x[1:, :, ::2].unfold(0, 2, 2),
    "diagonal": lambda x: x.diagonal(1, 0, 2),
    "strided": lambda x: x.as_strided((2, 3), (7, 2), 3),
    "every second": lambda x: x[::2, 1::3],
    "select": lambda x: x.select(1, 2),
    "chunk": lambda x: x.chunk(3)[1],
    "tensor_split": lambda x: x.tensor_split(3, 1)[2],
    "unbind": lambda x: x.unbind(2)[4],
    "unflatten": lambda x: x.unflatten(1, (2, 3)),
    "flatten": lambda x: x.flatten(1),
    "transposed": lambda x: x.mT[1:],
    "permuted": lambda x: x.permute(2, 0, 1)[3:, ::2],
    "moved": lambda x: x.movedim(0, 2).squeeze(),
    "squeezed": lambda x: x[1:2].squeeze(0),
    "with a new dimension": lambda x: x[:, None, 1:],
    "view": lambda x: x.view(2, -1),
    "reshape that copies": lambda x: x.mT.reshape(-1),
    "narrowed": lambda x: x.narrow(2, 1, 3),
    "positive": lambda x: +x,
    "resolved": lambda x: x.conj().resolve_conj(),
    "split by sizes": lambda x: x.split([1, 3], 0)[1],
    "pixels in place": lambda x: F.pixel_shuffle(x, 1),
    "repeated": lambda x: x.repeat(1, 1, 1),
}


def _written(view: View) -> Callable[[Tensor], Any]:
    def function(x: Tensor) -> Any:
        part = view(x)
        before = x * 2
        part.mul_(3)
        return x * 1, part, before

    return function


def _of_a_value(view: View) -> Callable[[Tensor], Any]:
    def function(x: Tensor) -> Any:
        base = x * 2
        part = view(base)
        part.copy_(part * 2)
        return base, part

    return function


def _around(view: View) -> Callable[[Tensor], Any]:
    def function(x: Tensor) -> Any:
        base = x * 2
        part = view(base)
        base[:, 1:3] += 1
        return part * 2, base.sum()

    return function


FORMS = {"an input": _written, "a value": _of_a_value, "around": _around}
OPTIONS: dict[str, dict[str, Any]] = {
    "fast": {},
    "eager": {"options": {"numerics": "eager"}},
    "dynamic": {"dynamic": True},
    "aten": {"backend": "aten"},
}


def _seen(function: Callable[[Tensor], Any]) -> tuple[list[Tensor], Any]:
    x = torch.linspace(-1, 1, 120).view(4, 6, 5).repeat(1, 1, 1)
    results = [x, *function(x)]
    places = [r.untyped_storage().data_ptr() for r in results]
    shared = [[a == b for a in places] for b in places]
    return results, (shared, [(r.dtype, r.stride(), r.storage_offset()) for r in results])


@pytest.mark.sampled(one_in=64)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("view", VIEWS)
def test_writes_around_views(view: str, form: str, options: str) -> None:
    function = FORMS[form](VIEWS[view])
    expected, shared = _seen(function)
    torch._dynamo.reset()
    found, memory = _seen(lamina.compile(function, **OPTIONS[options]))
    for ours, eagers in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, eagers, equal_nan=True)
    assert memory == shared


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.filterwarnings("ignore::lamina.errors.LaminaWarning")
def test_a_write_to_windows_that_overlap_is_eagers(size: int) -> None:
    def function(x: Tensor) -> Tensor:
        x.unfold(0, size, 1).add_(1)
        return x * 1

    torch._dynamo.reset()
    given, expected = torch.linspace(-1, 1, 7), torch.linspace(-1, 1, 7)
    torch.testing.assert_close(lamina.compile(function)(given), function(expected))
    torch.testing.assert_close(given, expected)


@pytest.mark.parametrize("view", [name for name in VIEWS if name.startswith("window")])
def test_gradients_of_windows_that_are_written_to(view: str) -> None:
    def function(x: Tensor) -> Tensor:
        base = x * 2
        VIEWS[view](base).mul_(3)
        return base.exp().sum() + VIEWS[view](base).sum()

    x = torch.linspace(-1, 1, 120).view(4, 6, 5).requires_grad_()
    (expected,) = torch.autograd.grad(function(x), x)
    torch._dynamo.reset()
    (found,) = torch.autograd.grad(lamina.compile(function)(x), x)
    torch.testing.assert_close(found, expected)
