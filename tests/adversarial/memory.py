"""Programs on memory: aliases, strides, versions, overlaps; what each yields is compared with eager."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from lamina.testing.fuzz import attempt, backward, sample


def steps_and_flips(compile):
    def f(x, k):
        return (
            x[::2],
            x[::k],
            x.flip(0)[1:],
            x[:, -1:],
            x[..., None, :],
            x.movedim(0, -1),
            x.unfold(0, 2, k),
            x.diagonal(k - 1),
            x[k:, :-1],
        )

    g = compile(f)
    for k in (1, 2, 3):
        x = sample(5, 6)
        out = g(x, k)
        yield x, out
        yield attempt(out[0].add_, 1), attempt(out[7].zero_), attempt(out[6].sum)
        yield x, out
    yield attempt(g, sample(5, 6), 0)
    yield attempt(g, sample(5, 6), -1)


def channels_last_everywhere(compile):
    def f(x, w):
        y = F.conv2d(x, w, padding=1)
        z = torch.empty_like(x).copy_(x)
        return (
            y,
            x + 1,
            x.contiguous(),
            x.clone(),
            x.mean(1, keepdim=True),
            torch.zeros_like(x),
            torch.cat([x, x], 1),
            z,
            x.to(memory_format=torch.channels_last),
            F.relu(x).permute(0, 2, 3, 1),
            x * x[:, :1],
            F.pad(x, (1, 1)),
            F.interpolate(x, scale_factor=2),
            F.max_pool2d(x, 2),
        )

    g = compile(f)
    for n, fmt in enumerate((torch.channels_last, torch.contiguous_format, torch.channels_last)):
        for shape in ((2, 3, 4, 4), (1, 1, 4, 4), (2, 4, 1, 1)):
            x = sample(*shape, seed=n, grad=True)
            h = (x * 1).contiguous(memory_format=fmt)
            w = sample(2, shape[1], 3, 3, seed=2, grad=True).to(memory_format=fmt)
            out = attempt(g, h, w)
            yield out
            if not isinstance(out, Exception):
                yield backward(out[:2]), x.grad


def expanded_arguments(compile):
    g = compile(lambda x, y: (x + y, x.sum(0), x.contiguous(), x.clone(), x * 2, torch.stack([x, y])))
    h = compile(lambda x: x.add_(1))
    for n in range(2):
        x = sample(1, 4, seed=n).expand(3, 4)
        yield x, g(x, sample(3, 4)), g(x, x)
        yield attempt(h, x), x
        yield (
            attempt(h, x.clone(memory_format=torch.preserve_format)),
            attempt(h, sample(3, 4).t()),
            attempt(h, sample(2, 3)[:, ::2]),
        )
    yield attempt(h, torch.zeros(()).expand(2, 3))
    yield attempt(h, torch.zeros(1, 3).expand(1, 3))


def overlapping_windows(compile):
    def f(x):
        w = x.unfold(0, 3, 1)
        s = x.as_strided((3, 3), (1, 2))
        return w * 2, w, s + 1, w.sum(1)

    g = compile(f)
    x = sample(8, grad=True)
    out = g(x)
    yield out, backward(out), x.grad
    h = compile(lambda x: x.unfold(0, 3, 1).mul_(2))
    yield attempt(h, sample(8))
    k = compile(lambda x: x.as_strided((3, 3), (1, 2), 1).copy_(torch.ones(3, 3)))
    y = sample(8)
    yield attempt(k, y), y


def writes_through_many_views(compile):
    def f(x):
        a, b = x[:2], x[2:]
        a += 1
        b[0] = a[0]
        x.t()[0] = 7
        x.view(-1)[2::3].mul_(-1)
        x.diagonal().fill_(0)
        c = x[:, 1]
        c.copy_(c.flip(0))
        x[x > 3] = -1
        return a, b, c, x.T

    g = compile(f)
    for n in range(2):
        x = sample(4, 4, seed=n)
        version = x._version
        out = attempt(g, x)
        yield out, x, x._version > version
        y = sample(4, 4, seed=n, grad=True) * 1
        out = attempt(g, y)
        yield out, y


def swapped_storage(compile):
    def f(x, y):
        x.data, y.data = y.data, x.data
        return x + 1, y * 2

    g = compile(f)
    x, y = sample(3), sample(3, seed=1)
    yield attempt(g, x, y), x, y

    def resize(x):
        x.resize_(2, 3)
        return x + 1

    h = compile(resize)
    z = sample(6)
    yield attempt(h, z), z
    w = sample(6)
    k = compile(lambda a, b: a.set_(b))
    yield attempt(k, w, sample(2, 2)), w


def empty_tensors(compile):
    def f(x):
        return (
            x.sum(),
            x.sum(0),
            x.prod(),
            x.mean(),
            x + 1,
            x.cumsum(0),
            torch.cat([x, x]),
            x @ x.t(),
            x.t() @ x,
            x.softmax(-1),
            x.any(),
            x.all(),
            x.norm(),
            x.std(),
            x.view(-1),
            x.sort(-1).values,
            x.logsumexp(0),
            x.var(0),
            x.flatten(),
            x[:, :0],
            x.nonzero(),
        )

    g = compile(f)
    for shape in ((0, 3), (3, 0), (0, 0), (1, 0), (2, 3)):
        x = sample(*shape, grad=True)
        out = attempt(g, x)
        yield out
        yield backward(out) if isinstance(out, tuple) else None, x.grad
    m = compile(lambda x: x.max(0))
    yield attempt(m, sample(0, 3)), attempt(m, sample(3, 0)), attempt(compile(lambda x: x.argmin()), sample(0))


def no_dimensions(compile):
    def f(x, y):
        return (
            x + y,
            x * 2,
            x.sum(0),
            x.max(),
            x.argmax(),
            x.sort(),
            x.unsqueeze(0),
            x.expand(2),
            x.view(1),
            x.cumsum(0),
            torch.stack([x, x]),
            x.softmax(0),
            x.item() if not x.requires_grad else 0,
            x[None],
            x[...],
            x.flatten(),
            x.topk(1),
        )

    g = compile(f)
    for n, grad in enumerate((False, True)):
        x = sample(seed=n, grad=grad)
        for y in (
            sample(seed=1),
            sample(dtype=torch.int64),
            sample(dtype=torch.float64),
            sample(3, dtype=torch.int32),
            True,
        ):
            out = attempt(g, x, y)
            yield out
        yield backward(out), x.grad
    h = compile(lambda x: x.add_(1))
    z = torch.tensor(5)
    yield h(z), z, h(z) is z
    yield attempt(compile(lambda x: x[0]), z)


def inference_tensors(compile):
    g = compile(lambda x: (x * 2, x[1:], x.view(-1)))
    h = compile(lambda x: x.mul_(2))
    with torch.inference_mode():
        x = sample(3, 4)
        yield g(x)
        out = g(sample(3, 4, seed=1))
        yield out, h(x), x
    yield attempt(g, x)
    yield attempt(h, x)
    y = sample(3, grad=True)
    k = compile(lambda x, y: x[:, :3] * y)
    yield attempt(k, x, y)
    with torch.no_grad():
        yield attempt(k, x, y)

    def inner(x):
        with torch.inference_mode():
            y = x * 2
        return y, x + 1

    yield attempt(compile(inner), sample(3, grad=True))


def complex_views(compile):
    def f(z):
        r = torch.view_as_real(z)
        r[..., 0] += 1
        z.imag.mul_(2)
        return (
            z.conj(),
            z.real,
            z.imag,
            r,
            z.conj().imag,
            z.abs(),
            z.angle(),
            z.conj() * z,
            torch.view_as_complex(r * 2),
            z.mT.conj(),
            (z * 1j).resolve_conj(),
        )

    g = compile(f)
    for n in range(2):
        z = sample(3, 2, dtype=torch.complex64, seed=n)
        out = attempt(g, z)
        yield out, z
        w = sample(3, 2, dtype=torch.complex64, seed=n, grad=True)
        out = attempt(g, w * 1)
        yield out, backward(out), w.grad


def results_that_share_memory(compile):
    def f(x, y):
        a = x * 2
        b = a[1:]
        c = a.view(-1)
        d = y[0]
        e = y.expand(2, *y.shape)
        return a, b, c, a.t(), d, e, y, (b, a), a.detach(), y.detach()

    g = compile(f)
    for grad in (False, True):
        x, y = sample(3, 4, grad=grad), sample(3, 4, seed=1)
        out = g(x, y)
        yield y, out
        yield attempt(out[8].add_, 1), attempt(out[9].add_, 1), attempt(out[1].add_, 1) if not grad else None
        yield out, y, backward([out[0], out[3]]), x.grad
