"""Errors of compiled graphs that write to inputs: eager's error, and the inputs as eager leaves them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import lamina


def _between(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    y = x[i]
    x.mul_(2)
    return y


def _before(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x[i]


def _after(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    y = torch.gather(x, 0, i)
    x.add_(1)
    return y


def _the_write_itself(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    x[i] = x.sum()
    return x * 2


def _two_at_once(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    y = x[i] * 3
    x.copy_(y.sum().expand(4))
    return y


def _division(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    q = torch.tensor([4, 2]) // (i + 1 - 6 * (i > 4))
    x.add_(q.sum())
    return q


def _library_call(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    y = torch.linalg.inv(torch.eye(2) * (i.max() < 3))
    x.add_(1)
    return y


def _embedding(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    y = F.embedding(i, x[:, None] * 3)
    x.sub_(y.sum())
    return y


def _bag(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    loss = F.cross_entropy(x.expand(2, 4), i)
    x.add_(loss)
    return loss


PROGRAMS = (_between, _before, _after, _the_write_itself, _two_at_once, _division, _library_call, _embedding, _bag)


def _outcome(call: Callable[..., Any], *inputs: Any) -> Any:
    try:
        return call(*inputs)
    except Exception as error:
        return type(error), str(error).splitlines()[0]


@pytest.mark.sampled(one_in=6)
@pytest.mark.parametrize("backend", ["lamina", "interp"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__.strip("_"))
def test_an_error_leaves_inputs_as_eager_does(program: Callable[..., Any], backend: str) -> None:
    compiled = lamina.compile(program, backend=backend)
    good, bad = torch.tensor([0, 1]), torch.tensor([0, 5])
    ours, eagers = (torch.arange(4.0) for _ in range(2))
    for index in (good, bad, good, bad):
        mine, theirs = _outcome(compiled, ours, index), _outcome(program, eagers, index)
        if isinstance(theirs, tuple):
            assert mine == theirs
        else:
            torch.testing.assert_close(mine, theirs)
        torch.testing.assert_close(ours, eagers)
        assert bool(ours._version) == bool(eagers._version)


def test_an_error_in_a_graph_that_saves_for_a_backward_leaves_buffers_as_eager_does() -> None:
    def function(x: torch.Tensor, seen: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        seen.add_(1)
        loss = F.cross_entropy(x * seen, labels)
        seen.mul_(3)
        return loss

    compiled = lamina.compile(function)
    for labels in (torch.tensor([0, 2]), torch.tensor([0, 7]), torch.tensor([1, 1])):
        ours, eagers = (torch.ones(3) for _ in range(2))
        x = torch.ones(2, 3, requires_grad=True)
        mine, theirs = _outcome(compiled, x, ours, labels), _outcome(function, x, eagers, labels)
        assert isinstance(mine, tuple) == isinstance(theirs, tuple)
        assert mine == theirs if isinstance(theirs, tuple) else torch.allclose(mine, theirs)
        assert torch.equal(ours, eagers)


def test_what_a_cache_holds_is_written_once_where_an_index_is_wrong() -> None:
    def function(cache: torch.Tensor, count: torch.Tensor, i: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        count.add_(1)
        cache.index_add_(0, i, new)
        return cache.sum()

    compiled = lamina.compile(function)
    new = torch.ones(2, 3)
    for i in (torch.tensor([0, 1]), torch.tensor([0, 9])):
        ours, eagers = ((torch.zeros(4, 3), torch.zeros(2)) for _ in range(2))
        mine, theirs = _outcome(compiled, *ours, i, new), _outcome(function, *eagers, i, new)
        assert isinstance(mine, tuple) == isinstance(theirs, tuple)
        assert all(map(torch.equal, ours, eagers))


def _with_numbers(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    part = x[: int(i.max())].sum()
    y = torch.gather(x, 0, i)
    x.mul_(2)
    return y + part


def _with_a_call_between(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    k = x.shape[0] // 2 + int(i.max())
    y = torch.slice_scatter(x, x[:2], 0, k, k + 2)
    x.mul_(2)
    return y


def _with_branches(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    y = torch.cond(i.sum() > 2, lambda x, i: x[i] * 2, lambda x, i: x[i] + 1, (x, i))
    x.mul_(2)
    return y


IN_PIECES = (_with_numbers, _with_a_call_between, _with_branches)


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("backend", ["lamina", "interp"])
@pytest.mark.parametrize("program", IN_PIECES, ids=lambda p: p.__name__.strip("_"))
def test_an_error_between_pieces_of_a_graph_leaves_inputs_as_eager_does(
    program: Callable[..., Any], backend: str
) -> None:
    compiled = lamina.compile(program, backend=backend, dynamic=True)
    good, bad = torch.tensor([0, 1]), torch.tensor([0, 5])
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        for index in (good, bad, good, bad):
            ours, eagers = torch.arange(5.0), torch.arange(5.0)
            mine, theirs = _outcome(compiled, ours, index), _outcome(program, eagers, index)
            assert isinstance(mine, tuple) == isinstance(theirs, tuple)
            torch.testing.assert_close(ours, eagers)


@pytest.mark.parametrize("whole", [True, False])
def test_an_error_of_another_backend_leaves_inputs_as_eager_does(whole: bool) -> None:
    def supports(node: torch.fx.Node) -> bool:
        return whole or "index" not in str(node.target)

    backend = lamina.extend.Backend("forwarding", compile=lambda gm, inputs: gm.forward, supports=supports)
    compiled = lamina.compile(_between, backend=backend)
    for index in (torch.tensor([0, 1]), torch.tensor([0, 5])):
        ours, eagers = torch.arange(4.0), torch.arange(4.0)
        mine, theirs = _outcome(compiled, ours, index), _outcome(_between, eagers, index)
        assert isinstance(mine, tuple) == isinstance(theirs, tuple)
        torch.testing.assert_close(ours, eagers)
