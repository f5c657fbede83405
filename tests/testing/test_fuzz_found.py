"""Programs that random ones were reduced to: what eager does besides computing, and what tracing does not tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import lamina
from lamina.testing.fuzz import check
from lamina.testing.fuzz.observe import observe
from lamina.testing.fuzz.target import compile_function

HEAD = """
import torch
import torch.nn.functional as F
from lamina.testing.fuzz import attempt, backward, pause, sample
"""

PROGRAMS = {
    "written after it was saved, which eager does not save": """
def f(x):
    v = x.abs()
    w = v ** 0
    v.add_(w)
    return w
def program(compile):
    yield compile(f)(sample(grad=True))
""",
    "the backward needs what the function wrote over": """
def f(x):
    v = x.exp()
    v.add_(1)
    return v * 2
def program(compile):
    out = compile(f)(sample(4, grad=True))
    yield out
    yield attempt(backward, out)
""",
    "views of results that are made without gradients": """
def f(x):
    a, *more = x.split(2)
    c = x * 2
    with torch.no_grad():
        b, d = a[None], c[1:]
    return b, a, c, d
def program(compile):
    out = compile(f)(sample(4, 4, grad=True))
    yield out
    yield attempt(out[0].detach().add_, 1), backward(out)
""",
    "what is zero by rounding, divided by zero": """
def f(x, s):
    v = F.batch_norm(x, None, None, training=True)
    return v, v / abs(s)
def program(compile):
    g = compile(f, dynamic=True)
    for s in (0.0, -0.0, 1.0):
        yield g(sample(3, 8, seed=2), s)
""",
    "gradients beyond float16": """
def f(x):
    v = (x * x).exp()
    return torch.addcmul(x, v ** 2, x, value=0.25), v
def program(compile):
    x = sample(5, 5, dtype=torch.float16, seed=1, grad=True)
    out = compile(f)(x)
    yield out
    yield backward(out), x.grad
""",
    "a windowed view that is written to": """
def f(x):
    v = x * 2
    v.unfold(0, 2, 2)[0] = 1
    return v
def program(compile):
    yield compile(f)(sample(4, grad=True))
""",
    "no derivative": """
def f(x):
    return torch.nextafter(x, x + 1) * 2, torch.unique(x)
def program(compile):
    yield compile(f)(sample(4, grad=True))
""",
    "random numbers that nothing uses": """
def f(x):
    F.dropout(x)
    return F.dropout(x)
def program(compile):
    yield compile(f, options={"numerics": "eager"})(sample(5))
""",
    "an index out of range that nothing uses": """
def f(x, k):
    torch.select_scatter(x, x, 0, k)
    return x + 1
def program(compile):
    yield attempt(compile(f), sample(), 0)
""",
    "a type that eager refuses, unused": """
def f(x, b):
    b.argmax()
    torch.arange(3).to(torch.uint32) + 1
    return x + 1
def program(compile):
    yield attempt(compile(f), sample(3), sample(3, dtype=torch.bool))
""",
    "one object": """
def f(x):
    v = torch.sign(x)
    return v, v.contiguous(), F.dropout(v, 0.5, training=False), F.dropout(v, 0.0), v.float(), x.contiguous()
def program(compile):
    yield compile(f)(sample(4))
    x = sample(4, grad=True)
    yield x, compile(f)(x)
""",
    "a write to what a call gave back": """
def f(x):
    v = x * 2
    w = F.dropout(v, 0.5, training=False)
    w.add_(1)
    return v
def program(compile):
    yield compile(f)(sample(4))
""",
    "two objects in one memory": """
def f(x):
    v = F.silu(x)
    return v, v.detach(), x @ x
def program(compile):
    yield compile(f)(sample(4, 4))
""",
    "gaps": """
def f(x):
    return torch.empty_strided(x.shape, (x.shape[1] * 2, 1)).copy_(x)
def program(compile):
    yield compile(f)(sample(3, 4))
""",
    "batch norm of a transposed operand": """
def f(x):
    return F.batch_norm(x.t(), None, None, training=True)
def program(compile):
    yield compile(f)(sample(2, 4))
    yield compile(f)(sample(4, 2, grad=True))
""",
    "a view of an input without elements": """
def f(x0, x1):
    return x0[0:], x1.sigmoid()
def program(compile):
    yield compile(f)(sample(0, grad=True), sample(grad=True))
""",
    "a view of an input that gets no gradient otherwise": """
def f(w, x):
    return w[..., ::2], x.sum()
def program(compile):
    w = sample(6, grad=True)
    view, total = compile(f)(w, sample(3, grad=True))
    yield view, total
    view.sum().backward()
    yield w.grad
""",
    "a view taken where gradients are off": """
def f(x):
    with torch.no_grad():
        v = x[::2]
    return v, v * 2
def program(compile):
    yield compile(f)(sample(3, 5, grad=True) * 1)
""",
    "a result that is written to": """
def f(w, s):
    v = (w @ w).t()
    u = torch.sort(w)[0]
    pause()
    v.add_(s)
    u.add_(s)
    return v * 2, u
def program(compile):
    yield attempt(compile(f), sample(2, 2, grad=True), sample(2, 2))
""",
    "one list with a tensor and a view of all of it": """
def f(x):
    v = x * 2
    torch._foreach_add_([v, v.view(-1)], 1.0)
    return v
def program(compile):
    yield compile(f)(sample(5))
""",
    "a write before the gradient": """
def f(x, y):
    return F.mse_loss(y, x)
def program(compile):
    x = sample(2, grad=True)
    out = compile(f)(x, sample(2, seed=1))
    yield x.detach().zero_()
    yield backward(out)
    yield x.grad
""",
    "results that are views of one tensor, written to with a gradient": """
def f(x):
    v = x * 2
    return v[1:], v.t(), v[0].detach(), v.view(-1)[2:]
def program(compile):
    g = compile(f)
    for k in range(4):
        out, w = g(sample(4, 4)), sample(grad=True)
        yield out, attempt(lambda: out[k].mul_(w)), out
        yield backward(out), w.grad
""",
    "views of a copy, with a history, written to with a gradient": """
def f(x):
    a = x.t().flatten()
    b = a.view(4, -1)
    b.mul_(2)
    return a.detach(), b, a[1:], a[0]
def program(compile):
    g = compile(f)
    for k in (1, 2, 3):
        x, w = sample(4, 3, grad=True), sample(grad=True)
        out = g(x)
        yield out, attempt(lambda: out[k].mul_(w)), out
        yield backward(out[1:]), w.grad, x.grad
""",
    "parts written in place: -0.0 in their gradients": """
def f(x):
    v = -x
    v.t()[0].neg_()
    v[:, ::2].mul_(-1)
    v.diagonal().neg_()
    v[v > 1] = 0
    return v
def program(compile):
    x = sample(4, 4, seed=7, grad=True)
    out = compile(f)(x)
    yield out, out.backward(torch.zeros(4, 4)), x.grad
""",
    "of 0.0 and -0.0 the larger and the smaller": """
def f(x, y):
    return torch.fmax(x, y), torch.fmin(y, x)
def program(compile):
    g = compile(f)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        x = torch.zeros(19, dtype=dtype)
        yield g(x, -x), g(-x, x)
""",
    "results of a call that gives several views": """
def f(x):
    return (x * 2).chunk(2)
def program(compile):
    one, other = compile(f)(sample(4, 4))
    yield one, other, attempt(lambda: one.mul_(sample(grad=True))), other
    yield attempt(lambda: one.mul_(2)), other
""",
    "zeros keep the layout of what they are written to": """
def f(x):
    v = -x
    v.zero_()
    return v, v + 1
def program(compile):
    yield compile(f)(sample(5, 3).t())
    yield compile(f)(sample(3, 5, 4).transpose(1, 2))
""",
    "gradient of a batch norm over two values": """
def f(x):
    return F.batch_norm(x, None, None, training=True)
def program(compile):
    x = sample(2, 8, seed=6, grad=True)
    yield backward(compile(f)(x)), x.grad
""",
}


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize("target", ["lamina", "lamina:interp"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_runs_as_in_eager(name: str, target: str) -> None:
    assert check(HEAD + PROGRAMS[name], target).differences == ()


def keeps_copies(function: Callable[..., Any], factor: float = 1.0) -> Callable[..., Any]:
    """A compile function whose programs save copies for their gradients."""

    def run(*inputs: Any) -> Any:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t * factor):
            return function(*inputs)

    return run


def keeps_wrong_copies(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same, with gradients of other values."""
    return keeps_copies(function, 2.0)


def test_a_gradient_of_what_was_written_over_is_compared() -> None:
    program = HEAD + PROGRAMS["a write before the gradient"]
    eager = observe(program, compile_function("none"))
    assert "modified by an inplace operation" in eager.leaves["1"].text
    assert check(program, f"{__name__}:keeps_copies").ok
    assert check(program, f"{__name__}:keeps_wrong_copies").kind == "value"


def test_a_view_that_torch_tells_nothing_of_is_seen() -> None:
    program = f"""{HEAD}
def program(compile):
    x = sample(4, grad=True) * 1
    with torch.inference_mode():
        view = compile(lambda x: x[:2])(x)
    yield view
    yield attempt(x.mul_, 2)
"""
    seen = observe(program, compile_function("none"))
    assert seen.leaves["0"].leaf is not None
    assert seen.late["0"].leaf is None
    assert seen.late["0"].value.equal(seen.leaves["0"].value * 2)


def test_what_autograd_refuses_is_in_the_record() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        v = x.abs()
        w = v**0
        v.add_(w)
        return w

    compiled = lamina.compile(f, options={"strict": True})
    with pytest.warns(lamina.errors.LaminaWarning, match="AOTAutograd does not take it"):
        compiled(torch.randn(3, requires_grad=True))
    decisions = [d for stage in compiled.record.stages for d in stage.decisions if d.kind == "eager"]
    assert len(decisions) == 1


def test_usual_programs_are_compiled() -> None:
    """Calls without users that cannot raise, identities and detached twins leave a graph to the kernels."""

    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x.sum(0)
        torch.relu(x @ w)
        with torch.no_grad():
            part = x[:2].mean()
        y = torch.nn.functional.dropout(x.float() @ w, 0.1, training=False).contiguous()
        z = torch.nn.functional.batch_norm(y, None, None, training=True)
        return y, z - part, y.detach()

    compiled = lamina.compile(f)
    compiled(torch.randn(4, 4, requires_grad=True), torch.randn(4, 4))
    assert not [d for stage in compiled.record.stages for d in stage.decisions if d.kind in ("eager", "fallback")]
