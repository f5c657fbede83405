"""Optimizer steps, compiled whole: as eager, and in kernels of our own."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import lamina

OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "adamw_foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True, maximize=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01, lr_decay=0.1),
}


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps(name: str) -> None:
    torch.compiler.reset()
    torch.manual_seed(0)
    ours = [nn.Parameter(torch.randn(shape)) for shape in ((16, 24), (24,), (3, 4, 5), (16, 24))]
    theirs = copy.deepcopy(ours)
    optimizers = [OPTIMIZERS[name](ours), OPTIMIZERS[name](theirs)]
    step = lamina.compile(optimizers[0].step, dynamic=False)
    for _ in range(4):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        step()
        optimizers[1].step()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-6, atol=1e-6)
    plans = [stage.value for stage in step.record.stages if stage.name == "plan"]
    assert plans
    assert sum(plan.library_count for plan in plans) == 0
