"""Compile functions that are wrong in one way each, for the tests of the fuzzer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def _changed(function: Callable[..., Any], change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        out = function(*args)
        if isinstance(out, tuple):
            return tuple(change(t) if isinstance(t, Tensor) else t for t in out)
        return change(out) if isinstance(out, Tensor) else out

    return run


def value(function: Any) -> Any:
    return _changed(function, lambda t: t * 1.001)


def rounding(function: Any) -> Any:
    return _changed(function, lambda t: t + 40 * torch.finfo(t.dtype).eps * t.abs().max())


def slow_rounding(function: Any) -> Any:
    time.sleep(0.25)
    return _changed(function, lambda t: t * (1 + 40 * torch.finfo(t.dtype).eps))


def nan(function: Any) -> Any:
    return _changed(function, lambda t: torch.where(t == t.max(), torch.nan, t))


def zero(function: Any) -> Any:
    return _changed(function, lambda t: torch.where(t == 0, -t, t))


def dtype(function: Any) -> Any:
    return _changed(function, Tensor.double)


def strides(function: Any) -> Any:
    return _changed(function, lambda t: t.t().contiguous().t())


def detached(function: Any) -> Any:
    return _changed(function, Tensor.detach)


def copied(function: Any) -> Any:
    return _changed(function, Tensor.clone)


def written(function: Any) -> Any:
    def run(x: Tensor, *args: Any) -> Any:
        with torch.no_grad():
            x.mul_(1)
        return function(x, *args)

    return run


def doubled_input(function: Any) -> Any:
    def run(x: Tensor, *args: Any) -> Any:
        out = function(x, *args)
        with torch.no_grad():
            x.mul_(2)
        return out

    return run


def mode(function: Any) -> Any:
    def run(*args: Any) -> Any:
        out = function(*args)
        torch.set_default_dtype(torch.float64)
        return out

    return run


def draws(function: Any) -> Any:
    def run(*args: Any) -> Any:
        torch.rand(1)
        return function(*args)

    return run


def error(function: Any) -> Any:
    def run(*args: Any) -> Any:
        raise KeyError("wrong")

    return run


def crash(function: Any) -> Any:
    def run(*args: Any) -> Any:
        os.abort()

    return run


def hang(function: Any) -> Any:
    def run(*args: Any) -> Any:
        while True:
            time.sleep(0.1)

    return run


NOT_CALLABLE = 3
