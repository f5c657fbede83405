"""Entire programs of results that other results are computed from, and of functions that remember their results."""

from __future__ import annotations

from lamina.testing.fuzz.whole import Whole

__all__ = ["RESULTS"]

RESULTS: dict[str, Whole] = {
    "results": Whole(
        0.7,
        "results in nested containers that other results are computed from",
        """
from typing import Any, NamedTuple


class Out(NamedTuple):
    first: Any
    more: Any


def f(x, w):
    a = <first>
    b = <second>
    c = <third>
    return <returned>


def program(compile):
    g = compile(f<how>)
    for size in (4, 4, 6):
        x, w = sample(size, 4, seed=size, grad=True)<made>, sample(4, seed=2, grad=True)
        out = attempt(g, x, w)
        yield out
        seen = watched(out, "<way>")
        <later>
        yield backward(out)
        yield x.grad, w.grad, seen()
""",
        {
            "first": (
                "x * w",
                "x.exp()",
                "F.linear(x, w)",
                "x[1:]",
                "x.softmax(-1)",
                "x.t()",
                "F.layer_norm(x, (4,), w)",
            ),
            "second": (
                "a.sin()",
                "a.sum()",
                "a[0]",
                "a * a",
                "a.detach() * w.sum()",
                "a.view(-1)",
                "torch.relu(a)",
                "a",
            ),
            "third": ("b.mean() + a.mean()", "b * 2", "[b + 1, a]", "{'b': b, 'a': a.cos()}", "(a, b)", "x * 1"),
            "returned": (
                "a, b, c",
                "{'a': a, 'rest': [b, (c, w)]}",
                "Out(a, [b, {'c': c}])",
                "[a, [b, [c]], a]",
                "b, {'a': a}",
                "Out(Out(a, b), c)",
                "(c, (b, (a,)))",
            ),
            "way": ("hooks", "retained", "asked", "none", "hooks 0", "retained 0", "asked 0", "retained 1", "hooks 1"),
            "later": ("pass", "pass", "yield attempt(loss, out)", "yield attempt(w.detach().mul_, 2)"),
            "made": ("", "", " * 1"),
            "how": ("", "", ", dynamic=True", ', options={"numerics": "eager"}'),
        },
    ),
    "remembered": Whole(
        0.2,
        "functions that remember their results: functools.lru_cache and cache, of numbers and of tensors",
        """
import functools

called = []


@functools.<cache>
def helper(k):
    called.append(k)
    return <value>


def f(x, k):
    <before>
    return x * helper(<argument>), <more>


def program(compile):
    g = compile(f<how>)
    for k in (1, 2, 1, <last>):
        x = sample(3, 4, seed=3, grad=True)
        yield attempt(g, x, k), list(called)
    helper.cache_clear()
    yield attempt(g, sample(3, 4), 1), list(called), helper.cache_info().misses
""",
        {
            "cache": ("lru_cache(maxsize=None)", "lru_cache(maxsize=1)", "cache", "lru_cache"),
            "value": ("k * 0.5", "torch.full((4,), float(k))", "[k, k + 1][0]", "len(called)", "torch.arange(4) + k"),
            "before": ("pass", "helper(2)", "pause()", "x = x + helper(k)"),
            "argument": ("k", "k", "k + 1", "x.shape[0]", "abs(k)"),
            "more": ("len(called)", "k", "x.sum()", "helper(k)"),
            "last": ("-1", "2", "3"),
            "how": ("", "", ", dynamic=True"),
        },
    ),
}
"""Entire programs, by name."""
