"""Programs that random ones were reduced to, whose values were wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lamina.testing.fuzz import check

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
from lamina.testing.fuzz import attempt, backward, pause, sample
"""

PROGRAMS = {
    "nothing is written, and the same loops compute a result": """
def f(x):
    x[1:].copy_(x)
    return -x
def program(compile):
    x = sample(1)
    yield compile(f)(x), x
""",
    "what is written may be empty, and the same loops compute a result": """
def f(x, k):
    v = x * float(k)
    v[: k % 2] += 0
    return v
def program(compile):
    g = compile(f, dynamic=True)
    for k in (0, 1, 2, 3):
        yield g(sample(1, grad=True), k)
""",
    "sums over what may be empty, beside other results": """
def f(x, y, k):
    z = y[:, : k % 3]
    return z.sum(1) + x, -x, z * x[:, None], z.sum(0)
def program(compile):
    g = compile(f, dynamic=True)
    for k in (4, 3, 2, 6):
        yield g(sample(5), sample(5, 6), k)
""",
    "a list of tensors is written to after one of them was saved": """
def f(x):
    v = x.sigmoid()
    torch._foreach_mul_([v, x * 2], 2.0)
    return v * 1
def program(compile):
    x = sample(3, grad=True)
    yield attempt(backward, compile(f)(x)), x.grad
    x = sample(4, grad=True)
    yield attempt(backward, compile(f, dynamic=True)(x)), x.grad
""",
    "a list of inputs is written to after one of them was saved": """
def f(x, y):
    v = x * y
    torch._foreach_add_([y], [x.detach()])
    return v * 1
def program(compile):
    for dynamic in (False, True):
        x, y = sample(3, grad=True), sample(3, seed=1)
        yield attempt(backward, compile(f, dynamic=dynamic)(x, y)), x.grad, y
""",
    "a list of tensors is written to, and nothing needs the old values": """
def f(x, y):
    v = x * 3
    torch._foreach_add_([v, y], [x, x.detach()])
    return v.exp()
def program(compile):
    for dynamic in (False, True):
        x, y = sample(3, grad=True), sample(3, seed=1)
        yield attempt(backward, compile(f, dynamic=dynamic)(x, y)), x.grad, y
""",
    "signs of zeros in the gradient of a softmax": """
def f(x):
    return x.softmax(1), x.softmax(0)
def program(compile):
    for dtype in (torch.float32, torch.float16):
        x = sample(3, 17, dtype=dtype, seed=1, grad=True)
        with torch.no_grad():
            x[:, 0] = -torch.inf
        yield backward(compile(f)(x)), x.grad
""",
    "signs of zeros of normalised zeros": """
def f(x, w, b):
    return (
        F.layer_norm(x, (4,)), F.layer_norm(x, (4,), w), F.layer_norm(x, (4,), w, b),
        F.group_norm(x, 2), F.group_norm(x, 2, w), F.group_norm(x, 2, w, b),
    )
def program(compile):
    for dtype in (torch.float32, torch.bfloat16):
        w = sample(4, dtype=dtype)
        for x in (torch.zeros(3, 4, 4), -torch.zeros(3, 4, 4), sample(3, 4, 4) * 0):
            yield compile(f)(x.to(dtype), w, w * w)
""",
    "signs of zeros of sums of nothing but -0.0": """
def f(x):
    return x.sum(), x.mean(0, keepdim=True), x.nansum(), x.cumsum(0), torch.var_mean(x, 0, correction=0)[1]
def program(compile):
    for shape in ((), (1,), (1, 3), (2, 3)):
        yield compile(f, dynamic=False)(-torch.zeros(shape))
""",
    "signs of zeros of negative sums of products": """
def f(x, y, z):
    return -(x * y + z), -(x * y - z), -(z - x * y)
def program(compile):
    for size in (1, 7, 40):
        for dtype in (torch.float32, torch.float64):
            one, zero = torch.ones(size, dtype=dtype), torch.zeros(size, dtype=dtype)
            for x in (one, -one, zero):
                yield [compile(f)(x, one, z) for z in (one, -one, zero, -zero)]
""",
}


@pytest.mark.sampled(one_in=6)
@pytest.mark.parametrize("target", ["lamina", "lamina:interp"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_values_are_eagers(name: str, target: str) -> None:
    assert check(HEAD + PROGRAMS[name], target).differences == ()


def off_by(part: float) -> Callable[..., Any]:
    """A compile function whose programs' results are off by a part of their value."""

    def compile(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *inputs: function(*inputs) * (1 + part)

    return compile


in_the_last_digits, in_the_first_half = off_by(1e-14), off_by(1e-7)

DOUBLES = """
def f(x):
    return x.exp()
def program(compile):
    yield compile(f)(sample(5, dtype=torch.float64))
"""


def test_rounding_in_float64_is_not_judged_by_a_run_that_is_eagers_own() -> None:
    assert check(HEAD + DOUBLES, f"{__name__}:in_the_last_digits").ok
    assert check(HEAD + DOUBLES, f"{__name__}:in_the_first_half").kind == "value"
