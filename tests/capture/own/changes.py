"""Programs that change something between two calls: each is run by Python and compiled, step by step."""

from __future__ import annotations

import collections
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

Case = tuple[Any, list[tuple[Callable[[], Any] | None, tuple[Any, ...]]]]
CASES: dict[str, Callable[[], Case]] = {}


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    CASES[make.__name__] = make
    return make


def values() -> Tensor:
    return torch.arange(1.0, 5.0)


FACTOR = 0.0


def _factor(value: float) -> None:
    globals()["FACTOR"] = value


class Holder:
    factor = 2

    def scaled(self, x: Tensor) -> Tensor:
        return x * self.factor


@case
def sign_of_a_zero() -> Case:
    def f(x, s):
        return torch.full_like(x, s)

    return f, [(None, (values(), 0.0)), (None, (values(), -0.0))]


@case
def sign_of_a_global_zero() -> Case:
    _factor(0.0)
    return (lambda x: torch.full_like(x, FACTOR)), [(None, (values(),)), (lambda: _factor(-0.0), (values(),))]


@case
def kind_of_a_number() -> Case:
    x = torch.arange(4)
    return (lambda x, s: x * s), [(None, (x, 1)), (None, (x, True)), (None, (x, 1.0)), (None, (x, 1))]


@case
def method_of_a_class() -> Case:
    class C(Holder):
        pass

    c = C()
    return (lambda x: c.scaled(x)), [
        (None, (values(),)),
        (lambda: setattr(C, "scaled", lambda self, x: x * 9), (values(),)),
        (lambda: delattr(C, "scaled"), (values(),)),
        (lambda: setattr(C, "factor", 4), (values(),)),
        (lambda: setattr(c, "factor", 5), (values(),)),
    ]


@case
def class_of_the_module() -> Case:
    m = nn.Sequential(nn.Tanh())
    other = type("Other", (nn.Sequential,), {"forward": lambda self, x: x * 9})
    return m, [(None, (values(),)), (lambda: setattr(m, "__class__", other), (values(),))]


@case
def class_of_a_callable() -> Case:
    class C:
        def __call__(self, x):
            return x + 1

    c = C()
    other = type("Other", (), {"__call__": lambda self, x: x * 9})
    return c, [(None, (values(),)), (lambda: setattr(c, "__class__", other), (values(),))]


@case
def class_of_a_python_module() -> Case:
    class Named(types.ModuleType):
        @property
        def factor(self):
            return 9

    kept = types.ModuleType("kept")
    kept.factor = 2
    return (lambda x: x * kept.factor), [(None, (values(),)), (lambda: setattr(kept, "__class__", Named), (values(),))]


@case
def class_of_a_class() -> Case:
    class Meta(type):
        pass

    class Other(type):
        @property
        def factor(cls):
            return 9

    kept = Meta("kept", (), {"factor": 2})
    return (lambda x: x * kept.factor), [(None, (values(),)), (lambda: setattr(kept, "__class__", Other), (values(),))]


@case
def code_of_a_method() -> Case:
    class M(nn.Module):
        def forward(self, x):
            return x + 1

    def other(self, x):
        return x * 9

    return nn.Sequential(M()), [
        (None, (values(),)),
        (lambda: setattr(M.forward, "__code__", other.__code__), (values(),)),
    ]


@case
def order_of_a_dictionary() -> Case:
    d = collections.OrderedDict(a=1, b=2)

    def f(x):
        for v in d.values():
            x = x * 2 + v
        return x

    return f, [(None, (values(),)), (lambda: d.move_to_end("a"), (values(),))]


@case
def identity_of_arguments() -> Case:
    a = [1]
    return (lambda x, p, q: x * 2 if p is q else x * 5), [(None, (values(), a, a)), (None, (values(), [1], [1]))]


@case
def a_global_that_hides_a_builtin() -> Case:
    space: dict[str, Any] = {}
    exec("def fn(x): return x * max(1, 2)", space)
    return space["fn"], [(None, (values(),)), (lambda: space.update(max=lambda *a: 50), (values(),))]


@case
def hooks_and_children() -> Case:
    m = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).eval()
    return m, [
        (None, (values(),)),
        (lambda: m[0].register_forward_hook(lambda mod, i, o: o * 3), (values(),)),
        (lambda: m.__setitem__(1, nn.ReLU()), (values(),)),
        (lambda: m.double(), (values().double(),)),
        (lambda: setattr(m[0], "forward", lambda x: x * 2), (values().double(),)),
    ]


@case
def counters() -> Case:
    o = types.SimpleNamespace(n=0, seen=[])

    def f(x):
        o.n += 1
        o.seen.append(x * o.n)
        return x * o.n + len(o.seen) + o.seen[0]

    return f, [(None, (values(),))] * 4


@case
def a_numbers_iterator() -> Case:
    numbers = iter(range(2, 9))
    return (lambda x: x * next(numbers)), [(None, (values(),))] * 3


@case
def views_and_their_bases() -> Case:
    b = values()
    return (lambda x: x * 2 if x._base is None else x * 5), [(None, (b,)), (None, (b[:],))]


@case
def default_dtype() -> Case:
    def step(dtype):
        torch.set_default_dtype(dtype)

    def f(x):
        return torch.ones(4) + x.sum() * 0

    f.undo = lambda: torch.set_default_dtype(torch.float32)
    return f, [(None, (values(),)), (lambda: step(torch.float64), (values(),))]


@case
def an_exception() -> Case:
    def f(x, d):
        if d["n"] > 3:
            raise ValueError("big")
        return x * d["n"]

    return f, [(None, (values(), {"n": 2})), (None, (values(), {"n": 4})), (None, (values(), {"n": 3}))]


@case
def arguments_that_share_memory() -> Case:
    base = torch.arange(1.0, 7.0)

    def f(x, y):
        x.add_(1)
        return y * 2 + x

    return f, [(None, (values(), values())), (None, (base[:4], base[:4])), (None, (base[:4], base[2:]))]


def outcomes(make: Callable[[], Case], compile: Callable[[Any], Any]) -> Iterator[Any]:
    """What each step gives: the tensor, or the class and arguments of the exception."""
    function, steps = make()
    try:
        compiled = compile(function)
        for change, args in steps:
            if change is not None:
                change()
            try:
                yield compiled(*args)
            except Exception as error:
                yield type(error), error.args
    finally:
        getattr(function, "undo", lambda: None)()
