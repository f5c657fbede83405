"""Programs that random ones were reduced to, in which values, errors or states of a compiled function differed."""

import pytest

from lamina.testing.fuzz import check

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
from lamina.testing.fuzz import attempt, backward, pause, sample, unbacked
"""

PROGRAMS = {
    "a place that turns out to be a number": """
def f(x):
    u = x.masked_fill(x > 0, 0.5)
    v = u.scatter_add(0, torch.zeros_like(u).long(), u)
    w = x.scatter_add(0, torch.zeros_like(x).long(), x)
    first = torch.tensor([0, 0])
    return w, u.index_add(0, first, u[:2]), v.index_add(0, first, v[:2])

def program(compile):
    g = compile(f, dynamic=True, options={"numerics": "eager"})
    for n in (3, 2, 17):
        x = sample(n, grad=True)
        out = attempt(g, x)
        yield out, backward(out), x.grad
""",
    "a place from memory and a point, both compared with a number of the call": """
def f(x, k):
    v = x.scatter_add(0, torch.zeros_like(x).long(), x)
    return v, v[: (k % 3)] * 2

def program(compile):
    g = compile(f)
    for k in (1, 2, -2, 0):
        x = sample(17, grad=True) * 1
        out = attempt(g, x, k)
        yield x, out, backward(out)
""",
    "a view of another argument whose base has sizes of its own": """
def f(x0, x1):
    x0.relu_()
    x1[0:] += 0

def program(compile):
    g = compile(f)
    x0 = sample(0)
    x1 = x0[: x0.numel()]
    yield attempt(g, x0, x1)
    x0 = sample(2)
    x1 = x0.view_as(x0)
    yield attempt(g, x0, x1), x0
""",
    "a view at a run-time place of a written input with gaps": """
def f(x, k):
    v = x.narrow(0, k, 1)
    x.copy_(x)
    return v

def program(compile):
    g = compile(f, dynamic=True)
    for k, x in ((1, sample(4)[::2]), (2, sample(6)), (1, sample(9)[3:]), (3, sample(9)[1::2])):
        yield x, attempt(g, x, k)
""",
    "a view by strides of a written input that begins elsewhere": """
def f(x, k):
    v = x.as_strided((1,), (k,))
    x.mul_(2)
    return v, x + 1

def program(compile):
    g = compile(f, dynamic=True)
    for k, x in ((1, sample(4)), (2, sample(6)[2:]), (3, sample(9)[1::2])):
        yield x, attempt(g, x, k)
""",
    "a cache that is written to and returned in part": """
def f(cache, x, k):
    with torch.no_grad():
        cache[:, k : k + 2] = x
        first, second = cache.chunk(2, 1)
    cache[:, 1:].mul_(2)
    return cache[:, : k + 2], second[:, k:], cache, x.sum()

def program(compile):
    g = compile(f, dynamic=True)
    for k, x in ((1, sample(3, 8)), (2, sample(5, 9)[1:]), (3, sample(5, 24)[1::2, ::2])):
        yield x, attempt(g, x, torch.ones(x.shape[0], 2), k)
""",
    "a view that needs more than its input": """
def f(x, w, k):
    v = x[: (w @ w.t()).shape[0] - k]
    x.mul_(2)
    return v

def program(compile):
    g = compile(f, dynamic=True)
    for k, x in ((1, sample(6)), (2, sample(9)[2:]), (1, sample(9)[::2])):
        yield x, attempt(g, x, sample(4 + k, 2), k)
""",
    "a gradient outside of the autocast that its forward ran in": """
def f(x, w):
    with torch.autocast("cpu", enabled=False):
        return (x @ w).sin()

def program(compile):
    g = compile(f)
    x, w = sample(4, 4), sample(4, 4, seed=2, grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = attempt(g, x, w)
    yield out, backward(out), w.grad
""",
    "an unused draw that is written to": """
def f(x):
    a = F.dropout(x, 0.5)
    a.mul_(a)
    b = F.dropout(x, 0.5)
    c = torch.empty(3)
    c.normal_()
    return b

def program(compile):
    g = compile(f, options={"numerics": "eager"})
    yield attempt(g, sample(5))
    yield torch.rand(3)
""",
    "a step that leaves one element": """
def f(x, k):
    return torch.atan2(x[1:4:k], x)

def program(compile):
    g = compile(f, dynamic=True)
    yield attempt(g, sample(2), 1)
    yield attempt(g, sample(2, seed=1), 2)
""",
    "a size of the data that is taken to fit another": """
def f(x):
    y = x.repeat_interleave(torch.arange(x.shape[0]), 0)
    return y, y + x

def program(compile):
    g = compile(f)
    with unbacked():
        yield attempt(g, sample(6))
""",
    "two sizes of the data of which one is 1": """
def f(x, y):
    return x.nonzero()[:, 0] + y.unique(), x[x > 0] * 2

def program(compile):
    g = compile(f)
    for x, y in ((torch.arange(4), torch.ones(4)), (torch.ones(3), sample(3)), (torch.tensor([0, 2]), sample(2))):
        with unbacked():
            yield attempt(g, x, y)
""",
    "a step of the data that is not positive": """
def f(x, t):
    return x[1:8:t.sum().item()] * 2

def g(x, t):
    y = x + 1
    y[:: int(t.sum()), 0] = 5
    return y

def program(compile):
    for each, dynamic in ((f, None), (g, True)):
        h = compile(each, dynamic=dynamic)
        for k in (2, -1, 0, 3):
            with unbacked():
                yield attempt(h, sample(9, 2), torch.tensor([k, 0]))
""",
    "a mask that is wider than what it selects from": """
def f(x, m):
    return torch.masked_select(x, m) * 2, x.masked_select(m[0]).sum()

def program(compile):
    for dynamic in (None, True):
        g = compile(f, dynamic=dynamic)
        for n in (3, 4):
            with unbacked():
                yield attempt(g, sample(1, n, grad=True), sample(2, 3, n) > 0)
                yield attempt(g, sample(3, n), sample(2, 3, n) > 0)
""",
    "padding that takes more than there is": """
def f(x, k):
    return F.pad(x, (2, k)) * 1, F.pad(x, (k, 5, k, 5))

def program(compile):
    for dynamic in (False, True):
        g = compile(f, dynamic=dynamic)
        for n, k in ((3, -2), (3, -4), (3, -5), (4, -4), (4, 2), (7, -8)):
            yield attempt(g, sample(n, n), k)
""",
    "dtypes that few operators know": """
def f(x):
    y = x.to(torch.uint16)
    z = y.clone()
    z[1:] = y[:-1]
    return y, z, x.to(torch.uint32) * 2, x.to(torch.uint64).expand(2, 5).t().contiguous()

def program(compile):
    yield attempt(compile(f), torch.arange(5))
""",
}


@pytest.mark.sampled(one_in=5)
@pytest.mark.parametrize("target", ["lamina", "lamina:interp"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str, target: str) -> None:
    verdict = check(HEAD + PROGRAMS[name], target)
    assert not verdict.differences
