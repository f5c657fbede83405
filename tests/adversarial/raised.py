"""Errors of calls that a program handles itself, first or in a later call, and operators of its own that raise."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.library import custom_op

from lamina.testing.fuzz import attempt, sample

calls = []


@custom_op("lamina_tests_raised::refuses", mutates_args=())
def refuses(x: torch.Tensor, k: int) -> torch.Tensor:
    calls.append(k)
    if k == 3:
        raise ValueError("three")
    return x * k


@refuses.register_fake
def _(x, k):
    return torch.empty_like(x)


def operators_of_the_program(compile):
    def plain(x, k):
        return refuses(x * 2, k) + 1

    def handled(x, k):
        y = x + 1
        try:
            return refuses(x * 2, k) + 1
        except ValueError:
            return y

    for function in (plain, handled):
        for order in ((3, 2, 3), (2, 3)):
            compiled = compile(function)
            for k in order:
                calls.clear()
                yield attempt(compiled, sample(3), k), list(calls)


def draws_before_errors(compile):
    def handled(x, at):
        y = F.dropout(x, 0.5)
        try:
            z = y[at] * 2
        except IndexError:
            return y, torch.rand(2)
        return z, torch.rand(2)

    def plain(x, at):
        y = F.dropout(x, 0.5)
        return x[at] * 2 + y.sum(), torch.rand(2)

    for function in (handled, plain):
        for place in (1, 30):
            torch.manual_seed(1)
            yield attempt(compile(function), torch.ones(12), torch.tensor([place])), torch.rand(2)
