"""Transforms of torch.func and calls with other parameters: captured, not interpreted again, and what eager gives."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, vmap

import lamina
from lamina.capture.own.callable import interpreted_callable
from lamina.capture.own.machine import Machine
from lamina.record import Record
from lamina.testing.fuzz.torch_private import state_of_thread
from tests.capture.own.machines import MACHINES


class Scale:
    factor = 2.0


torch.manual_seed(0)
W = torch.randn(4, requires_grad=True)
MODEL = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
PARAMETERS = {name: p.detach().clone() for name, p in MODEL.named_parameters()}
GRADIENT = grad(lambda t: (t * W).sin().sum())
SCALE = Scale()


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)
        self.other.weight = self.one.weight

    def forward(self, x):
        return self.other(self.one(x))


TIED = Tied()


def without_gradient(t):
    with torch.no_grad():
        square = t**2
    return (t - square).sum()


def in_place(t):
    y = t.clone()
    y.add_(1)
    return y.sum()


def one_sample(p, s):
    return functional_call(MODEL, p, (s,)).square().sum()


def under_no_grad(x):
    with torch.no_grad():
        return grad(lambda t: (t**3).sum())(x)


def in_a_loop(x):
    for i in range(3):
        x = vmap(lambda t, k=i: t * (k + 1))(x)
    return x


def read_around(x):
    y = x * 2
    return vmap(lambda t: t + y.sum())(x) * y


REUSED = {
    "grad": lambda x: grad(lambda t: (t.sin() ** 2).sum())(x) * 2,
    "grad from outside": lambda x: GRADIENT(x) * 2,
    "second order": lambda x: grad(lambda t: (t * W).sin().sum())(x).square().sum(),
    "value": lambda x: grad_and_value(lambda t, s: (t * s).square().sum(), argnums=(0, 1))(x, W),
    "auxiliary": lambda x: grad(lambda t: ((t**2).sum(), {"a": t + 1}), has_aux=True)(x),
    "vmap": lambda x: vmap(lambda t: t.sin().sum())(x) + 1,
    "axes": lambda x: vmap(lambda a, b: a @ b, in_dims=(0, None))(x, W),
    "results": lambda x: vmap(lambda a: (a * 2, a.sum()), out_dims=(1, 0))(x),
    "nested": lambda x: vmap(grad(lambda t: t.sin().sum()))(x) + vmap(vmap(torch.sin))(x),
    "sizes within": lambda x: vmap(lambda t: t.reshape(2, 2) @ t.view(2, -1) if t.dim() == 1 else t)(x),
    "itself": lambda x: vmap(lambda t: t)(x),
    "view": lambda x: vmap(lambda t: t[1:])(x),
    "chunks": lambda x: vmap(lambda t: t.sin(), chunk_size=2)(x),
    "module": lambda x: vmap(MODEL)(x),
    "builtin": lambda x: vmap(torch.dot, in_dims=(0, None))(x, W),
    "partial": lambda x: vmap(functools.partial(torch.add, other=W))(x),
    "jvp": lambda x: jvp(torch.sin, (x,), (x,))[1] + 1,
    "jacrev": lambda x: jacrev(lambda t: t.sin())(x),
    "jacfwd": lambda x: jacfwd(lambda t: t.sin() * W)(x),
    "hessian": lambda x: hessian(lambda t: t.sin().sum())(x),
    "no_grad within": lambda x: grad(without_gradient)(x),
    "no_grad around": under_no_grad,
    "in place": lambda x: vmap(in_place)(x),
    "loop": in_a_loop,
    "around": read_around,
    "functional_call": lambda x: functional_call(MODEL, {k: v * 2 for k, v in PARAMETERS.items()}, (x,)).relu(),
    "part of it": lambda x: functional_call(MODEL, {"0.bias": x.sum(0).repeat(2)}, x),
    "tied": lambda x: functional_call(TIED, {"one.weight": x.T @ x}, (x,)),
    "not tied": lambda x: functional_call(TIED, {"one.weight": x.T @ x}, (x,), tie_weights=False),
    "branches": lambda x: torch.cond(x.sum() > 0, lambda t: t.sin(), lambda t: t.cos() * W, (x * 2,)) + 1,
    "branches of two results": lambda x: torch.cond(
        x.sum() > 0, lambda t: (t.sin(), t.sum()), lambda t: (t * W, (t * MODEL(t)).sum()), (x,)
    ),
    "branches without operands": lambda x: torch.cond(x.sum() > 0, lambda: W * 2, lambda: W.sin()) * x,
    "gradients of samples": lambda x: vmap(grad(one_sample), in_dims=(None, 0))(PARAMETERS, x),
}
CALLS = []


def noting(t):
    CALLS.append(1)
    return t.sum()


INTERPRETED = {
    "draws": lambda x: vmap(lambda t: t + torch.rand(4), randomness="same")(x),
    "writes to what is outside": lambda x: vmap(noting)(x),
    "asks for a value": lambda x: vmap(lambda t: t * 2 if float(W.detach().sum()) > -100 else t)(x),
    "asks for a gradient": lambda x: vmap(lambda t: t * 2 if t.requires_grad else t)(x),
    "asks for strides": lambda x: vmap(lambda t: t * t.stride()[0])(x.T),
}
WRONG = {
    "no number": lambda x: grad(lambda t: t.sin())(x),
    "no tensor": lambda x: vmap(lambda t: 3)(x),
    "other sizes": lambda x: vmap(lambda a, b: a + b)(x, W),
    "unknown name": lambda x: functional_call(MODEL, {"0.none": W}, (x,), strict=True),
    "value of one in the batch": lambda x: vmap(lambda t: t.item())(x),
    "a branch that gives its operand": lambda x: torch.cond(x.sum() > 0, lambda t: t, lambda t: t * 2, (x,)),
    "branches of other sizes": lambda x: torch.cond(x.sum() > 0, lambda t: t.sum(), lambda t: t * 2, (x,)),
    "write to what has no batch": lambda x: vmap(lambda t: torch.zeros(4).add_(t))(x),
}


def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    return [tensor for part in parts for tensor in tensors(part)]


def gradients(value, x):
    """Of all that ``value`` has with a history."""
    found = [tensor.square().sum() for tensor in tensors(value) if tensor.requires_grad]
    return torch.autograd.grad(sum(found), [t for t in (x, W) if t.requires_grad], allow_unused=True) if found else ()


class Interpreted:
    """A program that is captured, with how many of its calls were ``interpreted``."""

    def __init__(self, program, monkeypatch, machine=lambda: None):
        self.count, run, self.graphs = 0, Machine.run, []

        def counted(machine, *given):
            self.count += not machine.frames
            return run(machine, *given)

        def backend(gm, fakes):
            self.graphs.append(gm)
            return gm.forward

        monkeypatch.setattr(Machine, "run", counted)
        self.call = interpreted_callable(program, backend_callable=backend, record=Record(), machine=machine)

    def counted(self, x):
        self.count = 0
        return self.call(x)


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", REUSED)
def test_transforms_are_calls_of_one_graph(name, machine, monkeypatch) -> None:
    compiled = Interpreted(REUSED[name], monkeypatch, MACHINES[machine])
    for wanted in (False, True):
        for call in range(3):
            x = torch.randn(3, 4, requires_grad=wanted)
            found, expected = compiled.counted(x), REUSED[name](x)
            torch.testing.assert_close(found, expected)
            torch.testing.assert_close(gradients(found, x), gradients(expected, x))
            assert compiled.count == (call == 0), call
    assert len(compiled.graphs) == 2


@pytest.mark.parametrize("name", INTERPRETED)
def test_what_only_the_transform_knows_is_left_to_torch(name, monkeypatch) -> None:
    program, calls = INTERPRETED[name], []
    compiled = Interpreted(program, monkeypatch)
    for wanted in (False, True):
        for _ in range(2):
            x = torch.randn(3, 4, requires_grad=wanted)
            results = []
            for function in (compiled.counted, program):
                torch.manual_seed(1)
                CALLS.clear()
                results.append(function(x))
                calls.append(len(CALLS))
            torch.testing.assert_close(*results)
            assert compiled.count == 1
    assert calls[::2] == calls[1::2]


@pytest.mark.parametrize("name", WRONG)
def test_errors_of_transforms_are_eagers(name, monkeypatch) -> None:
    compiled, x = Interpreted(WRONG[name], monkeypatch), torch.randn(3, 4)
    with pytest.raises((RuntimeError, ValueError)) as expected:
        WRONG[name](x)
    for _ in range(2):
        with pytest.raises(type(expected.value)) as found:
            compiled.call(x)
        assert str(found.value).splitlines()[:4] == str(expected.value).splitlines()[:4]


def test_what_the_function_reads_is_asked_by_each_call(monkeypatch) -> None:
    def program(x):
        return vmap(lambda t: t * SCALE.factor)(x)

    compiled, x = Interpreted(program, monkeypatch), torch.randn(3, 4)
    for factor in (2.0, 3.0, 2.0):
        monkeypatch.setattr(SCALE, "factor", factor)
        torch.testing.assert_close(compiled.counted(x), x * factor)
    assert compiled.count == 0


def test_containers_of_a_transform_are_read_by_each_call(monkeypatch) -> None:
    held, extra = {"a": torch.randn(4), "b": torch.randn(4)}, {"c": 1.0}

    def program(x):
        return vmap(lambda d, t: (sum(d.values()) * t, extra), in_dims=(None, 0))(held, x)[0]

    compiled = Interpreted(program, monkeypatch)
    for _ in range(3):
        x = torch.randn(3, 4)
        with pytest.raises(ValueError, match="must only return Tensors"):
            compiled.call(x)
    summed = Interpreted(lambda x: vmap(lambda d, t: sum(d.values()) * t, in_dims=(None, 0))(held, x), monkeypatch)
    for call in range(5):
        if call == 2:
            held["c"] = torch.randn(4)
        if call == 4:
            held["a"] = torch.randn(4)
        x = torch.randn(3, 4)
        torch.testing.assert_close(summed.counted(x), sum(held.values()) * x)
        assert summed.count == (call in (0, 2))


def test_a_function_from_outside_that_is_replaced_is_seen(monkeypatch) -> None:
    def program(x):
        return GRADIENT(x)

    compiled, x = Interpreted(program, monkeypatch), torch.randn(4)
    torch.testing.assert_close(compiled.counted(x), GRADIENT(x))
    monkeypatch.setitem(globals(), "GRADIENT", grad(lambda t: (t * 5).sum()))
    torch.testing.assert_close(compiled.counted(x), torch.full((4,), 5.0))
    cell = GRADIENT.__closure__[GRADIENT.__code__.co_freevars.index("func")]
    cell.cell_contents = lambda t: (t * 7).sum()
    torch.testing.assert_close(compiled.counted(x), torch.full((4,), 7.0))


def test_parameters_that_are_tied_later_are_seen(monkeypatch) -> None:
    module = Tied()
    module.other.weight = nn.Parameter(torch.randn(4, 4))

    def program(x):
        return functional_call(module, {"one.weight": x.T @ x}, (x,))

    compiled = Interpreted(program, monkeypatch)
    for call in range(4):
        if call == 2:
            module.other.weight = module.one.weight
        x = torch.randn(3, 4)
        torch.testing.assert_close(compiled.counted(x), program(x))
        assert compiled.count == (call in (0, 2))


class Replacing(nn.Module):
    def __init__(self, fails=False) -> None:
        super().__init__()
        self.weight, self.fails = nn.Parameter(torch.ones(4)), fails
        self.register_buffer("last", torch.zeros(4))

    def forward(self, x):
        self.last = (x * self.weight).detach()
        if self.fails:
            raise ValueError("of the user's")
        return x * self.weight + self.last


def test_a_module_that_replaces_what_it_was_given_leaves_what_it_leaves_in_eager(monkeypatch) -> None:
    """What it has put there is in the dictionary that it was given, as it is in eager."""
    for how in ("own", "eager"):
        module, given = Replacing(), {"weight": W.detach() * 2, "last": torch.ones(4)}
        before = dict(vars(module)["_buffers"]), dict(vars(module)["_parameters"])

        def program(x, module=module, given=given):
            return functional_call(module, given, (x,))

        call = Interpreted(program, monkeypatch).call if how == "own" else program
        for _ in range(3):
            x = torch.randn(4)
            torch.testing.assert_close(call(x), x * W.detach() * 4)
            torch.testing.assert_close(given["last"], x * W.detach() * 2)
            for kept, held in zip(before, (module._buffers, module._parameters), strict=True):
                assert all(held[name] is tensor for name, tensor in kept.items())


def test_a_module_has_its_tensors_again_after_an_error(monkeypatch) -> None:
    module = Replacing(fails=True)
    held = module.weight, module.last
    compiled = Interpreted(lambda x: functional_call(module, {"weight": x, "last": x}, (x,)), monkeypatch)
    for _ in range(2):
        with pytest.raises(ValueError, match="of the user's"):
            compiled.call(torch.randn(4))
        assert module.weight is held[0]
        assert module.last is held[1]


@pytest.mark.parametrize(
    "name", ["gradients of samples", "second order", "hessian", "functional_call", "branches of two results"]
)
def test_transforms_are_compiled(name) -> None:
    program = REUSED[name]
    compiled = lamina.compile(program, options={"capture": "own", "strict": True})
    for wanted in (False, True):
        for size in (3, 5):
            x = torch.randn(size, 4, requires_grad=wanted)
            found, expected = compiled(x), program(x)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(gradients(found, x), gradients(expected, x), rtol=1e-4, atol=1e-5)
    assert not compiled.record.decisions("break")
    assert not compiled.record.decisions("fallback")


@pytest.mark.parametrize("transform", ["jvp", "jacfwd", "hessian"])
def test_a_transform_that_cannot_be_captured_leaves_autograd_as_it_was(transform: str) -> None:
    """The forward-mode derivative of a layer norm raises on tensors without values, while it prints one of them."""

    def within(x: Tensor, w: Tensor) -> Any:
        def function(a: Tensor) -> Tensor:
            return F.layer_norm(a, (4,), w).cos().sum()

        return (
            torch.func.jvp(function, (x,), (x,)) if transform == "jvp" else getattr(torch.func, transform)(function)(x)
        )

    before = state_of_thread()
    compiled = lamina.compile(within, options={"capture": "own", "strict": True})
    x, w = torch.arange(1.0, 5.0), torch.ones(4, requires_grad=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(x, w), within(x, w))
        assert state_of_thread() == before
        written = x.clone()
        written.add_(1)
        assert written._version == 1
