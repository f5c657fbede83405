"""Methods of torch.Tensor's that a program replaces between two calls, and functions with caches behind a graph."""

from __future__ import annotations

import functools

import pytest
import torch

from lamina.capture.own.callable import interpreted_callable
from lamina.record import Record
from tests.capture.own.machines import MACHINES

X = torch.arange(1.0, 5.0)


def interpreted(program, machine=MACHINES["python"]):
    return interpreted_callable(
        program, backend_callable=lambda gm, fakes: gm.forward, record=Record(), machine=machine
    )


OPERATORS = {
    "__pow__": (lambda x: x**2, lambda self, *rest: self * 7),
    "__rpow__": (lambda x: 2.0**x, lambda self, *rest: self * 7),
    "__rsub__": (lambda x: 1.0 - x, lambda self, *rest: self * 7),
    "__rdiv__": (lambda x: x.__rdiv__(1.0), lambda self, *rest: self * 7),
    "__floordiv__": (lambda x: x // 2, lambda self, *rest: self * 7),
    "__mod__": (lambda x: x % 2, lambda self, *rest: self * 7),
    "__matmul__": (lambda x: x @ x, lambda self, *rest: self * 7),
    "__add__": (lambda x: x + 1, lambda self, *rest: self * 7),
    "__neg__": (lambda x: -x, lambda self: self * 7),
    "__lt__": (lambda x: (x < 2) * 1.0, lambda self, *rest: self * 7),
    "__getitem__": (lambda x: x[1:], lambda self, *rest: self * 7),
    "__len__": (lambda x: x * len(x), lambda self: 2),
    "__iter__": (lambda x: sum(part * at for at, part in enumerate(x)), lambda self: iter([X, X * 3])),
    "__bool__": (lambda x: x * 2 if x.sum() > 0 else x, lambda self: False),
    "norm": (lambda x: x.norm(), lambda self, *rest: self * 7),
}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", OPERATORS)
def test_a_method_of_tensors_that_is_replaced_is_seen(name, machine, monkeypatch) -> None:
    program, other = OPERATORS[name]
    compiled = interpreted(program, MACHINES[machine])
    for _ in range(3):
        torch.testing.assert_close(compiled(X), program(X))
    before = program(X)
    with monkeypatch.context() as patched:
        patched.setattr(torch.Tensor, name, other)
        assert not torch.equal(program(X), before)
        for _ in range(2):
            assert torch.equal(compiled(X), program(X))
    torch.testing.assert_close(compiled(X), before)


def of_what_is_written():
    held = torch.ones(3)
    scaled = functools.cache(lambda k: held * k)

    def program(x):
        held.add_(1)
        return x * scaled(3)

    return program


def of_what_is_drawn():
    noise = functools.cache(lambda: torch.rand(3))
    return lambda x: torch.rand(3) + noise() + x


def of_a_count():
    double = functools.cache(lambda k: k * 2)
    return lambda x: x * double(3) + double.cache_info().hits


@pytest.mark.parametrize("make", [of_what_is_written, of_what_is_drawn, of_a_count])
def test_a_function_with_a_cache_is_called_after_the_graph_that_it_may_see(make) -> None:
    results = []
    for entry in (interpreted, lambda program: program):
        torch.manual_seed(0)
        run = entry(make())
        results.append([run(torch.ones(3)) for _ in range(4)])
    for mine, eager in zip(*results, strict=True):
        torch.testing.assert_close(mine, eager)
