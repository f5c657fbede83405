"""Results in one memory: which of them a write with a gradient gives a history, and whose version it raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import lamina

Results = tuple[Tensor, ...]


def _detached_view_of_a_copy(x: Tensor) -> Results:
    copied = x.transpose(0, 1).flatten(0, 1).view(2, -1, 4)
    return copied.detach(), copied.view(8, -1).view(-1, 6), x


def _several_detached(x: Tensor) -> Results:
    y = x * 2
    flat = y.view(-1)
    return y.detach(), flat.detach(), flat[1:], y.view(-1)[2:]


def _detached_parts_beside_a_view(x: Tensor) -> Results:
    detached, y = x.detach(), x * 2
    of_y = y.detach()
    return detached.chunk(2)[0], detached[1:], of_y.chunk(2)[0], of_y[1:], of_y, y


def _detached_input(x: Tensor) -> Results:
    detached = x.detach()
    return detached, detached[1:], x[1:], detached.detach()[1:], x[1:].detach()


def _view_of_a_detached_input(x: Tensor) -> Results:
    return x.detach(), x.detach()[1:], x[1:]


def _data(x: Tensor) -> Results:
    y = x * 2
    return y.data, y[1:], y.detach()[1:], x[2:].data, x[1:]


def _view_without_gradients(x: Tensor) -> Results:
    y = x * 1
    with torch.no_grad():
        view = y[1:]
    return view, view.detach(), y, y.detach()


PROGRAMS: tuple[Callable[[Tensor], Results], ...] = (
    _detached_view_of_a_copy,
    _several_detached,
    _detached_parts_beside_a_view,
    _detached_input,
    _view_of_a_detached_input,
    _data,
    _view_without_gradients,
)


def _history(tensor: Tensor) -> Any:
    try:
        return tensor.grad_fn is not None
    except RuntimeError as refused:
        return str(refused)


def _after_a_write(function: Callable[[Tensor], Results], place: int, trained: bool, with_gradient: bool) -> Any:
    """What a write to a result does to all results and the input, or the error that it ends in."""
    x = torch.arange(192.0).reshape(8, 6, 4).requires_grad_(trained)
    tensors = (*function(x), x)
    versions = [one._version for one in tensors]
    factor, error = torch.tensor(2.0, requires_grad=True), ""
    try:
        with torch.set_grad_enabled(with_gradient):
            tensors[place].mul_(factor)
    except RuntimeError as refused:
        error = str(refused)
    raised = [one._version > version for one, version in zip(tensors, versions, strict=True)]
    return (
        error,
        raised,
        [one._is_view() for one in tensors],
        [_history(one) for one in tensors],
        [one.detach().tolist() for one in tensors],
    )


@pytest.mark.sampled(one_in=8)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", PROGRAMS, ids=lambda f: f.__name__.strip("_"))
def test_a_write_to_a_result_is_seen_by_those_that_see_it_in_eager(
    function: Callable[[Tensor], Results], dynamic: bool
) -> None:
    compiled = lamina.compile(function, backend="interp", dynamic=dynamic)
    for trained in (False, True):
        for place in range(len(function(torch.ones(8, 6, 4)))):
            for with_gradient in (False, True):
                case = (place, trained, with_gradient)
                assert _after_a_write(compiled, *case) == _after_a_write(function, *case), case


def _expanded(x: Tensor) -> Results:
    y = (x * 2).expand(3, *x.shape)
    return y, y[1:]


def _windows(x: Tensor) -> Results:
    y = (x * 2).unfold(0, 2, 1)
    return y[1:], y


def _strided(x: Tensor) -> Results:
    y = x.as_strided((2, 2), (1, 1))
    return y, y[1:]


def _plain(x: Tensor) -> Results:
    y = x * 2
    return y, y[1:]


def _gradients(function: Callable[[Tensor], Results], size: int) -> list[Any]:
    """The gradients of the input and of all results that are asked for at once."""
    x = torch.arange(float(size * size)).reshape(size, size).requires_grad_()
    results = function(x)
    loss = torch.stack([(one * torch.arange(one.numel()).reshape(one.shape)).sum() for one in results]).sum()
    return [g.tolist() for g in torch.autograd.grad(loss, [x, *results])]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [_expanded, _windows, _strided, _plain], ids=lambda f: f.__name__.strip("_"))
def test_elements_in_one_place_of_memory_have_gradients_of_their_own(
    function: Callable[[Tensor], Results], dynamic: bool
) -> None:
    """As views made again by strides they would share the gradient of a view of them."""
    compiled = lamina.compile(function, backend="interp", dynamic=dynamic)
    for size in (2, 3, 4):
        assert _gradients(compiled, size) == _gradients(function, size)
    assert bool(compiled.record.decisions("eager")) == (function is not _plain)


def _part_of(windows: Tensor, step: int) -> Tensor:
    return windows[0:2:step]


def _gradients_of_windows(function: Callable[[Tensor, int], Tensor], step: int, leaf: bool) -> list[Any]:
    memory = torch.arange(5.0)
    windows = memory.unfold(0, 2, 1).requires_grad_() if leaf else memory.requires_grad_().unfold(0, 2, 1)
    part = function(windows, step)
    loss = (part * torch.arange(part.numel()).reshape(part.shape)).sum()
    return [part.tolist(), *(g.tolist() for g in torch.autograd.grad(loss, [windows, part]))]


@pytest.mark.parametrize("dynamic", [False, True, None])
@pytest.mark.parametrize("leaf", [False, True])
def test_a_part_of_windows_that_are_an_input_leads_to_its_elements(dynamic: bool | None, leaf: bool) -> None:
    compiled = lamina.compile(_part_of, backend="interp", dynamic=dynamic)
    for step in (1, 2, 1):
        assert _gradients_of_windows(compiled, step, leaf) == _gradients_of_windows(_part_of, step, leaf)


def _column_and_part(windows: Tensor) -> Results:
    column = windows[:, 0]
    return column, column.chunk(2)[0]


def _part_and_its_view(windows: Tensor) -> Results:
    rows = windows.unbind(1)[0]
    return rows, rows[:1]


@pytest.mark.parametrize("function", [_column_and_part, _part_and_its_view])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_part_of_windows_has_gradients_of_its_own_beside_what_it_is_a_part_of(
    function: Callable[[Tensor], Results], dynamic: bool
) -> None:
    def gradients(call: Callable[[Tensor], Results]) -> list[Any]:
        windows = torch.arange(12.0).view(4, 3).requires_grad_().unfold(0, 2, 1)
        results = call(windows)
        loss = torch.stack([(one * torch.arange(one.numel()).reshape(one.shape)).sum() for one in results]).sum()
        return [g.tolist() for g in torch.autograd.grad(loss, [windows, *results])]

    assert gradients(lamina.compile(function, backend="interp", dynamic=dynamic)) == gradients(function)


def _whole_and_part(x: Tensor) -> Results:
    y = x * 2
    return y.view(-1), y.unbind(0)[1]


def _row_and_part(x: Tensor) -> Results:
    y = x.exp()
    return y.narrow(0, 1, 1), y.t().split(1, 1)[1]


def _turned_and_parts(x: Tensor) -> Results:
    y = x * 2
    return y.t(), *y.chunk(2)


def _whole_and_part_twice(x: Tensor) -> Results:
    y = x * 2
    part = y.unbind(0)[1]
    return y.view(-1), part.view(1, -1), part


def _gradients_after_a_write(function: Callable[[Tensor], Results], tracks: bool) -> list[Any]:
    """What becomes of the gradients of each result once the first was written to."""
    found: list[Any] = []
    for place in range(len(function(torch.ones(2, 2)))):
        x = torch.tensor([[1.0, 2], [3, 4]], requires_grad=True)
        results = function(x)
        found.append([one._is_view() for one in results])
        with torch.set_grad_enabled(tracks):
            results[0].mul_(3)
        try:
            given = torch.autograd.grad(results[place].sum(), [x, results[0]], allow_unused=True)
        except RuntimeError as error:
            found.append("is a view and" in str(error))
        else:
            found.append([one if one is None else one.tolist() for one in given])
    return found


@pytest.mark.parametrize("capture", ["dynamo", "own"])
@pytest.mark.parametrize("tracks", [False, True])
@pytest.mark.parametrize(
    "function",
    [_whole_and_part, _row_and_part, _turned_and_parts, _whole_and_part_twice],
    ids=lambda f: f.__name__.strip("_"),
)
def test_parts_are_refused_once_a_view_beside_them_was_written_to(
    function: Callable[[Tensor], Results], tracks: bool, capture: str
) -> None:
    """They were tensors of their own, whose gradients did not know of the write."""
    torch._dynamo.reset()
    compiled = lamina.compile(function, options={"capture": capture})
    assert _gradients_after_a_write(compiled, tracks) == _gradients_after_a_write(function, tracks)


def _parts_of_two_calls(x: Tensor) -> Results:
    y = x * 2
    return y.unbind(0)[0], y.unbind(1)[1]


def _part_beside_a_column(x: Tensor) -> Results:
    y = x * 2
    return y.unbind(0)[0], y[:, 1]


def _parts_of_one_call(x: Tensor) -> Results:
    first, second = (x * 2).chunk(2)
    return first, second.t()


def _parts_beside_the_whole(x: Tensor) -> Results:
    y = x * 2
    return y.view(-1), *y.chunk(2), y.split(1, 1)[0]


def _saved_before_a_write(function: Callable[[Tensor], Results]) -> list[Any]:
    """The gradients of a loss of one result, if another was written to before, or that they are refused."""
    found: list[Any] = []
    for saved, written in ((0, 1), (1, 0)):
        x = torch.tensor([[1.0, 2], [3, 4]], requires_grad=True)
        results = function(x)
        loss = results[saved].square().sum()
        with torch.no_grad():
            results[written].mul_(3)
        try:
            found += torch.autograd.grad(loss, x)[0].tolist()
        except RuntimeError:
            found.append("refused")
    return found


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "function",
    [_parts_of_two_calls, _part_beside_a_column, _parts_of_one_call, _parts_beside_the_whole],
    ids=lambda f: f.__name__.strip("_"),
)
def test_parts_with_elements_of_others_are_eagers(function: Callable[[Tensor], Results], dynamic: bool) -> None:
    """They would be tensors of their own, of which one is written to and another saved."""
    torch._dynamo.reset()
    compiled = lamina.compile(function, dynamic=dynamic)
    if function is not _parts_of_one_call:  # whose gradients are right, where eager has none
        assert _saved_before_a_write(compiled) == _saved_before_a_write(function)
    torch.testing.assert_close(compiled(torch.ones(2, 2)), function(torch.ones(2, 2)))
    compiled(torch.ones(2, 2, requires_grad=True))
    meet = function in (_parts_of_two_calls, _part_beside_a_column)
    assert bool(compiled.record.decisions("eager")) == meet
