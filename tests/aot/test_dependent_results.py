"""Results of a region that others depend on: hooks, ``retain_grad`` and ``autograd.grad`` see what they do in eager."""

from __future__ import annotations

import copy
import gc
import itertools
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import lamina
from lamina.errors import LaminaWarning, UnknownGradient
from tests.aot.backwards import in_turn

Tensors = Sequence[torch.Tensor]
F = torch.nn.functional


def _sine(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    made = x * y
    return made, made.sin()


def _loss_beside_logits(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    logits = (x @ y.t()).tanh()
    return F.cross_entropy(logits, torch.tensor([0, 1, 2]), label_smoothing=0.1), logits


def _chain(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    first = x * y
    second = first.sin() + x
    return first, second, (second * first).exp().sum()


def _parts(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    left, right = (x * y).chunk(2, 1)
    return left, right, left.sin() * 3, (right * 2).sum()


def _detached(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    made = x * y
    apart = made.detach() * y
    return made, apart, (apart + made).sum()


def _written_before(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    made = x * y
    clipped = torch.relu_(made * 2)
    return clipped, clipped.sum() * x.sum(), made


def _written_between(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    made = x * y
    inner = made + 1
    inner.mul_(y)
    inner[0] = made[1]
    return made, inner.sum() * made


def _first_and_written_last(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    made = -x
    square = (x * y) ** 2
    gate = F.silu(square)
    made.add_(gate)
    return made, square, gate


def _without_gradients_inside(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    with torch.no_grad():
        factor = (x * y).sum()
    made = x * y
    return made, (made * factor).sin(), made.t()


def _views(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    made = (x * y).view(-1)
    return made, made.t(), made.sin()


def _views_of_views(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    row = (x * y)[1]
    return row[1:], row, row[1:].exp(), row.unsqueeze(0)


def _same_object(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    made = x * y
    loss = made.pow(2).mean()
    return loss, made, loss, made


def _autocast(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    with torch.autocast("cpu", torch.bfloat16):
        made = x @ y.t()
    return made, made.float().softmax(-1)


def _several(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    most, where = (x * y).max(1)
    return most, (most * 2).sum(), x.gather(1, where[:, None])


def _dropped_before(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    made = torch.dropout(x * y, 0.0, True) + torch.rand_like(x) * 0
    return made.pow(3).sum(), made


def _input_and_result(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    made = x.exp()
    return made, made * x + y, y.sin()


def _norm_between(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    made = x * y
    return made, F.batch_norm(made, torch.zeros(4), torch.ones(4), training=True) * 2


def _root_of_views(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    made = x * y
    second = made.sum(0) + torch.arange(4)
    return made, second, second.unsqueeze(0), second.view(2, 2).t()


def _views_of_an_input(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    row = x[1]
    return row, row.t(), (row * y).sum(), row[1:3]


def _value_without_gradient(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    made = x * y
    other = made.exp() - y
    return made, other, made * other.detach() + made.detach() * x


def _copied_to_and_read_by_a_view(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    made = torch.empty_like(x).copy_(x * y)
    return made, made.t() * 3


def _set_and_read_by_a_view(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    made = torch.empty_like(x)
    made[:] = x
    made.diagonal().mul_(y[0, :3])
    return made, made.t().sin()


def _viewed_before_a_write(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    made = x * 1
    turned = made.t()
    made.mul_(y)
    return made, turned * 3


def _read_in_a_base_that_is_written_to(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    sine, base = x.sin(), x * 1
    base[0] = y[0]
    return base[0], base.view(-1)[4:].exp() * sine.sum(), sine


def _parts_of_a_view(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    rows = (x * y)[1:]
    last = rows.unbind(0)[-1]
    return rows, last, last.exp(), rows.chunk(2, 1)[0]


WRITTEN_BEFORE_A_VIEW = [
    _copied_to_and_read_by_a_view,
    _set_and_read_by_a_view,
    _viewed_before_a_write,
    _read_in_a_base_that_is_written_to,
]

PROGRAMS: list[Callable[..., Tensors]] = [
    *WRITTEN_BEFORE_A_VIEW,
    _sine,
    _loss_beside_logits,
    _chain,
    _parts,
    _detached,
    _written_before,
    _written_between,
    _first_and_written_last,
    _without_gradients_inside,
    _views,
    _views_of_views,
    _same_object,
    _autocast,
    _several,
    _dropped_before,
    _input_and_result,
    _norm_between,
    _root_of_views,
    _views_of_an_input,
    _value_without_gradient,
    _parts_of_a_view,
]


def _total(results: Tensors, first: int = 0) -> torch.Tensor:
    chosen = [(i, r) for i, r in enumerate(results) if i >= first and r.requires_grad]
    return sum((((r.float() * (i + 1)).sum() for i, r in chosen)), torch.zeros(()))


def _each_once(results: Tensors) -> list[torch.Tensor]:
    return [r for i, r in enumerate(results) if r.requires_grad and not any(r is other for other in results[:i])]


def _unwatched(leaves: Tensors, results: Tensors) -> list[Any]:
    _total(results).backward()
    return []


def _retained(leaves: Tensors, results: Tensors) -> list[Any]:
    for result in _each_once(results):
        result.retain_grad()
    _total(results).backward()
    return [result.grad for result in results]


def _hooked(leaves: Tensors, results: Tensors) -> list[Any]:
    found: dict[int, torch.Tensor] = {}
    for i, result in enumerate(_each_once(results)):
        result.register_hook(lambda gradient, i=i: (found.__setitem__(i, gradient.clone()), gradient * (1 + i))[1])
    _total(results).backward()
    return [found[i] for i in sorted(found)]


def _retained_where_nothing_arrives(leaves: Tensors, results: Tensors) -> list[Any]:
    results[0].retain_grad()
    _total(results, 1).backward()
    return [results[0].grad]


def _asked(leaves: Tensors, results: Tensors) -> list[Any]:
    return list(torch.autograd.grad(_total(results), [*_each_once(results), *leaves], allow_unused=True))


def _asked_for_one(leaves: Tensors, results: Tensors) -> list[Any]:
    total = _total(results, 1)
    found = torch.autograd.grad(total, [results[0]], allow_unused=True, retain_graph=True)
    total.backward()
    return list(found)


def _edge(leaves: Tensors, results: Tensors) -> list[Any]:
    edge = torch.autograd.graph.get_gradient_edge(results[0])
    return list(torch.autograd.grad(_total(results, 1), [edge], allow_unused=True))


def _only_inputs(leaves: Tensors, results: Tensors) -> list[Any]:
    _total(results).backward(inputs=[leaves[0]])
    return []


def _differentiated_twice(leaves: Tensors, results: Tensors) -> list[Any]:
    found = torch.autograd.grad(_total(results), _each_once(results), allow_unused=True, create_graph=True)
    again = [(g.float() * g).sum() for g in found if g is not None and g.requires_grad]
    if again:
        torch.stack(again).sum().backward()
    return list(found)


def _let_go(leaves: Tensors, results: Tensors) -> list[Any]:
    found = []
    results[0].register_hook(lambda gradient: (found.append(gradient.clone()), gradient * 2)[1])
    total = _total(results)
    del results
    gc.collect()
    total.backward()
    return found


def _twice(leaves: Tensors, results: Tensors) -> list[Any]:
    results[0].retain_grad()
    total = _total(results)
    total.backward(retain_graph=True)
    total.backward()
    return [results[0].grad]


def _hooked_before_a_write(leaves: Tensors, results: Tensors) -> list[Any]:
    seen: list[Any] = []
    results[0].register_hook(lambda gradient: (seen.append(gradient.clone()), gradient * 3)[1])
    results[0].mul_(2)
    _total(results).backward()
    return seen


def _hooked_after_a_write(leaves: Tensors, results: Tensors) -> list[Any]:
    seen: list[Any] = []
    results[0].mul_(2)
    results[0].register_hook(lambda gradient: (seen.append(gradient.clone()), gradient * 3)[1])
    _total(results).backward()
    return seen


def _several_hooked(leaves: Tensors, results: Tensors) -> list[Any]:
    found: list[Any] = []
    torch.autograd.graph.register_multi_grad_hook(_each_once(results), lambda gradients: found.extend(gradients))
    _total(results).backward()
    return found


WATCHES = [
    _unwatched,
    _retained,
    _hooked,
    _retained_where_nothing_arrives,
    _asked,
    _asked_for_one,
    _edge,
    _only_inputs,
    _differentiated_twice,
    _let_go,
    _twice,
    _several_hooked,
]


def _outcome(function: Callable[..., Tensors], watch: Callable[..., list[Any]]) -> list[Any]:
    torch.manual_seed(0)
    leaves = [torch.randn(3, 4, requires_grad=True) for _ in range(2)]
    torch.manual_seed(1)
    results = list(function(*leaves))
    try:
        seen = watch(leaves, results)
    except RuntimeError as error:
        return [str(error)]
    return [*seen, *(leaf.grad for leaf in leaves)]


@pytest.mark.sampled(one_in=96)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("watch", WATCHES)
@pytest.mark.parametrize("program", PROGRAMS)
def test_watched_results_have_eagers_gradients(
    program: Callable[..., Tensors], watch: Callable[..., list[Any]], dynamic: bool
) -> None:
    wanted = _outcome(program, watch)
    assert not isinstance(wanted[0], str), wanted
    found = _outcome(lamina.compile(program, dynamic=dynamic), watch)
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-5)


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize("capture", ["dynamo", "own"])
@pytest.mark.parametrize("watch", [_hooked, _asked])
@pytest.mark.parametrize("program", WRITTEN_BEFORE_A_VIEW)
def test_what_was_written_to_before_it_was_read_is_watched(
    program: Callable[..., Tensors], watch: Callable[..., list[Any]], capture: str
) -> None:
    wanted = _outcome(program, watch)
    with warnings.catch_warnings():
        warnings.simplefilter("error", LaminaWarning)
        found = _outcome(lamina.compile(program, options={"capture": capture}), watch)
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-5)


@pytest.mark.sampled(one_in=9)
@pytest.mark.parametrize("watch", [_hooked_before_a_write, _hooked_after_a_write])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_write_to_a_watched_result_gives_eagers_gradients_or_an_error(
    program: Callable[..., Tensors], watch: Callable[..., list[Any]]
) -> None:
    """What is saved for a gradient, and so which writes are refused, is not eager's contract."""
    wanted = _outcome(program, watch)
    found = _outcome(lamina.compile(program), watch)
    if not any(isinstance(one[0], str) for one in (wanted, found)):
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-5)
    elif isinstance(found[0], str):
        assert "inplace" in found[0] or "view" in found[0] or "modified" in found[0]


@pytest.mark.parametrize("dynamic", [False, True])
def test_inputs_that_are_written_to_are_watched_as_well(dynamic: bool) -> None:
    def write(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x.mul_(2)
        return x.sin(), (x * y).sum()

    def outcome(function: Callable[..., Any]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        leaves = [torch.randn(3, 4, requires_grad=True) for _ in range(2)]
        x, seen = leaves[0] * 1.5, list[torch.Tensor]()
        sine, total = function(x, leaves[1])
        x.register_hook(lambda gradient: (seen.append(gradient.clone()), gradient * 3)[1])
        x.retain_grad()
        (sine.sum() + total + x.sum()).backward()
        return [*seen, x.grad, *(leaf.grad for leaf in leaves)]  # type: ignore[list-item]

    wanted = outcome(write)
    torch.testing.assert_close(outcome(lamina.compile(write, dynamic=dynamic)), wanted, rtol=1e-4, atol=1e-6)


def test_a_part_of_a_view_leads_to_that_view() -> None:
    """Its gradient is the view's as well, though what both are views of is not returned."""
    compiled = lamina.compile(_parts_of_a_view, backend="interp")
    for watch in (_hooked, _retained, _asked):
        torch.testing.assert_close(_outcome(compiled, watch), _outcome(_parts_of_a_view, watch))


def _in_a_row(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    first = x * y
    second = first.sin()
    third = second.exp()
    return first, second, third, third * y


def _in_a_row_by_views(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    first = x * y
    flat = first.view(-1)
    last = flat.exp()
    part = last.view(-1)[1:]
    return first, flat, last, part, part.sin()


@pytest.mark.parametrize("way", ["retained", "hooked", "asked", "differentiated"])
@pytest.mark.parametrize("function", [_in_a_row, _in_a_row_by_views])
def test_what_reads_a_watched_result_through_others_counts_there(function: Any, way: str) -> None:
    """Whoever watches a result watches those that lead to it, also where nobody holds them any more."""

    def outcome(function: Any, watched: int) -> list[torch.Tensor]:
        leaves = [torch.linspace(0, 1, 12).view(3, 4).requires_grad_(), torch.full((3, 4), 0.5, requires_grad=True)]
        results = list(function(*leaves))
        one, found = results[watched], list[torch.Tensor]()
        if way == "retained":
            one.retain_grad()
        elif way == "hooked":
            one.register_hook(lambda gradient: (found.append(gradient.clone()), gradient * 2)[1])
        total = _total([*results])
        results.clear()
        if way == "asked":
            return list(torch.autograd.grad(total, [one, *leaves]))
        if way == "differentiated":
            (gradient,) = torch.autograd.grad(total.square(), [one], create_graph=True)
            found.append(gradient)
            total = gradient.square().sum()
        total.backward()
        kept = [one.grad] if way == "retained" else []
        return [tensor for tensor in (*found, *kept, *(leaf.grad for leaf in leaves)) if tensor is not None]

    compiled = lamina.compile(function, backend="interp")
    for watched in range(3):
        torch.testing.assert_close(outcome(compiled, watched), outcome(function, watched))


def test_a_result_leads_to_nothing_that_it_is_detached_from() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = x.detach() * y
        return made, made.sin() * x.detach(), made.detach() * y + made, x * 2

    compiled = lamina.compile(function)
    for order in itertools.permutations([(0,), (1,), (2,), (3,)], 3):
        found = []
        for each in (compiled, function):
            leaves = [torch.linspace(0.1, 1, 6).view(2, 3).requires_grad_() for _ in range(2)]
            found.append(in_turn(each(leaves[0].exp(), leaves[1] * 2), leaves, order, False))
        torch.testing.assert_close(*found)


def test_hooks_of_what_is_written_to_later_belong_to_that() -> None:
    leaf = torch.randn(3, 4, requires_grad=True)
    made, double = lamina.compile(lambda x: ((y := x * 3), y * 2))(leaf)
    seen: list[torch.Tensor] = []
    made.register_hook(seen.append)
    made.mul_(3)
    made.register_hook(seen.append)
    (made.sum() + double.sum()).backward()
    assert [float(g[0, 0]) for g in seen] == [1, 5]
    assert leaf.grad is not None
    assert torch.all(leaf.grad == 15)


def test_a_region_with_batch_norm_is_differentiated_twice() -> None:
    def penalty(model: torch.nn.Module, compile: Callable[..., Any]) -> list[torch.Tensor]:
        torch.manual_seed(3)
        x = torch.randn(4, 6, requires_grad=True)
        made = compile(model)(x)
        (gradient,) = torch.autograd.grad(made.pow(2).sum(), x, create_graph=True)
        gradient.norm().backward()
        assert x.grad is not None
        return [x.grad, *(p.grad for p in model.parameters()), *model.buffers()]  # type: ignore[list-item]

    torch.compiler.reset()  # sizes that varied in other tests' models are run-time ones, and left to AOTAutograd
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    other = copy.deepcopy(model)
    torch.testing.assert_close(penalty(model, lamina.compile), penalty(other, lambda m: m), rtol=1e-3, atol=1e-5)


def _dropped_between(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    made = x * y
    return made, torch.dropout(made, 0.5, True).sum()


def test_a_gradient_that_is_not_known_is_refused() -> None:
    leaves = [torch.randn(3, 4, requires_grad=True) for _ in range(2)]
    made, loss = lamina.compile(_dropped_between)(*leaves)
    with pytest.raises(UnknownGradient, match="draws random numbers"):
        torch.autograd.grad(loss, made, retain_graph=True)
    made.retain_grad()
    with pytest.raises(RuntimeError, match="return it from a compiled function of its own"):
        loss.backward()


def _sum_past_a_result(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    inner = x * y
    made = inner.square()
    return made, made + inner


def test_a_gradient_through_an_input_that_was_written_to_is_refused() -> None:
    leaves = [torch.randn(3, 4, requires_grad=True) for _ in range(2)]
    made, total = lamina.compile(_sum_past_a_result)(*leaves)
    leaves[0].detach().zero_()
    with pytest.raises(UnknownGradient, match=r"an input was written to since[^!]*write to a copy of that input"):
        torch.autograd.grad(total.sum(), made)


def test_a_hook_that_does_not_see_all_is_told_of_once() -> None:
    leaves = [torch.randn(3, 4, requires_grad=True) for _ in range(2)]
    compiled = lamina.compile(_dropped_between)
    made, loss = compiled(*leaves)
    made.register_hook(lambda gradient: None)
    with pytest.warns(LaminaWarning, match="hooks of a result .* draws random numbers"):
        (made.sum() + loss).backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made, loss = compiled(*leaves)
        made.register_hook(lambda gradient: None)
        (made.sum() + loss).backward()


def test_what_is_not_watched_runs_nothing_again_and_keeps_nothing_alive() -> None:
    leaves = [torch.randn(3, 4, requires_grad=True) for _ in range(2)]
    torch.compiler.reset()
    compiled = lamina.compile(_loss_beside_logits)
    loss, logits = compiled(*leaves)
    loss.backward()
    kinds = [d.kind for d in compiled.record.decisions()]
    assert "dependent results" in kinds
    assert "watched result" not in kinds
    gone = weakref.ref(logits)
    del logits
    assert gone() is None
    logits = compiled(*leaves)[1]
    logits.retain_grad()
    logits.sum().backward()
    assert "watched result" not in [d.kind for d in compiled.record.decisions()]


@pytest.mark.parametrize("differentiated", [False, True])
def test_hooks_keep_nothing_alive_after_their_results(differentiated: bool) -> None:
    leaf = torch.randn(3, 4, requires_grad=True)
    made, sine, total = lamina.compile(lambda x: ((y := x * 3), y.sin(), y.sum()))(leaf)
    made.register_hook(lambda gradient: gradient * 2)
    gone = [weakref.ref(one) for one in (made, sine, total)]
    if differentiated:
        (sine.sum() + total).backward()
    gc.disable()
    try:
        del made, sine, total
        assert [one() for one in gone] == [None] * 3
    finally:
        gc.enable()


def _viewed_before_a_write(x: torch.Tensor) -> Tensors:
    view = x.view(-1)
    view[0] = 9
    return (view,)


def _viewed_before_writes(x: torch.Tensor) -> Tensors:
    x.t().add_(1)
    view = x.view(-1)
    doubled = view * 2
    view.add_(doubled)
    return view[1:], doubled


@pytest.mark.parametrize("options", [{}, {"numerics": "eager"}, {"capture": "own"}], ids=str)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("function", [_viewed_before_a_write, _viewed_before_writes], ids=lambda f: f.__name__)
def test_later_writes_to_an_input_reach_a_view_that_was_made_before_one(
    function: Any, dynamic: Any, options: dict[str, Any]
) -> None:
    def gradients(function: Any) -> list[torch.Tensor]:
        leaf = torch.linspace(-1, 1, 9).view(3, 3).requires_grad_()
        x = leaf * 1
        results = function(x)
        x[0] += leaf[1] * 3
        given = [torch.autograd.grad(one.sin().sum(), leaf, retain_graph=True)[0] for one in (x, *results)]
        return [x.detach(), *(one.detach() for one in results), *given]

    compiled = lamina.compile(function, backend="interp", dynamic=dynamic, options=options)
    for ours, eager in zip(gradients(compiled), gradients(function), strict=True):
        torch.testing.assert_close(ours, eager)


def _viewed_between_writes(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    x.mul_(2)
    view = x[1:]
    flat = view.view(-1)
    x.add_(w)
    return flat, view, flat.sum()


def _viewed_after_a_write(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    x.mul_(w)
    view = x.view(-1)
    return view, view[1:], w * 2


def _read_between_writes(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    view = x.t()
    again = view.t()
    view.add_(w)
    return again.sum(), w.exp(), view


@pytest.mark.parametrize("options", [{}, {"numerics": "eager"}, {"capture": "own"}], ids=str)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("function", [_viewed_between_writes, _viewed_after_a_write], ids=lambda f: f.__name__)
def test_views_of_a_written_input_lead_where_eagers_do(function: Any, dynamic: Any, options: dict[str, Any]) -> None:
    def seen(function: Any) -> list[Any]:
        leaf, w = torch.linspace(-1, 1, 9).view(3, 3).requires_grad_(), torch.ones(3, requires_grad=True)
        results = function(leaf * 1, w)
        total = sum((one * 2).sum() for one in results)
        found = list(torch.autograd.grad(total, results, retain_graph=True))
        hooked: list[Any] = []
        for place, one in enumerate(results):
            one.register_hook(lambda g, place=place: hooked.append((place, g.tolist())))
        results[0].sum().backward()
        return [*(one.tolist() for one in found), hooked, leaf.grad.tolist()]

    assert seen(lamina.compile(function, backend="interp", dynamic=dynamic, options=options)) == seen(function)


@pytest.mark.by_dynamo("counts Dynamo's graphs, or asks what it leaves to eager", "None", "True")
@pytest.mark.parametrize("dynamic", [None, True])
def test_a_view_read_after_a_write_does_not_lead_to_the_view_it_was_made_of(dynamic: Any) -> None:
    x, w = torch.ones(3, 3, requires_grad=True), torch.ones(3, requires_grad=True)
    total, _, view = lamina.compile(_read_between_writes, backend="interp", dynamic=dynamic)(x * 1, w)
    with pytest.raises(UnknownGradient):  # eager has none
        torch.autograd.grad(total, view, allow_unused=True, retain_graph=True)
    total.backward()
    assert x.grad is not None
    assert x.grad.tolist() == torch.ones(3, 3).tolist()


def _first_of_chunks(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).chunk(2)[0]


def _turned(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).t()


def _detached_in_place(y: torch.Tensor, seen: list[torch.Tensor]) -> None:
    y.detach_()


def _hooked_and_written(y: torch.Tensor, seen: list[torch.Tensor]) -> None:
    y.register_hook(lambda gradient: (seen.append(gradient), gradient * 3)[1])
    y.mul_(2)


@pytest.mark.parametrize("options", [{}, {"numerics": "eager"}, {"capture": "own"}], ids=str)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("change", [_detached_in_place, _hooked_and_written])
@pytest.mark.parametrize("function", [_first_of_chunks, _turned])
def test_a_result_that_is_a_view_of_what_is_not_returned_is_one(
    function: Any, change: Any, dynamic: Any, options: dict[str, Any]
) -> None:
    def outcome(function: Any) -> Any:
        leaf, seen = torch.ones(4, 4, requires_grad=True), list[torch.Tensor]()
        result = function(leaf)
        try:
            change(result, seen)
        except RuntimeError as error:
            return type(error)
        result.sum().backward()
        return len(seen), leaf.grad

    found, wanted = (
        outcome(f) for f in (lamina.compile(function, backend="interp", dynamic=dynamic, options=options), function)
    )
    if isinstance(wanted, type):
        assert found is wanted
    else:
        torch.testing.assert_close(found, wanted)


def _written_after_a_view(x: torch.Tensor) -> Tensors:
    view = x.t()
    x[0] = 2
    return view, x, x.exp()


def _written_through_a_view(x: torch.Tensor) -> Tensors:
    view = x.unsqueeze(-1)
    view.mul_(2)
    return x, view


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize("options", [{}, {"numerics": "eager"}, {"capture": "own"}], ids=str)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("part", [lambda x: x * 1, lambda x: (x * 1).t(), lambda x: (x * 1)[:, :2]])
@pytest.mark.parametrize("function", [_written_after_a_view, _written_through_a_view])
def test_a_view_made_before_a_write_leads_to_what_its_argument_is_a_view_of(
    function: Any, part: Any, dynamic: Any, options: dict[str, Any]
) -> None:
    def seen(function: Any) -> list[Any]:
        leaf = torch.linspace(-1, 1, 9).view(3, 3).requires_grad_()
        results = function(part(leaf))
        total = sum((one * (i + 1)).sum() for i, one in enumerate(results))
        return list(torch.autograd.grad(total, [*results, leaf]))

    compiled = lamina.compile(function, backend="interp", dynamic=dynamic, options=options)
    torch.testing.assert_close(seen(compiled), seen(function))


def test_a_view_made_without_gradients_of_what_is_not_returned_refuses_writes_with_one() -> None:
    def part(x: torch.Tensor) -> torch.Tensor:
        double = x * 2
        with torch.no_grad():
            return double[1:]

    results = part(torch.ones(3)), lamina.compile(part, backend="interp")(torch.ones(3))
    weight = torch.ones(2, requires_grad=True)
    for result in results:
        with pytest.raises(RuntimeError, match="no_grad"):
            result.mul_(weight)


def _counted_then_read(seen: torch.Tensor, x: torch.Tensor) -> Tensors:
    seen.add_(1)
    made = x.exp()
    return made, torch.where(seen > 0, made, 2.0) * seen


def _read_through_a_view(seen: torch.Tensor, x: torch.Tensor) -> Tensors:
    part = seen[1:]
    seen[1] += 2
    seen.mul_(2)
    made = x * 3
    return made, made[1:] * part


def _read_between(seen: torch.Tensor, x: torch.Tensor) -> Tensors:
    made = x * 3
    seen.add_(1)
    scaled = (made + seen).exp()
    seen.mul_(2)
    return made, scaled


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("function", [_counted_then_read, _read_through_a_view, _read_between])
def test_results_that_read_a_written_input_after_the_writes_are_watched(function: Any, dynamic: Any) -> None:
    def outcome(function: Any) -> list[torch.Tensor]:
        leaf, seen, found = torch.linspace(-1, 1, 4).requires_grad_(), torch.arange(-2.0, 2.0), list[torch.Tensor]()
        made, read = function(seen, leaf)
        made.register_hook(lambda gradient: (found.append(gradient.clone()), gradient * 2)[1])
        (made.sum() * 3 + read.sum()).backward()
        assert leaf.grad is not None
        return [*found, leaf.grad, seen]

    compiled = lamina.compile(function, backend="interp", dynamic=dynamic)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        found = outcome(compiled)
    if function is _read_between:  # what was read there is gone
        assert any("only what arrives from outside" in str(one.message) for one in warned)
    else:
        torch.testing.assert_close(found, outcome(function))
        assert not any(issubclass(one.category, LaminaWarning) for one in warned)


def _written_by_a_part(x):
    y = x.sin()
    z = y * y
    w = z[:2]
    w.add_(2)
    return y, z, w


def _written_beside_a_view(x):
    y = x.sin()
    z = y * y
    w = z.view(-1)
    z.mul_(y)
    return y, w, z


@pytest.mark.parametrize("function", [_written_by_a_part, _written_beside_a_view])
@pytest.mark.parametrize("way", ["retained", "asked"])
def test_a_result_that_is_written_to_by_its_views_leads_to_what_it_depends_on(
    function: Callable[..., Any], way: str
) -> None:
    outcomes = []
    for call in (function, lamina.compile(function)):
        leaf = torch.linspace(0, 1, 12).reshape(4, 3).requires_grad_()
        results = call(leaf)
        loss = torch.stack([(one * one).sum() for one in results]).sum()
        if way == "asked":
            outcomes.append([*torch.autograd.grad(loss, [*results, leaf], allow_unused=True)])
            continue
        for one in results:
            one.retain_grad()
        loss.backward()
        outcomes.append([*(one.grad for one in results), leaf.grad])
    torch.testing.assert_close(outcomes[1], outcomes[0])


def _parts_of_what_is_not_returned(x):
    y = x.sin()
    first, second = (y * y).chunk(2)
    return y, first, second


def _views_of_what_is_not_returned(x):
    y = x.sin()
    z = y.exp()
    return z[:2], y.cos(), y, z[1:]


@pytest.mark.parametrize("function", [_parts_of_what_is_not_returned, _views_of_what_is_not_returned])
def test_a_gradient_that_goes_past_a_result_is_refused_where_that_is_watched(function: Callable[..., Any]) -> None:
    leaf, other = (torch.linspace(0, 1, 12).reshape(4, 3).requires_grad_() for _ in range(2))
    compiled = lamina.compile(function)
    _sum_of_all(compiled(leaf)).backward()
    _sum_of_all(function(other)).backward()
    torch.testing.assert_close(leaf.grad, other.grad)
    at = [one.grad_fn.name() for one in function(leaf)].index("SinBackward0")
    results = compiled(leaf)
    with pytest.raises(UnknownGradient, match="depends on others and shares memory"):
        torch.autograd.grad(_sum_of_all(results), results[at])
    results = compiled(leaf)
    results[at].retain_grad()
    results[at].sum().backward(retain_graph=True)
    torch.testing.assert_close(results[at].grad, torch.ones(4, 3))
    with pytest.raises(UnknownGradient, match="depends on others and shares memory"):
        _sum_of_all(results).backward()
    results = compiled(leaf)
    results[at].register_hook(lambda gradient: None)
    with pytest.warns(LaminaWarning, match="hooks of a result .* shares memory"):
        _sum_of_all(results).backward()
    gone = [weakref.ref(one) for one in results]
    del results
    assert [one() for one in gone] == [None] * len(gone)


def _sum_of_all(results: Any) -> torch.Tensor:
    return torch.stack([one.sum() for one in results]).sum()


def _of_a_varying_number(x, s):
    y = x * s + (s + 0.5)
    return y, torch.sub(x, y, alpha=s / 2)


def test_a_number_that_a_call_asks_for_leaves_known_what_results_depend_on() -> None:
    compiled = lamina.compile(_of_a_varying_number, dynamic=True)
    for s in (1.0, 2.0, 0.5):
        outcomes = []
        for call in (_of_a_varying_number, compiled):
            leaf = torch.linspace(0, 1, 12).requires_grad_()
            results = call(leaf, s)
            results[0].register_hook(lambda gradient: gradient * 2)
            _sum_of_all(results).backward()
            outcomes.append(leaf.grad)
        torch.testing.assert_close(outcomes[1], outcomes[0])
    found = compiled.record.decisions("dependent results")
    assert found
    assert all(d.taken for d in found)
