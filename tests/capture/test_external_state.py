"""Graphs are not shared between functions that read different things Dynamo does not guard on."""

import functools
import math

import numpy as np
import pytest
import torch

import lamina
from lamina.capture.external_state import torch_private as facts

WAYS = {"lamina": lamina.compile, "torch": lambda f: torch.compile(f, backend="lamina")}


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def closure(op):
    return lambda x, y: op(x, y)


def inner_closure(op):
    inner = lambda x, y: op(x, y)  # noqa: E731
    return lambda x, y: inner(x, y)


def default(op):
    def run(x, y, op=op):
        return op(x, y)

    return run


def in_a_list(op):
    ops = [op]
    return lambda x, y: ops[0](x, y)


def in_a_dict(op):
    ops = {"op": op}
    return lambda x, y: ops["op"](x, y)


def partial(op):
    return closure(functools.partial(op))


class Attribute(torch.nn.Module):
    def __init__(self, op):
        super().__init__()
        self.op = op

    def forward(self, x, y):
        return self.op(x, y)


OPERATIONS = (torch.Tensor.__radd__, torch.fmax, torch.Tensor.__mul__, torch.Tensor.sub, torch.ops.aten.add.Tensor)


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "make", [closure, inner_closure, default, in_a_list, in_a_dict, partial, Attribute], ids=lambda m: m.__name__
)
def test_functions_that_differ_in_a_builtin_method(make, way):
    x, y = torch.tensor([1.0, 5.0]), torch.tensor([3.0, 2.0])
    for op in (*OPERATIONS, OPERATIONS[0]):
        assert torch.equal(WAYS[way](make(op))(x, y), op(x, y))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("value", [0.0, complex(0.0, 0.0), complex(1.0, 0.0)])
def test_the_sign_of_a_zero(value, way):
    @WAYS[way]
    def run(x, held):
        return torch.full_like(x, held[0])

    x = torch.ones(2, dtype=torch.complex64 if isinstance(value, complex) else torch.float32)
    for each in (value, value.conjugate() if isinstance(value, complex) else -value, value):
        found, expected = run(x, [each]), torch.full_like(x, each)
        if isinstance(value, complex):
            found, expected = torch.view_as_real(found), torch.view_as_real(expected)
        assert torch.equal(torch.signbit(found), torch.signbit(expected))


def other(self, x):
    return x * 9


def rebound(kind):
    kind.method = other


def new_code(kind):
    kind.method.__code__ = other.__code__


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("change", [rebound, new_code], ids=lambda c: c.__name__)
@pytest.mark.parametrize("module", [False, True])
def test_a_method_that_changes_on_its_class(change, module, way):
    class Plain:
        def method(self, x):
            return x + 1

    class Part(torch.nn.Module):
        def method(self, x):
            return x + 1

        def forward(self, x):
            return self.method(x)

    holder = Part() if module else Plain()
    compiled, x = WAYS[way](lambda x: holder.method(x)), torch.ones(3)
    assert torch.equal(compiled(x), x + 1)
    change(type(holder))
    assert torch.equal(compiled(x), x * 9)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["forward", "__call__"])
def test_a_submodule_whose_class_changes(name, way):
    class Part(torch.nn.Module):
        def forward(self, x):
            return x + 1

    compiled, x = WAYS[way](torch.nn.Sequential(Part())), torch.ones(3)
    assert torch.equal(compiled(x), x + 1)
    setattr(Part, name, other)
    assert torch.equal(compiled(x), x * 9)


@pytest.mark.by_dynamo("is about what Dynamo captures")
def test_equal_functions_still_share_a_graph():
    graphs = []

    def backend(gm, inputs):
        graphs.append(gm)
        return gm.forward

    run = lamina.compile(closure(np.add), backend=backend)
    run(np.ones(3), np.ones(3))
    first = len(graphs)
    for _ in range(3):
        run(np.ones(3), np.ones(3))
    assert len(graphs) == first == 1


def test_outside_a_compilation_there_is_nothing_to_guard():
    assert facts.guard_unguarded(torch.fx.symbolic_trace(lambda x: x + 1)) == 0


USES_OF_A_FLOAT = {
    "full": lambda x, s: torch.full_like(x, s),
    "where": lambda x, s: torch.where(x > 5, x, s),
    "fill": lambda x, s: x.clone().fill_(s),
    "masked_fill": lambda x, s: x.masked_fill(x < 9, s),
    "clamp": lambda x, s: torch.clamp(-x, min=s),
    "negated": lambda x, s: torch.full_like(x, -s),
    "sum": lambda x, s: torch.full_like(x, s + s),
    "product": lambda x, s: x * s,
    "copysign": lambda x, s: x * math.copysign(3.0, s),
    "angle": lambda x, s: x * math.atan2(s, -1.0),
    "text": lambda x, s: x * len(str(s)),
    "literal": lambda x, s: x * len(f"{s}"),
}


CALLS_WITH_ZEROS = {True: ((-0.0,), (1.0, -0.0, 0.0, 2.0)), None: ((0.0, -0.0), (1.0, 2.0, 3.0, -0.0, 0.0))}


@pytest.mark.sampled(one_in=12)
@pytest.mark.parametrize(
    ("name", "way"), [*((name, "lamina") for name in USES_OF_A_FLOAT), ("where", "torch"), ("product", "torch")]
)
@pytest.mark.parametrize("dynamic", [True, None])
def test_the_sign_of_an_argument_that_is_zero(name, dynamic, way):
    run = USES_OF_A_FLOAT[name]
    x = torch.arange(1.0, 4.0)
    for values in CALLS_WITH_ZEROS[dynamic]:
        torch._dynamo.reset()
        compile_it = lamina.compile if way == "lamina" else functools.partial(torch.compile, backend="lamina")
        compiled = compile_it(run, dynamic=dynamic)
        for value in values:
            got, expected = compiled(x, value), run(x, value)
            assert torch.allclose(got, expected), value
            assert torch.equal(torch.signbit(got), torch.signbit(expected)), value


def test_other_floats_stay_symbols():
    compiled = lamina.compile(lambda x, s: x * s, dynamic=True)
    x = torch.ones(3)
    compiled(x, 0.0), compiled(x, 2.0)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for value in (3.0, 4.5, 0.25):
            assert torch.equal(compiled(x, value), x * value)
