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


def views_that_a_write_leaves_without_a_history(compile):
    """Eager lets nobody use one of several views, or one made without gradients, once its base was written to."""

    def filled(x):
        v = x.add_(1)[1:]
        v.fill_(2)
        return v

    def one_of_several(x):
        d, v = x.detach(), x.unbind(0)[-1]
        d.index_add_(0, torch.tensor([0, 1]), d[:2].clone())
        return v

    def part(x):
        d, v = x.detach(), x[1:]
        d.mul_(2)
        return v, x[0]

    for f in (filled, one_of_several, part):
        for dynamic in (False, True):
            g = compile(f, dynamic=dynamic)
            for grad in (True, False):
                for x in (sample(3, 4, grad=True), sample(3, 4, grad=True) * 1, sample(3, 4)):
                    with torch.set_grad_enabled(grad):
                        out = attempt(g, x)
                    yield x.detach(), out
                    yield attempt(lambda out=out: out * 1) if isinstance(out, torch.Tensor) else out


def views_with_a_history_where_the_caller_has_no_gradients(compile):
    def beside_its_base(x, k):
        with torch.enable_grad():
            y = x.sin()
            z = y[:k]
        return y, z

    def of_an_input(x, k):
        with torch.enable_grad():
            return x[:k], x.view(-1)

    def of_several(x, k):
        with torch.enable_grad():
            y = x * k
            return y[0], y[1:], y.t()

    for f in (beside_its_base, of_an_input, of_several):
        for dynamic in (False, True):
            g = compile(f, dynamic=dynamic)
            for grad in (False, True):
                for k in (1, 2):
                    x = sample(3, 2, seed=k, grad=True)
                    with torch.set_grad_enabled(grad):
                        out = g(x, k)
                    yield out, backward(out), x.grad
