"""Gradients with ``create_graph=True``: those of the captured graph, with eager's history, or a refusal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lamina
from lamina.aot import run
from lamina.errors import DoubleBackward

Function = Callable[..., Any]


def _leaf(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def _embedded(w: Tensor, places: Tensor) -> Tensor:
    return F.embedding(places, w).pow(3).sum(0)


def _partly_without(w: Tensor, x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = w.exp()
    return (x * w).tanh() * scale


PROGRAMS: dict[str, tuple[Function, tuple[Tensor, ...]]] = {
    "product": (lambda x, w: (x @ w).tanh(), (_leaf(3, 4), _leaf(4, 2, seed=1))),
    "an input without a gradient": (_embedded, (_leaf(5, 4), torch.tensor([1, 2, 2]))),
    "a part without gradients": (_partly_without, (_leaf(4), _leaf(4, seed=1))),
    "an input that is detached": (lambda x, w: (x.exp() + w.detach()).square(), (_leaf(4), _leaf(4, seed=1))),
    "norm": (lambda x: F.layer_norm(x, (4,)).exp(), (_leaf(3, 4),)),
    "no second derivative": (lambda x, w: x * 3 + w, (_leaf(4), _leaf(4, seed=1))),
}


def _derivatives(function: Function, inputs: Sequence[Tensor], order: int) -> list[list[Tensor | None]]:
    wanted = [t for t in inputs if t.requires_grad]
    value = function(*inputs).sum()
    found: list[list[Tensor | None]] = []
    for _ in range(order):
        if not value.requires_grad:
            break
        found.append(list(torch.autograd.grad(value, wanted, create_graph=True, allow_unused=True)))
        value = sum(((g * g).sum() for g in found[-1] if g is not None), torch.zeros(()))
    return found


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_derivatives_of_derivatives_are_eagers(name: str) -> None:
    function, inputs = PROGRAMS[name]
    compiled = lamina.compile(function, dynamic=False)
    ours, eager = (_derivatives(f, inputs, 3) for f in (compiled, function))
    assert len(ours) == len(eager)
    for mine, theirs in zip(ours, eager, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            assert (a is None) is (b is None)
            if a is not None and b is not None:
                assert a.requires_grad is b.requires_grad
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    (decision,) = compiled.record.decisions("second derivative")
    assert decision.taken


def test_the_incoming_gradient_gets_one_too() -> None:
    x, v = _leaf(4), _leaf(4, seed=2)
    (first,) = torch.autograd.grad(lamina.compile(lambda x: x**3, dynamic=False)(x), x, v, create_graph=True)
    for mine, theirs in zip(torch.autograd.grad(first.sum(), (x, v)), (6 * x * v, 3 * x**2), strict=True):
        torch.testing.assert_close(mine, theirs.detach())


def test_a_gradient_penalty_trains_as_in_eager() -> None:
    losses = []
    for compile in (lambda m: m, lambda m: lamina.compile(m, dynamic=False)):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
        critic, optimizer = compile(model), torch.optim.SGD(model.parameters(), 0.1)
        for step in range(3):
            x = _leaf(3, 4, seed=step)
            (slope,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
            loss = ((slope.norm(dim=1) - 1) ** 2).mean() + critic(x.detach()).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    assert losses[:3] == pytest.approx(losses[3:], rel=1e-4)


def _written(w: Tensor) -> None:
    with torch.no_grad():
        w.mul_(2)


def _left(w: Tensor) -> None:
    assert w.requires_grad


@pytest.mark.parametrize(
    ("function", "after", "why"),
    [
        (lambda x, w: (x * w).pow(3), _written, "written to"),
        (lambda x, w: x.pow(3) + w, _written, "written to"),
        (lambda x, w: F.dropout(x * w).pow(3), _left, "random"),
    ],
)
def test_what_cannot_be_run_again_is_refused(function: Function, after: Function, why: str) -> None:
    x, w = _leaf(4), _leaf(4, seed=1)
    compiled = lamina.compile(function, dynamic=False)
    out = compiled(x, w)
    after(w)
    try:
        (first,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)  # noqa: PT017
        return
    with pytest.raises(DoubleBackward, match="cannot be differentiated twice"):
        torch.autograd.grad(first.sum(), x)
    (decision,) = compiled.record.decisions("second derivative")
    assert not decision.taken
    assert why in decision.reason


@pytest.mark.by_dynamo("counts Dynamo's graphs, or asks what it leaves to eager")
def test_an_input_without_a_gradient_is_not_kept_for_it() -> None:
    compiled = lamina.compile(lambda x, scale: x.pow(3) + scale, dynamic=False)
    x = _leaf(4)
    out = compiled(x, torch.ones(4))
    (first,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    with pytest.raises(DoubleBackward):
        torch.autograd.grad(first.sum(), x)


@pytest.mark.parametrize("way", [{"options": {"numerics": "eager"}}, {"dynamic": True}], ids=str)
def test_a_second_derivative_that_is_not_known_is_refused_for_each_input(way: dict[str, Any]) -> None:
    def cubed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x * w) ** 3 + torch.rand_like(x)  # which draws numbers, and is not run again

    x, w = torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([3.0, 4.0], requires_grad=True)
    arriving = torch.ones(2, requires_grad=True)
    result = lamina.compile(cubed, backend="interp", **way)(x, w * 1)
    (gradient,) = torch.autograd.grad(result, x, arriving, create_graph=True)
    torch.testing.assert_close(gradient, 3 * x**2 * w**3)
    for one in (x, w, arriving):
        with pytest.raises(DoubleBackward):
            torch.autograd.grad(gradient.sum(), one, retain_graph=True, allow_unused=True)


def _sized(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, int]:
    product = x @ w
    return product.t().exp(), product.sum() * x.shape[0], x.shape[0] * 2


def _beside_a_root(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return (x - x).sqrt(), w.pow(3)


def _cast(x: Tensor, w: Tensor) -> tuple[Tensor]:
    with torch.autocast("cpu", torch.bfloat16):
        product = x @ w
    return (product.float().tanh(),)


_BY_AUTOGRAD = [{"dynamic": True}, {"options": {"numerics": "eager"}}, {"dynamic": True, "options": {"capture": "own"}}]


@pytest.mark.parametrize("way", _BY_AUTOGRAD, ids=str)
@pytest.mark.parametrize("function", [_sized, _beside_a_root, _cast])
def test_regions_that_autograd_differentiates_have_eagers_second_derivatives(function: Any, way: Any) -> None:
    """Of each result alone as well: a derivative that is infinite is not met by one that no gradient arrives at."""

    def outcome(function: Any, size: int, history: bool, wanted: int | None) -> list[Tensor | None]:
        leaves = [_leaf(size, 4, seed=size), _leaf(4, 3)]
        x, w = (leaf * 1 for leaf in leaves) if history else leaves
        results = [one for one in function(x, w) if isinstance(one, Tensor)]
        parts = [one for i, one in enumerate(results) if wanted in (None, i)]
        total = sum(((one.float() * (i + 1)).sum().square() for i, one in enumerate(parts)), torch.zeros(()))
        found = torch.autograd.grad(total, (x, w), create_graph=True, allow_unused=True)
        penalty = sum((one.square().sum() for one in found if one is not None), torch.zeros(()))
        if penalty.requires_grad:
            penalty.backward()  # type: ignore[no-untyped-call]
        return [*found, *(leaf.grad for leaf in leaves)]

    torch.compiler.reset()
    compiled = lamina.compile(function, backend="interp", **way)
    within = {"rtol": 3e-2, "atol": 0.5} if function is _cast else {"rtol": 1e-4, "atol": 1e-4}
    for size, history in ((3, False), (4, True), (5, False)):
        for wanted in (None,) if function is _cast else (None, 1):
            if function is _beside_a_root and wanted is None:
                continue
            found, eager = (outcome(f, size, history, wanted) for f in (compiled, function))
            for mine, theirs in zip(found, eager, strict=True):
                assert (mine is None) is (theirs is None)
                if mine is not None and theirs is not None:
                    torch.testing.assert_close(mine, theirs, **within)


def _and_another(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return (x * w) ** 3, w**2


@pytest.mark.parametrize("function", [lambda x, w: ((x * w) ** 3,), _and_another], ids=["one result", "two results"])
@pytest.mark.parametrize("way", [{"options": {"numerics": "eager"}}, {"dynamic": True}, {"dynamic": False}], ids=str)
def test_a_second_derivative_by_an_input_with_a_history_is_known_or_refused(function: Any, way: dict[str, Any]) -> None:
    leaves = torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([3.0, 4.0], requires_grad=True)
    x, w = (leaf * 1 for leaf in leaves)
    result = lamina.compile(function, backend="interp", **way)(x, w)[0]
    (gradient,) = torch.autograd.grad(result.sum(), x, create_graph=True)
    wanted = [6 * x * w**3, 9 * x**2 * w**2] * 2
    for one, eager in zip((x, w, *leaves), wanted, strict=True):
        try:
            (found,) = torch.autograd.grad(gradient.sum(), one, retain_graph=True, allow_unused=True)
        except DoubleBackward:
            assert way.get("dynamic") is not False
        else:
            torch.testing.assert_close(found, eager.detach())


def test_each_of_many_regions_looks_at_its_own_inputs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    usual, seen = run.refusing, list[int]()

    def counting(region: Any, anchors: Sequence[Tensor], gradients: Sequence[Any]) -> Any:
        seen.append(len(anchors))
        return usual(region, anchors, gradients)

    monkeypatch.setattr(run, "refusing", counting)
    drawing = lambda x, w: (x * w).tanh() + torch.rand_like(x)  # noqa: E731
    step = lamina.compile(drawing, backend="interp", options={"numerics": "eager"})
    weights = [torch.ones(3, requires_grad=True) for _ in range(8)]
    x = weights[0] * 1
    for weight in weights:
        x = step(x, weight)
    torch.autograd.grad(x.sum(), weights[0], create_graph=True)
    assert len(seen) == len(weights)
    assert max(seen) <= 3  # the weight, what the input comes from, the gradient that arrives


@pytest.mark.parametrize("capture", ["dynamo", "own"])
def test_sizes_that_a_program_has_fixed_are_numbers(capture: str) -> None:
    """Two modules of one class take their sizes from one function of torch's: what differed was a run-time size, until
    the second module's weight fixed it. Its penalty is differentiated twice.
    """
    torch.compiler.reset()

    def losses(compile: Function) -> list[Tensor]:
        torch.manual_seed(0)
        makes = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
        judges = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
        third = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
        g, d, e = compile(makes), compile(judges), compile(third)
        for batch in (16, 16, 7):
            made = g(torch.randn(batch, 4))
            d(made).mean().backward()
            between = (torch.randn(batch, 8) + made.detach()).requires_grad_()
            (gradient,) = torch.autograd.grad(d(between).sum(), between, create_graph=batch == 16)
            if batch == 16:
                ((gradient.norm(2, 1) - 1) ** 2).mean().backward()
            e(torch.randn(batch, 5)).sum().backward()
        return [p.grad for m in (makes, judges, third) for p in m.parameters()]  # type: ignore[misc]

    options = {"capture": capture, "compare_eager": "off", "progress": False}
    found, wanted = losses(lambda m: lamina.compile(m, options=options)), losses(lambda m: m)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)
