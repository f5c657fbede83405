"""Errors of graphs that depend on values: what the program did to objects of Python's before them is done."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import lamina
from lamina.base.modes import autocast_depth
from lamina.capture.graph_errors.again import Again
from lamina.errors import LaminaWarning


class Held:
    def __init__(self):
        self.count, self.last, self.log, self.table = 0, None, [], {}


class Noting:
    def __init__(self, log):
        self.log = log

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.log.append("left" if kind is None else kind.__name__)


def containers_and_attributes(x, i, held):
    held.count += 1
    held.log.append(x + 1)
    held.table["x"] = x * 2
    y = x[i]
    held.log.append("after")
    return y * 2


def a_function_that_is_called(x, i, held):
    def inner(y):
        held.log.append("inner")
        held.last = y
        return F.embedding(i, y.view(-1, 1))

    held.log.clear()
    return inner(x * 2) + 1


def finally_(x, i, held):
    try:
        y = x[i]
    finally:
        held.log.append("finally")
    return y


def a_manager_of_the_programs(x, i, held):
    with Noting(held.log):
        return x[i] + 1


def after_a_break(x, i, held):
    y = x * 2
    held.log.append("before")
    torch._dynamo.graph_break()
    held.log.append("behind")
    z = y[i]
    held.log.append("after")
    return z


def a_variable_of_the_caller(x, i, held):
    count = held.count

    def add():
        nonlocal count
        count += 2
        held.count = count
        return x[i]

    return add() * count


def an_algorithm(x, i, held):
    held.table.update(a=1)
    held.last = torch.linalg.cholesky(x[:1].view(1, 1) * (5 - i[1]))
    return held.last * 2


def an_argument_is_written_to(x, i, held):
    held.log.append(x.sum())
    x.mul_(2)
    y = x[i]
    x.add_(1)
    return y


def an_iterator_is_advanced(x, i, held):
    numbers = iter((1, 2, 3))
    held.log.extend(numbers)
    first = next(held.each)
    return x[i] * first, next(held.each)


def gradients_are_switched(x, i, held):
    held.count = 7
    torch.set_grad_enabled(False)
    y = x[i]
    torch.set_grad_enabled(True)
    return y


def autocast_is_switched(x, i, held):
    held.log.append(torch.is_autocast_enabled("cpu"))
    torch.set_autocast_enabled("cpu", True)
    y = x[i]
    torch.set_autocast_enabled("cpu", False)
    return y


def autocast_is_entered(x, i, held):
    held.count += 1
    with torch.autocast("cpu"):
        held.last = x.view(2, 2) @ x.view(2, 2)
        return x[i]


def arguments_of_all_kinds(x, i, held, /, *rest, **named):
    def inner(a, /, b, *c, d, e=2, **f):
        held.log.append((b, c, d, e, f))
        return a[b] * d

    held.log.append((rest, named))
    return inner(x, i, 1, 2, d=3, g=4)


PROGRAMS = [
    containers_and_attributes,
    a_function_that_is_called,
    finally_,
    a_manager_of_the_programs,
    after_a_break,
    a_variable_of_the_caller,
    an_algorithm,
    an_argument_is_written_to,
    an_iterator_is_advanced,
    gradients_are_switched,
    autocast_is_switched,
    autocast_is_entered,
    arguments_of_all_kinds,
]


def outcomes(function: Callable[..., Any], leaf: bool, *more: Any, **named: Any) -> list[Any]:
    found: list[Any] = []
    for places in ([0, 1], [0, 9], [0, 9], [1, 2], [3, -9]):
        held = Held()
        held.each = iter(range(5, 10))
        x = torch.arange(1.0, 5.0, requires_grad=leaf)
        try:
            result: Any = function(x, torch.tensor(places), held, *more, **named)
        except (IndexError, RuntimeError) as error:
            result = type(error).__name__, str(error).partition("\n")[0], error.__context__
        state = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), autocast_depth()
        torch.set_grad_enabled(True)
        torch.set_autocast_enabled("cpu", False)
        found.append([result, x, state, held.count, held.last, held.log, held.table, list(held.each)])
    return found


def plain(value: Any) -> Any:
    """``value`` with tensors as what they hold."""
    if isinstance(value, torch.Tensor):
        return value.tolist(), value.requires_grad
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, (list, tuple)) else value


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("leaf", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_what_was_changed_before_an_error_is_changed(program: Callable[..., Any], leaf: bool) -> None:
    if leaf and program is an_argument_is_written_to:
        return  # which eager refuses
    given: tuple[Any, dict[str, Any]] = ((1, 2), {"k": 3}) if program is arguments_of_all_kinds else ((), {})
    wanted = outcomes(program, leaf, *given[0], **given[1])
    for options in ({"strict": True}, {"strict": True, "numerics": "eager"}):
        torch.compiler.reset()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="lamina runs .* switches autocast by hand")
            found = outcomes(lamina.compile(program, options=options), leaf, *given[0], **given[1])
        assert plain(found) == plain(wanted)


def test_methods_and_closures_run_again() -> None:
    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(4, 2)
            self.calls = 0

        def forward(self, i, *, scale=1.0):
            self.calls += 1
            y = self.table(i) * scale
            self.last = y
            return y.sum() + given

    given = 3
    module = Counting()
    compiled = lamina.compile(module, options={"strict": True})
    for k, places in enumerate(([0, 1], [0, 9], [2, 1], [9, 0])):
        with contextlib.suppress(IndexError):
            compiled(torch.tensor(places), scale=2.0)
        assert module.calls == k + 1
        assert hasattr(module, "last")


def test_an_error_of_the_graph_is_handled_by_the_caller() -> None:
    def inner(x, i, log):
        log.append(1)
        return x[i]

    def outer(x, i, log):
        try:
            return inner(x, i, log) * 2
        except IndexError:
            log.append("handled")
            return x

    compiled = lamina.compile(outer)
    for places in ([0, 1], [0, 9]):
        seen: list[Any] = []
        wanted: list[Any] = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LaminaWarning)
            found = compiled(torch.ones(4), torch.tensor(places), seen)
        assert torch.equal(found, outer(torch.ones(4), torch.tensor(places), wanted))
        assert seen == wanted


def test_what_is_lost_is_told() -> None:
    @torch.library.custom_op("lamina_tests::refusing", mutates_args=())
    def refusing(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 5:
            raise ValueError("too large")
        return x * 2

    refusing.register_fake(torch.empty_like)

    def program(x, log):
        log.append(1)
        return refusing(x)

    compiled = lamina.compile(program)
    compiled(torch.ones(4), [])
    with pytest.warns(LaminaWarning, match="changes of objects"), pytest.raises(ValueError, match="too large"):
        compiled(torch.full((4,), 2.0), [])
    assert [d for d in compiled.record.decisions("capture") if not d.taken and "ValueError" in str(d.reason)]


def test_behind_torch_compile_as_well() -> None:
    wanted = outcomes(containers_and_attributes, False)
    found = outcomes(torch.compile(containers_and_attributes, backend="lamina"), False)
    assert plain(found) == plain(wanted)


def reads_and_changes(x, i, log):
    log.append(1)
    return x[i]


def only_reads(x, i, log):
    return x[i] * 2


def raises_nothing(x, i, log):
    log.append(1)
    return x.exp() @ x


@pytest.mark.parametrize(("program", "count"), [(reads_and_changes, 1), (only_reads, 0), (raises_nothing, 0)])
def test_only_graphs_that_may_raise_beside_changes_are_watched(
    program: Callable[..., Any], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched: list[Any] = []
    watch = Again.watched
    monkeypatch.setattr(Again, "watched", lambda frame, run: (watched.append(frame), watch(frame, run))[1])
    compiled = lamina.compile(program)
    compiled(torch.ones(4), torch.tensor([0, 1]), [])
    assert len(watched) == count


class _Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += x.detach().sum(0)
        return x * self.weight


class _Hooking(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = _Counting(), _Counting()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        y.register_hook(lambda g: g * 2)
        return self.second(y)


def test_code_with_a_constant_that_has_no_hash_gets_a_handler() -> None:
    """Dynamo makes the globals of a hook a constant of the code after a graph break."""
    nets = [_Hooking(), _Hooking()]
    calls = [nets[0], lamina.compile(nets[1], options={"strict": True})]
    for number in range(3):
        gradients = []
        for net, call in zip(nets, calls, strict=True):
            if number == 1:
                net.first.register_full_backward_pre_hook(lambda module, arriving: None)
            x = torch.ones(2, 4, requires_grad=True)
            call(x).sum().backward()
            gradients.append(x.grad)
        torch.testing.assert_close(*gradients)
    torch.testing.assert_close(nets[0].first.seen, nets[1].first.seen)
