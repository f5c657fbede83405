"""Programs of numbers, small types and errors: what each yields is compared with eager."""

from __future__ import annotations

import torch

from lamina.testing.fuzz import attempt, sample


def bit_views(compile):
    def f(x):
        return (
            x.view(torch.int32),
            x.view(torch.uint8),
            x.view(torch.int16)[..., ::2],
            (x.view(torch.int32) + 1).view(torch.float32),
            x.view(torch.int32) >> 23,
        )

    g = compile(f)
    x = sample(3, 4)
    out = attempt(g, x)
    yield x, out
    out[0].zero_()
    yield x, out
    yield attempt(g, sample(3, 4).t())
    yield (
        attempt(compile(lambda x: x.view(torch.float64)), sample(3, 4)),
        attempt(compile(lambda x: x.view(torch.float64)), sample(3, 5)),
    )


def in_place_errors(compile):
    cases = (
        lambda x, y: x.add_(y.double()),
        lambda x, y: x.int().add_(1.5),
        lambda x, y: x.bool().add_(1),
        lambda x, y: x.add_(y.expand(2, 3, 4)),
        lambda x, y: x.int().div_(2),
        lambda x, y: x.copy_(y[:1]),
        lambda x, y: x.copy_(y.expand(2, 3, 4)),
        lambda x, y: x.t_().add_(1),
        lambda x, y: x.unsqueeze_(0),
        lambda x, y: x.masked_fill_(y > 0, float("nan")),
        lambda x, y: x.int().masked_fill_(y > 0, 1.5),
        lambda x, y: x.index_add_(0, torch.tensor([3]), y[:1]),
        lambda x, y: x.scatter_(1, torch.tensor([[9]]), 1.0),
        lambda x, y: x[5:].add_(1),
        lambda x, y: x[3],
        lambda x, y: x.squeeze_().mul_(2),
        lambda x, y: x.lerp_(y, 0.5),
        lambda x, y: x.clamp_(min=y),
        lambda x, y: x.byte().sub_(1).neg_(),
        lambda x, y: x.pow_(2),
        lambda x, y: x.resize_(2),
        lambda x, y: x.fill_(y),
        lambda x, y: x.fill_(y[0, 0]),
        lambda x, y: torch.add(x, y, out=y),
        lambda x, y: torch.add(x, y, out=x[:1]),
        lambda x, y: torch.cat([x, y], out=x),
        lambda x, y: torch.mul(x, y, out=torch.empty(0)),
        lambda x, y: torch.sum(x, 0, out=y[0]),
        lambda x, y: torch.eq(x, y, out=x),
        lambda x, y: torch.sort(x, out=(x, torch.empty(3, 4, dtype=torch.long))),
        lambda x, y: x.logical_not_(),
        lambda x, y: x.swapdims_(0, 1)[0].zero_(),
        lambda x, y: x.__iadd__(y[0]),
        lambda x, y: x.__setitem__((slice(None), [0, 0]), y[:, :2]),
        lambda x, y: x.__setitem__(x > 0, y),
        lambda x, y: x.__setitem__(0, y),
        lambda x, y: x.__setitem__((0, 9), 1),
        lambda x, y: x.__setitem__(Ellipsis, "a"),
        lambda x, y: x.__setitem__(slice(None, None, -1), 1),
    )
    for n, case in enumerate(cases):
        for grad in (False, True):
            x, y = sample(3, 4, grad=grad) * 1, sample(3, 4, seed=2)
            yield n, attempt(compile(case), x, y), x, y


def integers_of_small_types(compile):
    def f(a, b):
        return (
            a + b,
            a - b,
            a * b,
            a // b,
            a % b,
            -a,
            a & b,
            a << 1,
            a >> 1,
            a.sum(),
            a.prod(),
            a.cumsum(0),
            a.abs(),
            ~a,
            a.float() / b,
            a == b,
            a.max(),
            a**2,
            a.sign(),
            torch.clamp(a, 1, 100),
            a.div(b, rounding_mode="trunc"),
            a.div(b, rounding_mode="floor"),
            a.remainder(7),
            a.fmod(b),
            a.gcd(b),
            a.bitwise_xor(b),
            a.to(torch.float16),
            a + 1.5,
            a * True,
            a.mean(dtype=torch.float32),
            a.argsort(),
            a.sum(dtype=torch.int8),
            torch.where(a > b, a, 5),
        )

    g = compile(f)
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        info = torch.iinfo(dtype)
        a = torch.tensor([0, 1, info.max, info.min, 100, info.max - 1, 7], dtype=dtype)
        b = torch.tensor([1, info.max, info.max, 1, 3, 2, 7], dtype=dtype)
        yield attempt(g, a, b)
    yield attempt(g, torch.tensor([1], dtype=torch.int32), torch.tensor([0], dtype=torch.int32))


def booleans_summed(compile):
    def f(a, b):
        return (
            a.sum(),
            a + b,
            a * b,
            a & ~b,
            a ^ b,
            a.sum(0),
            a.cumsum(0),
            a.float().mean(),
            a.any(0),
            a.all(),
            a.int() - b.int(),
            a.prod(),
            a < b,
            a.max(0),
            a.argmax() if False else a.count_nonzero(),
            a.long() @ torch.arange(4),
            a.logical_xor(b),
            a.eq(1),
            a + 1,
            a * 2.5,
            a / 2,
            a.sort().values,
            a.cummax(0).values if False else a.nonzero(),
        )

    g = compile(f)
    for n in range(2):
        yield attempt(g, sample(3, 4, dtype=torch.bool, seed=n), sample(3, 4, dtype=torch.bool, seed=5))
    for op in (
        lambda a, b: a - b,
        lambda a, b: -a,
        lambda a, b: a.argmax(),
        lambda a, b: a.cummax(0),
        lambda a, b: a.mean(),
        lambda a, b: a // b,
        lambda a, b: a.abs(),
        lambda a, b: a << 1,
        lambda a, b: a.clamp(0, 1),
        lambda a, b: a @ b.t(),
        lambda a, b: a.var(),
        lambda a, b: a.sqrt(),
        lambda a, b: a.median(),
    ):
        yield attempt(compile(op), sample(3, 4, dtype=torch.bool), sample(3, 4, dtype=torch.bool, seed=1))


def comparisons_and_numbers(compile):
    def f(x, a, b):
        return (
            x * (a if a > b else b),
            a // b if b else None,
            divmod(a, 3),
            a**2,
            round(b / 3, 2),
            a == b,
            bool(a),
            -a % 4,
            a & 3,
            a << 2,
            ~a,
        )

    g = compile(f)
    for a, b in ((1, 2), (-5, 2), (0, 0), (7, -3), (2**40, 3), (True, False), (-1, -1)):
        yield attempt(g, sample(2), a, b)


def floats_and_complex_numbers(compile):
    def f(x, a):
        return (
            x * a,
            a + 1,
            a * 0,
            a / 3 if a else a,
            str(a),
            a == a,
            x + a,
            (x > a) if not isinstance(a, complex) else x,
        )

    g = compile(f)
    for a in (1.5, -0.0, 0.0, float("inf"), float("nan"), 1e308, 3, 1j, True, 5e-324, 2.0):
        yield attempt(g, sample(2), a)
