"""Programs on numbers that Python and NumPy compute with, whether or not a tensor sees what comes of them."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F

from lamina.testing.fuzz import attempt, sample

INTEGERS = (2, 3, 1, 0, -1, 5)
FLOATS = (0.5, 0.25, 0.75, 2.0, 3.0, 1.0, 0.0, -1.0, 5.0, -0.0, math.inf, -math.inf, math.nan, 1e300, -2.5)
SCALE = np.float64(0.5)


def integers_that_python_refuses(compile):
    """Whatever nothing uses is left out of a graph; Python computes it, and may raise."""
    for op in (
        lambda k: 1 // k,
        lambda k: 1 % k,
        lambda k: 1 / k,
        lambda k: 1 << k,
        lambda k: divmod(3, k),
        lambda k: math.sqrt(k),
        lambda k: float(k) ** -1,
        lambda k: 6 // (k - 3),
    ):
        for dynamic in (None, True):
            unused = compile(lambda x, k, op=op: (op(k), x + 1)[1], dynamic=dynamic)
            for k in INTEGERS:
                yield attempt(unused, sample(4), k)


def floats_that_python_refuses(compile):
    for op in (
        lambda k: 1 / k,
        lambda k: k**-1.5,
        lambda k: 2.0 ** (k * 1000),
        lambda k: math.sqrt(k - 1),
        lambda k: math.log2(k),
        lambda k: math.cosh(k * 1000),
        lambda k: math.sin(k),
        lambda k: int(k),
        lambda k: math.floor(1 / k),
    ):
        unused = compile(lambda x, k, op=op: (op(k), x + 1)[1])
        for k in FLOATS:
            yield attempt(unused, sample(4), k)


def floats_as_python_rounds_them(compile):
    for op in (
        lambda k: k // 0.1,
        lambda k: 1 // k,
        lambda k: max(k, 0.0),
        lambda k: min(0.0, k, 0.5),
        lambda k: k + 0.0,
        lambda k: sum([k] * 3),
        lambda k: (k + 1e16) - 1e16,
        lambda k: k - k,
        lambda k: k * 0.0,
    ):
        used = compile(lambda x, k, op=op: (x * op(k), op(k)))
        for k in FLOATS:
            out = attempt(used, sample(4), k)
            yield out, repr(out[1]) if isinstance(out, tuple) else None


def numbers_of_numpy(compile):
    """Numbers to torch, of no dtype; ``float64`` is a float besides."""
    for f in (
        lambda x, k: (x.sum() * k, k * x.sum(), x * k, x.int() * k, x.half().sum() + k),
        lambda x, k: (x.sum() * np.sqrt(2), x.int() * np.sqrt(2), x.sum() * np.float32(0.5)),
        lambda x, k: (x.mean() * SCALE, x.int() / SCALE, x.sum() ** SCALE, x.sum() * np.arange(3).mean()),
        lambda x, k: (torch.full((2,), k), torch.where(x > 0, x, k), x.clamp(max=k), x.sum() > k),
    ):
        g = compile(f)
        for k in (np.float64(0.5), np.float32(2.5), np.int64(2), np.int8(3), np.bool_(True)):
            yield attempt(g, sample(4), k)


def tensors_filled_with_tensors(compile):
    for f in (
        lambda x: torch.full((2,), x.argmax()),
        lambda x: torch.full((2,), x.sum().double()),
        lambda x: torch.full((2,), (x > 0).any()),
        lambda x: torch.full((2,), x.sum() * 1j),
        lambda x: torch.full((2,), x.argmax(), dtype=torch.float32),
    ):
        g = compile(f)
        for grad in (False, True):
            yield attempt(g, sample(4, grad=grad))


def dropouts_that_drop_nothing(compile):
    def same(x):
        v = F.dropout(x, 0.0)
        return v, v is x, v.requires_grad, F.dropout(x, 0.5, training=False) is x

    def written(x):
        F.dropout(x, 0.5, training=False).mul_(2)
        return x * 2

    def asked(x):
        v = torch.dropout(x, 0.0, True)
        return F.dropout(v, 0.5, training=v.requires_grad)

    for f in (same, written, asked):
        g = compile(f, options={"numerics": "eager"})
        for grad in (True, False):
            for rows in (2, 4, 5):
                torch.manual_seed(0)
                x = sample(rows, 3, grad=rows > 2)
                with torch.set_grad_enabled(grad):
                    yield attempt(g, x), x


def roots_of_half_precision(compile):
    g = compile(lambda x: (x**0.5, x**-0.5, x.sqrt(), x.rsqrt()))
    values = torch.tensor([-0.0, 0.0, -math.inf, math.inf, 4.0, -1.0] * 7)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        yield g(values.to(dtype))


def additions_to_one_place(compile):
    """What is added may be a number, and where to another one: it is added as often as there are places."""

    def f(x):
        zeros = torch.zeros(2, 2, dtype=torch.int64)
        y = x.scatter_add(0, zeros, torch.ones(2, 2)), x.scatter(1, zeros + 1, 1.0, reduce="add")
        z = x.index_put((zeros[0],), torch.tensor(1.0), accumulate=True), x.index_add(0, zeros[0], torch.ones(2, 2))
        return y, z, x.put(zeros, torch.ones(2, 2), accumulate=True)

    def of_gradients(x):
        zeros = torch.zeros(3, dtype=torch.int64)
        parts = x[zeros], F.embedding(zeros, x), x.index_select(0, zeros), x.take(zeros), x.gather(0, zeros[None])
        return sum(part.sum() for part in parts)

    g, h = compile(f), compile(of_gradients)
    for seed in range(2):
        yield g(sample(3, 2, seed=seed))
        x = sample(3, 3, seed=seed, grad=True)
        h(x).backward()
        yield x.grad
