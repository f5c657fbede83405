"""Entire programs that write something under one name and read it under another, or in another library."""

from __future__ import annotations

from lamina.testing.fuzz.whole import Whole

__all__ = ["WRITTEN_NAMES"]

WRITTEN_NAMES: dict[str, Whole] = {
    "two_names": Whole(
        0.7,
        "globals, attributes of classes and items of objects that are written under one name and read under another",
        """
import functools
import os

factor = 2


class Base:
    count = 1


class Counting(Base):
    def step(self, x):
        <inside>
        return x * self.count


class Attributes(dict):
    def __init__(self, **items):
        super().__init__(items)
        self.__dict__ = self


one, other = Counting(), Counting()
held = Attributes(k=1)


def inner(x):
    <global_write2>
    return x + factor


def f(x):
    <before>
    <first>
    <gap>
    <second>
    return <result>


def program(compile):
    global factor
    os.environ.pop("FUZZED_FACTOR", None)  # another program may have ended before its last line
    g = compile(f<how>)
    for k in range(3):
        x = sample(4<grad>)
        out = attempt(g, x)
        yield out, backward(out), x.grad
        yield factor, Base.count, Counting.count, one.count, dict(held), os.environ.get("FUZZED_FACTOR")
        <between>
    os.environ.pop("FUZZED_FACTOR", None)
""",
        {
            "inside": ("", "Counting.count += 1", "type(self).count += 1", "Base.count += 1", "self.count += 1"),
            **dict.fromkeys(
                ("global_write", "global_write2"),
                (
                    "globals()['factor'] += 1",
                    "globals().update(factor=factor + 1)",
                    "f.__globals__['factor'] = factor * 2",
                    "scope = globals(); scope['factor'] = scope['factor'] + 3",
                ),
            ),
            "before": ("", "", "global factor", "x = x * factor", "x = one.step(x)", "x = x + held.k"),
            **dict.fromkeys(
                ("first", "second"),
                (
                    "<global_write>",
                    "Base.count += 1",
                    "Counting.count = Base.count * 2",
                    "one.__class__.count += 1",
                    "one.count = one.count + 1",
                    "held.k += 1",
                    "held['k'] = held.k + 2",
                    "held.update(k=held['k'] + 3)",
                    "vars(one)['count'] = 7",
                    "os.environ['FUZZED_FACTOR'] = str(int(os.environ.get('FUZZED_FACTOR', '1')) + 1)",
                    "x = one.step(x)",
                    "x = inner(x)",
                ),
            ),
            "gap": ("", "", "pause()", "x = x + one.count", "x = x * factor"),
            "result": (
                "x * factor, x + other.count",
                "x * one.count * type(one).count",
                "x * held.k + held['k']",
                "x * getattr(other, 'count') + globals()['factor']",
                "x * int(os.getenv('FUZZED_FACTOR', '3'))",
                "inner(x), one.step(x)",
            ),
            "how": ("", "", ", dynamic=True"),
            "grad": ("", ", grad=True"),
            "between": (
                "",
                "factor += 10",
                "Base.count = k",
                "held.k = 5",
                "os.environ['FUZZED_FACTOR'] = str(k + 5)",
                "one = Counting(); f.__globals__['one'] = one",
            ),
        },
    ),
    "arrays": Whole(
        0.7,
        "NumPy's arrays in the memory of tensors: elements and parts read and written before and after the other",
        """
import numpy as np


def f(x, n):
    <made>
    <first>
    <second>
    <third>
    return <result>


def program(compile):
    g = compile(f<how>)
    for k in range(2):
        x = sample(5, seed=k)
        n = sample(5, seed=k + 2).numpy()
        out = attempt(g, x, n)
        yield [torch.as_tensor(one) for one in out] if isinstance(out, tuple) else out
        yield x, torch.from_numpy(n)
""",
        {
            "made": (
                "t = torch.from_numpy(n)",
                "t = torch.from_numpy(n)",
                "t, n = x, x.numpy()",
                "t = x; n = x[1:].numpy()",
            ),
            **dict.fromkeys(
                ("first", "second", "third"),
                (
                    "x = x + t.sum()",
                    "t.mul_(2)",
                    "t[1] = 3",
                    "t.add_(float(n[0]))",
                    "n[0] = 7",
                    "n += 1",
                    "m = n[1:]; m *= 3",
                    "n[0], n[1] = n[1], n[0]",
                    "e = n[1]; n[1] = 9; x = x * float(e)",
                    "x = x * float(n[2])",
                    "x = x + float(sum(n))",
                    "a, b, *c = n; x = x - float(b)",
                    "x = t * 2 + x.sum()",
                    "n.sort()",
                    "t.zero_()",
                    "n[...] = n[::-1].copy()",
                ),
            ),
            "result": ("x, t * 1, n.copy()", "x * 2, t", "float(n[0]), x, t + 1", "n * 2, x"),
            "how": ("", "", ", dynamic=True"),
        },
    ),
}
