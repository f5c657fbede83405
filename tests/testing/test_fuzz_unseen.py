"""Programs that random ones were reduced to: writes past autograd, draws that nothing uses, objects of one element."""

from __future__ import annotations

import pytest
import torch

import lamina
from lamina.testing.fuzz import check

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
from lamina.testing.fuzz import attempt, backward, pause, sample, unbacked
"""

PROGRAMS = {
    "a view of a leaf is written to past autograd": """
def f(x):
    v = x.detach()
    v[0] = 3.0
    return v
def program(compile):
    for dynamic in (False, True):
        x = sample(2, 3, grad=True)
        yield compile(f, dynamic=dynamic)(x.t()), x
""",
    "the data of a view of a leaf are written to": """
def f(x):
    x.data.mul_(2)
    return x * x
def program(compile):
    x = sample(2, 3, grad=True)
    out = compile(f)(x.t())
    yield out, backward(out), x.grad
""",
    "a detached buffer gets a history and is returned": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(sample(2, seed=4))
        self.register_buffer('seen', sample(2, seed=5))
    def forward(self, x):
        v = self.seen.detach()
        v.mul_(self.w)
        return v, x / 2
def program(compile):
    for options in ({}, {"numerics": "eager"}):
        net = Net()
        out = compile(net, options=options)(sample(3, grad=True))
        yield out, backward(out), net.seen, net.w.grad
""",
    "what is detached of an argument gets a history and is returned": """
def f(x, w):
    v = x.detach()
    v.mul_(w)
    return v * 2, x * 3, v
def program(compile):
    for dynamic in (False, True):
        for x in (sample(3), sample(3, grad=True), sample(3, grad=True) * 1):
            w = sample(3, seed=1, grad=True)
            out = compile(f, dynamic=dynamic)(x, w)
            yield out, x, backward(out), w.grad
""",
    "a part of a single element with another stride": """
def f(x):
    v = x.relu()
    return v, v.flatten()[::3], -x
def program(compile):
    for dynamic in (None, True, False):
        g = compile(f, dynamic=dynamic)
        for n in (3, 1, 2):
            yield g(sample(n))
""",
    "random numbers that are written over": """
def f(x, y):
    v = F.dropout(x, 0.5)
    v.copy_(y)
    return v, F.dropout(y, 0.5), torch.rand_like(x).zero_(), torch.rand_like(x)
def program(compile):
    yield compile(f, options={"numerics": "eager"})(sample(2, 5), sample(2, 5, seed=1))
""",
    "random numbers of which only the size is used": """
def f(x, y):
    v = F.dropout(x, 0.5)
    return v.new_zeros(v.shape[0], 2) + v.shape[-1], F.dropout(y, 0.5)
def program(compile):
    for grad in (False, True):
        yield compile(f, options={"numerics": "eager"})(sample(2, 5, grad=grad), sample(2, 5, seed=1))
""",
    "a loss over as many rows as the data say": """
def f(x):
    v = torch.zeros(int((x > 0).sum()), 2) + 1
    return F.cross_entropy(v, torch.zeros(v.shape[0], dtype=torch.int64))
def program(compile):
    with unbacked():
        yield compile(f)(sample(5))
""",
    "a loss over no classes": """
def f(x):
    v = torch.zeros(int((x > 0).sum()), 0)
    return attempt(F.cross_entropy, v, torch.zeros(v.shape[0], dtype=torch.int64))
def program(compile):
    with unbacked():
        yield attempt(compile(f), sample())
""",
    "versions of inputs after an error before the first write": """
def f(x):
    v = x[[0]]
    x.mul_(2)
    return v
def program(compile):
    x = torch.zeros(0)
    yield x
    yield attempt(compile(f), x)
""",
    "versions of inputs after an error between writes": """
def f(x, y):
    x.mul_(2)
    v = y[[0]]
    y.mul_(x.sum())
    return v
def program(compile):
    x, y = sample(3), torch.zeros(0)
    yield x, y
    yield attempt(compile(f), x, y)
""",
    "modes that change operations of a backward that computes them again": """
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
class Operations(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.ops.aten.sin.default else result
class Functions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.sin else result
def f(x):
    v = x.sin()
    return v + torch.sin(v)
def program(compile):
    g = compile(f)
    for mode in (Operations, Functions):
        x = sample(2, 3, seed=1, grad=True)
        out = g(x)
        with mode():
            yield backward(out)
        yield x.grad
""",
    "a function of the program's that gives no gradient, beside a view of an argument": """
class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        return x * w
    @staticmethod
    def backward(ctx, gradient):
        return None, None
def f(x, w):
    h = x.detach()
    return Own.apply(h, w) * 2, h
def program(compile):
    x, w = sample(3), sample(3, seed=1, grad=True)
    out = compile(f)(x, w)
    yield out, backward(out), w.grad
""",
}


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("target", ["lamina", "lamina:interp"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_runs_as_in_eager(name: str, target: str) -> None:
    assert check(HEAD + PROGRAMS[name], target).differences == ()


def test_writes_past_autograd_that_are_safe_are_compiled() -> None:
    """To a leaf, and to an input without a history: buffers of averages are updated so."""

    def f(x: torch.Tensor, leaf: torch.Tensor, average: torch.Tensor) -> torch.Tensor:
        leaf.detach().mul_(2)
        average.detach().lerp_(x.detach(), 0.1)
        return x * leaf

    compiled = lamina.compile(f, options={"strict": True})
    x, leaf, average = torch.ones(3, requires_grad=True) * 1, torch.ones(3, requires_grad=True), torch.zeros(3)
    compiled(x, leaf, average).sum().backward()
    assert leaf.grad is not None
    torch.testing.assert_close(average, torch.full((3,), 0.1))
    assert not [d for stage in compiled.record.stages for d in stage.decisions if d.kind in ("eager", "fallback")]
