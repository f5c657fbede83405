"""Views that a call returns or writes to: eager's errors where it lets nobody write to one, and its gradients."""

from __future__ import annotations

import pytest
import torch

import lamina

PARTS = {
    "unbind": lambda x: x.unbind(0),
    "split": lambda x: x.split(1),
    "chunk": lambda x: x.chunk(2),
    "unbind and view": lambda x: tuple(part.view(-1) for part in x.unbind(0)),
}


def compiled(program):
    return lamina.compile(program, options={"capture": "own"})


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
