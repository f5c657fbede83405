"""What random programs and programs by hand showed, in few lines: one program for each mechanism that was mended."""

from __future__ import annotations

import torch

from lamina.testing.fuzz import attempt, backward, sample, unbacked


def places_that_only_data_tell(compile):
    """Views of elements that may not be there: eager raises, and memory behind the view may well be there."""

    def part(x, k):
        return (x * 2)[: int((x > 0).sum())][k]

    def part_of_input(x, k):
        return x[: int((x > 0).sum())][k]

    def chosen(x, k):
        v = x[x > 0] * 2
        return v, v[k // 2 + 2]

    def in_another_dimension(x, k):
        return (x * 2)[: int((x > 0).sum())].unsqueeze(0).select(1, k)

    def computed(x, k):
        return x[x > 0][k] + 1

    for f in (part, part_of_input, chosen, in_another_dimension, computed):
        g = compile(f, dynamic=True)
        for seed, k in enumerate((-1, -2, 5, 1, 0, -9, 3)):
            with unbacked():
                yield attempt(g, sample(6, seed=seed), k)


def places_in_lists_that_nothing_uses(compile):
    def f(x):
        x[[0, 1], [1, 0]]
        return x * 2

    def by_tensors(x, i):
        x[i]
        x[:, i].sin()
        return x + 1

    g, h = compile(f), compile(by_tensors)
    for columns in (3, 1, 2):
        yield attempt(g, sample(5, columns))
        for place in (0, columns - 1, columns, -columns - 1):
            yield attempt(h, sample(5, columns), torch.tensor([place]))


def gradients_by_lists_of_places(compile):
    def f(x):
        v = x.index_select(0, torch.tensor([1, 0]))
        return v, v[[0, 1], [1, 0]], x[torch.tensor([1, 0, -1])]

    g = compile(f)
    for seed in range(2):
        x = sample(2, 4, 5, seed=seed, grad=True)
        out = g(x)
        yield out, backward(out), x.grad


def sizes_that_only_data_tell_and_one(compile):
    def f(x, y):
        v = x[: int((x > 0).sum())]
        return x + len(y.unique()), v, v.detach()

    g = compile(f)
    for rows in (5, 1, 1):
        x = sample(rows, 4, seed=rows, grad=True)
        with unbacked():
            out = attempt(g, x, sample())
        yield out, backward(out), x.grad


def memory_that_an_input_gets(compile):
    def parts(x, y):
        x.data = y.data
        a, *more = x.hsplit(2)
        return more[0], a.sum(), a

    def parts_of_the_other(x, y):
        x.data = y.data
        a, *_ = x.split(2)[1][None].unbind(1)
        with torch.no_grad():
            b = y.split(2)[0]
        return b, a, x

    for f in (parts, parts_of_the_other):
        g = compile(f)
        for size in (4, 6):
            x, y, w = sample(size, 4), sample(size, 4, seed=1), sample(grad=True)
            out = attempt(g, x, y)
            yield x, y, out
            yield attempt(out[0].detach().add_, 1), x, y, out
            yield attempt(out[0].mul_, w), x, y, attempt(out[0].mul, 1)
            yield attempt(x.mul_, w), attempt(out[0].mul, 1), backward([x]), w.grad
