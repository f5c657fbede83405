"""The user's code that attributes, operators, iterators and native functions run: interpreted, or nothing recorded."""

# ruff: noqa: B905, C416, C417, UP031, UP032 - each way of writing is another way to the code of the user's

from __future__ import annotations

import copy
import functools
import itertools
import json
import re
from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import lamina
from lamina.capture.own.callable import interpreted_callable
from lamina.record import Record


class Sevenfold(torch.autograd.Function):
    """Twice its operand, with a gradient that its forward does not have: who records the forward gets another."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 7


class Ordered:
    def __init__(self, y, n):
        self.y, self.n, self.found = y, n, []

    def noted(self):
        self.found.append(Sevenfold.apply(self.y))

    def __lt__(self, other):
        self.noted()
        return self.n < other.n

    def __eq__(self, other):
        self.noted()
        return self.n == other.n

    def __hash__(self):
        self.noted()
        return self.n

    def __str__(self):
        self.noted()
        return "one"

    def __add__(self, other):
        self.noted()
        return self

    __radd__ = __add__

    def __bool__(self):
        self.noted()
        return True

    def __len__(self):
        self.noted()
        return 1

    def __index__(self):
        self.noted()
        return 0

    def __contains__(self, item):
        self.noted()
        return True

    def __iter__(self):
        self.noted()
        yield self.y

    def __getitem__(self, key):
        self.noted()
        return key

    def __setitem__(self, key, value):
        self.noted()

    def __call__(self, *args):
        self.noted()
        return 0

    @property
    def p(self):
        self.noted()
        return 1

    @p.setter
    def p(self, value):
        self.noted()

    @functools.cached_property
    def cached(self):
        self.noted()
        return 2

    def __deepcopy__(self, memo):
        self.noted()
        return self

    def __getattr__(self, name):
        if name == "missing":
            self.noted()
            return 3
        raise AttributeError(name)


class Descriptor:
    def __get__(self, owner, kind):
        owner.noted()
        return 4

    def __set__(self, owner, value):
        owner.noted()


class Described(Ordered):
    described = Descriptor()

    @property
    def p(self):
        return super().p

    def __setattr__(self, name, value):
        if name == "z":
            self.noted()
        super().__setattr__(name, value)


class Iterator:
    def __init__(self, owner):
        self.owner, self.left = owner, 2

    def __iter__(self):
        return self

    def __next__(self):
        if not self.left:
            raise StopIteration
        self.left -= 1
        self.owner.noted()
        return self.left


@dataclass
class Pair:
    one: Any
    two: int = 0


USES = {
    "sorted": lambda a, b: sorted([a, b]),
    "sort": lambda a, b: [a, b].sort(),
    "max": lambda a, b: max(a, b),
    "max of a list": lambda a, b: max([a, b]),
    "key": lambda a, b: sorted([1, 2], key=a),
    "equal lists": lambda a, b: [a] == [b],
    "equal tuples in lists": lambda a, b: [(a, 1)] == [(b, 1)],
    "in a list": lambda a, b: b in [a],
    "count": lambda a, b: [a].count(b),
    "hash": lambda a, b: hash(a),
    "hash of a tuple": lambda a, b: hash((a, 1)),
    "key of a dictionary": lambda a, b: {a: 1},
    "get": lambda a, b: {1: 2}.get(a),
    "subscript by a tuple": lambda a, b: defaultdict(int)[(a, 1)],
    "in a set": lambda a, b: a in {1},
    "set": lambda a, b: {1}.add(a),
    "print": lambda a, b: print(a, end=""),
    "str": lambda a, b: str(a),
    "format": lambda a, b: f"{a}",
    "percent": lambda a, b: "%s" % (a,),
    "format method": lambda a, b: "{}".format(a),
    "sum": lambda a, b: sum([a, b]),
    "add": lambda a, b: a + b,
    "add a number": lambda a, b: 1 + a,
    "bool": lambda a, b: bool(a),
    "not": lambda a, b: not a,
    "if": lambda a, b: 1 if a else 2,
    "all": lambda a, b: all([a, b]),
    "len": lambda a, b: len(a),
    "index of a list": lambda a, b: [1][a],
    "range": lambda a, b: range(a),
    "contains": lambda a, b: 1 in a,
    "iter": lambda a, b: list(iter(a)),
    "list": lambda a, b: list(Iterator(a)),
    "sum of an iterator": lambda a, b: sum(Iterator(a)),
    "star": lambda a, b: [*Iterator(a)],
    "star of a call": lambda a, b: max(*Iterator(a)),
    "unpack": lambda a, b: [x + y for x, y in [Iterator(a)]],
    "for": lambda a, b: [x for x in Iterator(a)],
    "next": lambda a, b: next(Iterator(a)),
    "next of next": lambda a, b: next(Iterator(a), None),
    "enumerate": lambda a, b: [x for x in enumerate(Iterator(a))],
    "zip": lambda a, b: [x for x in zip(Iterator(a), [1, 2])],
    "subscript": lambda a, b: a[1],
    "set subscript": lambda a, b: a.__setitem__(1, 2),
    "call": lambda a, b: a(),
    "partial": lambda a, b: functools.partial(a, 1)(2),
    "map": lambda a, b: list(map(a, [1])),
    "next of map": lambda a, b: next(map(a, [1])),
    "loop over map": lambda a, b: [x for x in map(a, [1, 2])],
    "filter": lambda a, b: list(filter(a, [1])),
    "loop over filter": lambda a, b: [x for x in filter(a, [1, 2])],
    "zip of map": lambda a, b: [x for x in zip(map(a, [1]), [2])],
    "chain": lambda a, b: [x for x in itertools.chain(map(a, [1]), [2])],
    "starmap": lambda a, b: list(itertools.starmap(a, [(1, 2)])),
    "accumulate": lambda a, b: list(itertools.accumulate([1, 2], a)),
    "groupby": lambda a, b: [k for k, _ in itertools.groupby([1, 2], a)],
    "reduce": lambda a, b: functools.reduce(lambda x, y: a(x, y), [1, 2, 3]),
    "reduce by a method": lambda a, b: functools.reduce(a, [1, 2, 3]),
    "property": lambda a, b: a.p,
    "getattr": lambda a, b: getattr(a, "p", 1),
    "hasattr": lambda a, b: hasattr(a, "p"),
    "set property": lambda a, b: setattr(a, "p", 1),
    "cached property": lambda a, b: (a.cached, a.cached),
    "missing attribute": lambda a, b: a.missing,
    "described": lambda a, b: b.described,
    "set described": lambda a, b: setattr(b, "described", 1),
    "property of a base": lambda a, b: b.p,
    "set attribute": lambda a, b: setattr(b, "z", 1),
    "deepcopy": lambda a, b: copy.deepcopy([a]),
    "json": lambda a, b: json.dumps([Pair(1)], default=a),
    "sub": lambda a, b: re.sub("x", lambda m: str(a), "axa"),
    "dataclass": lambda a, b: Pair(a) == Pair(b),
    "default": lambda a, b: defaultdict(a)[1],
    "ordered": lambda a, b: OrderedDict([(1, a)]) == OrderedDict([(1, b)]),
    "join": lambda a, b: "".join(map(lambda n: str(a), [1])),
}


def called(use, function_of, x):
    def program(x):
        y = x.sin()
        a, b = Ordered(y, 0), Described(y, 1)
        found = use(a, b)
        z = sum((t.sum() for t in (*a.found, *b.found)), (y * 2).sum())
        return z, len(a.found), len(b.found), found if isinstance(found, (int, str, bool)) else None

    z, *others = function_of(program)(x)
    (gradient,) = torch.autograd.grad(z, x)
    return z.detach(), gradient, others


@pytest.mark.parametrize("name", USES)
def test_what_the_users_code_computes_is_eagers(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.arange(1.0, 4.0, requires_grad=True)

    def interpreted(program):
        return interpreted_callable(program, backend_callable=lambda gm, _: gm.forward, record=Record())

    wanted, found = (called(USES[name], f, x) for f in (lambda program: program, interpreted))
    assert sum(wanted[2][:2]) > 0, "nothing of the user's was called"
    assert torch.allclose(found[0], wanted[0])
    assert torch.allclose(found[1], wanted[1])
    assert found[2] == wanted[2]


def test_an_attribute_error_of_a_property_leads_to_getattr() -> None:
    class Object:
        @property
        def broken(self):
            raise AttributeError("of the property")

        def __getattr__(self, name):
            return 5.0

    def program(x):
        return x * Object().broken

    x = torch.ones(2)
    assert torch.equal(lamina.compile(program, options={"capture": "own"})(x), program(x))


def test_functions_that_iterators_and_reductions_call_are_captured() -> None:
    graphs = []

    def backend(gm, example_inputs):
        graphs.append(gm)
        return gm.forward

    def program(x):
        parts = list(map(torch.sin, [x, x + 1]))
        total = functools.reduce(lambda a, b: a * b + 1, parts)
        for part in map(lambda t: t * 2, parts):
            total = total + part
        scale = functools.partial(torch.mul, other=3)
        return scale(total)

    f = interpreted_callable(program, backend_callable=backend, record=Record())
    assert torch.allclose(f(torch.ones(3)), program(torch.ones(3)))
    assert len(graphs) == 1


def test_hooks_on_saved_tensors_that_raise_see_each_tensor_once() -> None:
    """A checkpoint ends its recomputation by an exception of such a hook; errors of the user's hooks come out as is."""
    torch.manual_seed(0)
    layer = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4))
    compiled = lamina.compile(layer, options={"capture": "own"})
    for _ in range(3):
        grads = []
        for block in (layer, compiled):
            x = torch.ones(2, 4, requires_grad=True)
            checkpoint(block, x, use_reentrant=False).sum().backward()
            grads.append(x.grad)
        assert torch.allclose(*grads)

    seen = []

    def refused(tensor):
        seen.append(tensor)
        raise ValueError("not kept")

    for _ in range(3):
        with (
            torch.autograd.graph.saved_tensors_hooks(refused, lambda kept: kept),
            pytest.raises(ValueError, match="kept"),
        ):
            compiled(torch.ones(2, 4))
        assert len(seen) == 1
        seen.clear()
    assert torch.allclose(compiled(torch.ones(2, 4)), layer(torch.ones(2, 4)))


class Guarded:
    """Each read of an attribute goes through a function of its own, and one through a property."""

    def __init__(self):
        self.held, self.seen = 2, []

    def __getattribute__(self, name):
        return super().__getattribute__(name)

    @property
    def factor(self):
        self.seen.append(self.held)
        return self.held * 2

    def __eq__(self, other):
        raise AssertionError("a value of a dictionary is compared")

    __hash__ = None


def test_reads_past_a_getattribute_and_calls_with_any_keywords_end_no_graph() -> None:
    graphs = []

    def backend(gm, fakes):
        graphs.append(gm)
        return gm.forward

    def scaled(x, **options):
        return x * options["guarded"].factor + getattr(options["guarded"], "late", 3)

    def program(x, guarded):
        x = x + 1
        return scaled(x, guarded=guarded).relu()

    call = interpreted_callable(program, backend_callable=backend, record=Record())
    guarded, x = Guarded(), torch.arange(4.0)
    assert torch.equal(call(x, guarded), program(x, Guarded()))
    guarded.held = 5
    assert torch.equal(call(x, guarded), (x + 1) * 10 + 3)
    guarded.late = 1
    assert torch.equal(call(x, guarded), (x + 1) * 10 + 1)
    assert guarded.seen == [2, 5, 5]
    assert all(len(gm.graph.find_nodes(op="output")[0].args[0]) == 1 for gm in graphs)
    assert len(graphs[0].graph.nodes) == 6


def test_reading_past_a_getattribute_raises_where_there_is_nothing() -> None:
    call = interpreted_callable(
        lambda x, o: x + o.missing, backend_callable=lambda gm, fakes: gm.forward, record=Record()
    )
    with pytest.raises(AttributeError, match="missing"):
        call(torch.ones(2), Guarded())


def test_an_attribute_error_of_getattribute_leads_to_getattr() -> None:
    class Object:
        def __getattribute__(self, name):
            raise AttributeError(name)

        def __getattr__(self, name):
            return 3.0

    one = Object()

    def program(x):
        return x * one.broken + Object().broken

    x = torch.ones(2)
    assert torch.equal(lamina.compile(program, options={"capture": "own"})(x), program(x))


def test_keys_are_asked_for_in_the_order_of_pythons_own() -> None:
    def called(run):
        seen = []

        def values():
            for n in (3, 1, 2, 1):
                seen.append(("value", n))
                yield n

        def key(n):
            seen.append(("key", n))
            return n % 3

        def program(x):
            found = sorted(values(), key=key, reverse=True), min(values(), key=key), max(values(), key=key)
            try:
                min([], key=key)
            except ValueError as error:
                seen.append(str(error))
            return found, x + len(found)

        found = run(program)(torch.ones(2))
        return found[0], found[1].tolist(), seen

    def own(program):
        return interpreted_callable(program, backend_callable=lambda gm, _: gm.forward, record=Record())

    assert called(own) == called(lambda program: program)
