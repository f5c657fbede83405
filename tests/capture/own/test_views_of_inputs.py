"""Views that a call returns or writes to: eager's errors where it lets nobody write to one, and its gradients."""

from __future__ import annotations

import pytest
import torch

import lamina
from lamina.base.torch_private import is_leaf

PARTS = {
    "unbind": lambda x: x.unbind(0),
    "split": lambda x: x.split(1),
    "chunk": lambda x: x.chunk(2),
    "unbind and view": lambda x: tuple(part.view(-1) for part in x.unbind(0)),
}
OWN = {"capture": "own"}


def compiled(program):
    return lamina.compile(program, options=OWN)


@pytest.mark.parametrize("parts", PARTS)
def test_nobody_writes_to_one_of_several_views(parts) -> None:
    call = compiled(PARTS[parts])
    for _ in range(3):
        x = torch.ones(2, 3, requires_grad=True) * 1
        first, *_ = call(x)
        with pytest.raises(RuntimeError, match="returns multiple views"):
            first.add_(1)
        torch.testing.assert_close(call(x), PARTS[parts](x))


def test_nor_does_the_program_itself() -> None:
    def program(x):
        first, second = x.unbind(0)
        first.add_(1)
        return first * second

    call = compiled(program)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="returns multiple views"):
            call(torch.ones(2, 3, requires_grad=True) * 1)


def test_a_view_made_and_written_to_without_gradients_leaves_those_of_the_rest() -> None:
    def program(x):
        y = x * 2
        with torch.no_grad():
            first = y[0]
            first.zero_()
        return y

    call = compiled(program)
    for _ in range(3):
        x = torch.ones(4, 3, requires_grad=True)
        y = call(x)
        y.sum().backward()
        assert torch.equal(y[0], torch.zeros(3))
        assert torch.equal(x.grad, torch.full((4, 3), 2.0))


@pytest.mark.parametrize(
    ("options", "outside"), [(OWN, False), (OWN, True), ({}, False)], ids=["own", "own, outside", "default"]
)
def test_a_write_to_a_view_whose_base_got_a_history_is_refused(options: dict[str, str], outside: bool) -> None:
    """Autograd refuses it until something asks for the view's history, as ``is_leaf`` does."""
    weight = torch.ones(3, requires_grad=True)

    def program(x, y):
        if not outside:
            y.mul_(weight)
        return x.add_(1)[1:]

    def call(function):
        base = torch.ones(4, 3)
        x, y = base[:2], base[0:2]
        if outside:
            y.mul_(weight)
        with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
            function(x, y)

    call(program)
    torch._dynamo.reset()
    compiled = lamina.compile(program, backend="eager", options=options)
    for _ in range(3):
        call(compiled)


def test_leaves_are_told_without_giving_views_a_history() -> None:
    weight = torch.ones(4, requires_grad=True)
    plain = torch.ones(4)
    written = torch.ones(4)
    with torch.no_grad():
        unseen = weight[:2]
    before = plain[:2]
    given = torch.ones(4)[:2].requires_grad_()
    stale = written[:2]
    written.mul_(weight)
    tensors = [weight, weight[:2], weight * 2, (weight * 2)[:2], unseen, before, given, weight.detach(), plain]
    assert [is_leaf(t) for t in tensors] == [t.is_leaf for t in tensors]
    assert not is_leaf(stale)
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        stale.add_(1)
