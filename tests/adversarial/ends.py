"""What a program notices of the ends of things: of generators, of objects, of modules that raise; custom views."""

from __future__ import annotations

import itertools
import weakref

import torch
from torch import nn

from lamina.testing.fuzz import attempt, backward, sample


class Finalized:
    def __init__(self, log):
        self.log = log

    def __del__(self):
        self.log.append("end")


class Plain:
    pass


def parts(x, log):
    try:
        sent = yield x * 2
        log.append(sent)
        yield x * 3
    finally:
        log.append("left")
    return x * 5


def each_twice(compile, *functions):
    """What each of them gives for a tensor and a new log, and that log, twice."""
    for function in functions:
        compiled = compile(function)
        for seed in range(2):
            log = []
            yield compiled(sample(4, seed=seed), log), log


def what_generators_return(compile):
    def delegated(x, log):
        def outer():
            value = yield from parts(x, log)
            yield value + 1

        return list(outer()), len(log)

    def by_next(x, log):
        made = parts(x, log)
        first, second = next(made), next(made)
        try:
            next(made)
        except StopIteration as end:
            return first, second, end.value

    def deep(x, log):
        def outer():
            return (yield from parts(x, log))

        def outermost():
            yield (yield from outer())

        return list(outermost())

    def of_an_iterator(x, log):
        class Counting:
            def __init__(self):
                self.left = 2

            def __iter__(self):
                return self

            def __next__(self):
                self.left -= 1
                if self.left < 0:
                    raise StopIteration(x * 9)
                return x * self.left

        def outer():
            yield (yield from Counting())

        return list(outer())

    yield from each_twice(compile, delegated, by_next, deep, of_an_iterator)


def generators_that_are_left(compile):
    def broken(x, log):
        for y in parts(x, log):
            x = x + y
            break
        return x + len(log)

    def asked_once(x, log):
        y = next(parts(x, log))
        return y + len(log)

    def cut(x, log):
        return list(itertools.islice(parts(x, log), 1)), len(log)

    def paired(x, log):
        return [a for a, _ in zip(parts(x, log), [1])], len(log)

    def before_a_break(x, log):
        def numbers():
            try:
                yield 1
                yield 2
            finally:
                log.append("left")

        number = next(numbers())
        torch._dynamo.graph_break()
        return x + number + len(log)

    yield from each_twice(compile, broken, asked_once, cut, paired, before_a_break)


def objects_that_end(compile):
    def by_del(x, log):
        made = Finalized(log)
        y = x * 2
        del made
        return y + len(log)

    def in_a_list(x, log):
        made = [Finalized(log), Finalized(log)]
        made.pop()
        seen = len(log)
        made.clear()
        return x * 10 + seen, len(log)

    def told(x, log):
        made = Plain()
        kept = weakref.ref(made, lambda _: log.append("told"))
        there = kept() is made
        del made
        return x * there + len(log)

    def asked(x, log):
        made = Plain()
        kept = weakref.ref(made)
        del made
        return x * 2 if kept() is None else x + 1

    yield from each_twice(compile, by_del, in_a_list, told, asked)


class Raising(nn.Module):
    def forward(self, x):
        if x.shape[0] == 3:
            raise ValueError("three")
        return x * 2


class Handling(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Raising()

    def forward(self, x):
        try:
            return self.inner(x)
        except ValueError:
            return x * 7


def hooks_that_are_always_called(compile):
    m, log = Handling(), []
    m.inner.register_forward_hook(lambda *given: log.append(given[-1] is None), always_call=True)
    g = compile(m)
    for rows in (3, 4, 3):
        yield g(sample(rows, 2)), list(log)


class Viewing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view(-1)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.view(3, 3) * 7


class Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x[0], x * 2, x[1]

    @staticmethod
    def backward(ctx, first, all, second):
        return torch.stack([first * 3, first * 0 + 1, second * 5]) + all


def views_of_custom_functions(compile):
    def beside(x):
        y = x * 2
        return y, Viewing.apply(y)

    def viewed_again(x):
        v = Viewing.apply(x * 2)
        return v, v[0]

    def two_rows(x):
        y = x * 2
        first, _, second = Rows.apply(y)
        return first, second

    def of_a_part(x):
        y = x * 2
        return y, Viewing.apply(y)[2:5]

    for f in (beside, viewed_again, two_rows, of_a_part):
        g = compile(f)
        for seed in range(2):
            x = sample(3, 3, seed=seed, grad=True)
            yield backward(g(x)), x.grad


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0].cos() * 2

    @staticmethod
    def jvp(ctx, tangent):
        return tangent * ctx.saved_tensors[0].cos() * 3

    @staticmethod
    def vmap(info, dims, x):
        return Doubled.apply(x), dims[0]


apply = Doubled.apply


def custom_functions_within_transforms(compile):
    func = torch.func
    for f in (
        lambda x: func.jacrev(Doubled.apply)(x),
        lambda x: func.jacfwd(Doubled.apply)(x),
        lambda x: func.grad(lambda a: apply(a).sum())(x),
        lambda x: func.jvp(apply, (x,), (x,)),
    ):
        yield attempt(compile(f), sample(3))
