"""Candidates that are wrong, slow or end badly, as builders ``model -> callable``."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

Model = Callable[..., Any]


def constant(model: Model) -> Model:
    return lambda x: torch.full_like(x, 12345.0)


def _in_a_fork() -> bool:
    """Whether the process that started this one is not its parent."""
    asked = multiprocessing.parent_process()
    return asked is not None and asked.pid != os.getppid()


def no_fork(model: Model) -> Model:
    """As torch in a fork of a process that has asked it for a GPU."""
    if _in_a_fork():
        raise RuntimeError("Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, ...")
    return model


def no_driver(model: Model) -> Model:
    """As CUDA in a fork of a process that something else than torch has asked for a GPU."""
    if _in_a_fork():
        raise RuntimeError("CUDA error: initialization error\nCUDA kernel errors might be reported later ...")
    return model


def wrong_dtype(model: Model) -> Model:
    return lambda x: model(x).double()


def one_wrong_element(model: Model) -> Model:
    def run(x: Tensor) -> Tensor:
        y = model(x).clone()
        y[2, 3] += 1e-3
        return y

    return run


class Box:
    """An output object that no comparison of tensors knows."""

    def __init__(self, inside: Tensor) -> None:
        self.inside = [{"y": inside}]


class Boxed(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Box:
        return Box(self.model(x))


def nan_inside(model: Model) -> Model:
    def run(x: Tensor) -> Box:
        y = model(x).inside[0]["y"].clone()
        y[1, 1] = float("nan")
        return Box(y)

    return run


def mutated_input(model: Model) -> Model:
    def run(x: Tensor) -> Tensor:
        y = model(x)
        x.mul_(2)
        return y

    return run


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


def wrong_gradient(model: Model) -> Model:
    return lambda x: _Doubled.apply(model(x))


def slower(model: Model) -> Model:
    """By 1 % of a call."""

    def run(x: Tensor) -> Tensor:
        start = time.perf_counter()
        y = model(x)
        end = time.perf_counter() + 0.01 * (time.perf_counter() - start)
        while time.perf_counter() < end:
            pass
        return y

    return run


def hang(model: Model) -> Model:
    def run(x: Tensor) -> Tensor:
        while True:
            time.sleep(1)

    return run


def segmentation_fault(model: Model) -> Model:
    def run(x: Tensor) -> Tensor:
        print("about to read what is not there", flush=True)
        ctypes.string_at(0)
        return model(x)

    return run


def out_of_memory(model: Model) -> Model:
    def run(x: Tensor) -> Tensor:
        return model(x) + torch.zeros(1 << 29).sum()

    return run


def exception_while_timed(model: Model) -> Model:
    calls = 0

    def run(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls > 12:
            raise ValueError("no more calls")
        return model(x)

    return run


def later_wrong(model: Model) -> Model:
    """Right in its first calls, and not any more after it was timed."""
    calls = 0

    def run(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return model(x) if calls < 12 else model(x) + 1

    return run


def hang_and_tell(model: Model, file: str) -> Model:
    """Write the number of the process to a file, and hang."""

    def run(x: Tensor) -> Tensor:
        Path(file).write_text(str(os.getpid()), encoding="ascii")
        return hang(model)(x)

    return run


def slows_eager(model: Model) -> Model:
    """Slower than eager, whose turns it slows down still more."""
    inner = model.forward

    def slowed(x: Tensor) -> Tensor:
        time.sleep(0.1)
        return inner(x)

    model.forward = slowed  # type: ignore[attr-defined]

    def run(x: Tensor) -> Tensor:
        time.sleep(0.01)
        return inner(x)

    return run


def poisoned_context(model: Model) -> Model:
    """Reads beyond a tensor of the GPU, after which no call of this process succeeds."""

    def run(x: Tensor) -> Tensor:
        y = model(x)
        return y + x.flatten()[torch.full((1,), 1 << 40, device=x.device)]

    return run


def gpu_out_of_memory(model: Model) -> Model:
    return lambda x: model(x) + torch.empty(1 << 42, device=x.device)[0]


def gpu_hang(model: Model) -> Model:
    """Gives the GPU work for an hour."""

    def run(x: Tensor) -> Tensor:
        while True:
            torch.cuda._sleep(1 << 40)  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()

    return run


def unfinished(model: Model) -> Model:
    """Computes on a stream that nobody waits for: what is read at once is not there yet."""
    side = torch.cuda.Stream()

    def run(x: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(1 << 28)  # type: ignore[no-untyped-call]
            y.copy_(model(x))
        return y

    return run
