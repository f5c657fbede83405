"""Candidates that give what eager gives where nobody looks, and such that leave something behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

Model = Callable[..., Any]


class Logs(nn.Module):
    """NaN, and infinite of both signs."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x.log(), x.clamp(max=0) / 0.0])


class Counter(nn.Module):
    """Has a buffer that nobody writes to."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return x.sin() + self.calls


def first_answer(model: Model) -> Model:
    """The output of the first call, always."""
    held: list[Tensor] = []

    def run(x: Tensor) -> Tensor:
        held.append(held[0] if held else model(x))
        return held[0].clone()

    return run


def answer_by_size(model: Model) -> Model:
    """The output of the first call with a size, always."""
    held: dict[Any, Tensor] = {}

    def run(x: Tensor) -> Tensor:
        return held.setdefault(x.shape, model(x)).clone()

    return run


def argument_while_timed(model: Model) -> Model:
    """Writes to its argument once it has been given the same one for a few calls."""
    last, calls = 0, 0

    def run(x: Tensor) -> Tensor:
        nonlocal last, calls
        last, calls = x.data_ptr(), calls + 1 if last == x.data_ptr() else 0
        y = model(x)
        if calls > 5:
            x.add_(1.0)
        return y

    return run


def for_one_size(model: Model) -> Model:
    return lambda x: model(x) if len(x) == 4 else model(x) * 1.5


def every_other_call(model: Model) -> Model:
    calls = 0

    def run(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return model(x) if calls % 2 else model(x) + 1

    return run


def one_buffer(model: Model) -> Model:
    """All outputs are in one memory."""
    held: list[Tensor] = []

    def run(x: Tensor) -> Tensor:
        y = model(x)
        if not held:
            held.append(torch.empty_like(y))
        return held[0].copy_(y).view(y.shape)

    return run


def other_strides(model: Model) -> Model:
    return lambda x: model(x).t().contiguous().t()


def infinite_for_nan(model: Model) -> Model:
    return lambda x: model(x).nan_to_num(torch.inf, torch.inf, -torch.inf)


def finite_for_nan(model: Model) -> Model:
    return lambda x: torch.where(model(x).isnan(), 0.0, model(x))


def nan_for_infinite(model: Model) -> Model:
    def run(x: Tensor) -> Tensor:
        y = model(x)
        return torch.where(y == -torch.inf, torch.nan, y)

    return run


def other_sign(model: Model) -> Model:
    return lambda x: torch.where(model(x).isinf(), -model(x), model(x))


def counts(model: Model) -> Model:
    """Writes to a buffer of the model, by a value that is lost in rounding."""

    def run(x: Tensor) -> Tensor:
        y = model(x)
        model.calls.add_(1e-12)  # type: ignore[attr-defined]
        return y

    return run


def draws(model: Model) -> Model:
    """Draws random numbers that it does not use."""

    def run(x: Tensor) -> Tensor:
        torch.rand(3)
        return model(x)

    return run


def noisy(model: Model) -> Model:
    return lambda x: model(x) + 1e-4 * torch.rand_like(x)


def its_argument(model: Model) -> Model:
    """Gives back an argument that has the right values, not a new tensor."""
    return lambda x: x.copy_(model(x))


def detached(model: Model) -> Model:
    return lambda x: model(x).detach()


def no_bias_gradient(model: Model) -> Model:
    def run(x: Tensor) -> Tensor:
        y = torch.relu(model.first(x))  # type: ignore[attr-defined]
        return nn.functional.linear(y, model.second.weight, model.second.bias.detach()).softmax(-1)  # type: ignore[attr-defined]

    return run


def threads_at_build(model: Model) -> Model:
    torch.set_num_threads(torch.get_num_threads() + 1)
    return model


def dtype_at_build(model: Model) -> Model:
    torch.set_default_dtype(torch.float64)
    return lambda x: model(x)


def gradients_at_call(model: Model) -> Model:
    def run(x: Tensor) -> Tensor:
        torch.set_grad_enabled(not torch.is_grad_enabled())
        return model(x)

    return run


def precision_while_timed(model: Model) -> Model:
    calls = 0

    def run(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 8:
            torch.set_float32_matmul_precision("medium")
        return model(x)

    return run


def ends(model: Model) -> Model:
    def run(x: Tensor) -> Tensor:
        os._exit(0)

    return run


def leaves(model: Model) -> Model:
    def run(x: Tensor) -> Tensor:
        sys.exit("no more")

    return run


def interrupts(model: Model) -> Model:
    def run(x: Tensor) -> Tensor:
        raise KeyboardInterrupt

    return run


def stops(model: Model) -> Model:
    def run(x: Tensor) -> Tensor:
        os.kill(os.getpid(), signal.SIGSTOP)
        return model(x)

    return run


def aborts(model: Model) -> Model:
    def run(x: Tensor) -> Tensor:
        os.abort()

    return run


def recursion(model: Model) -> Model:
    def run(x: Tensor) -> Tensor:
        return run(x)

    return run


def writes_for_ever(model: Model) -> Model:
    def run(x: Tensor) -> Tensor:
        while True:
            os.write(1, b"and again " * 1000 + b"\n")

    return run


def closes_output(model: Model) -> Model:
    def run(x: Tensor) -> Tensor:
        for number in range(3):
            os.close(number)
        sys.exit(0)

    return run


def starts_another(model: Model, file: str) -> Model:
    """Starts a process that outlives it."""

    def run(x: Tensor) -> Tensor:
        other = subprocess.Popen(["sleep", "1000"])
        Path(file).write_text(str(other.pid))
        os._exit(3)

    return run
