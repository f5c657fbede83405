"""Writes at places that are known: what else may be wrong with them is raised where the program handles it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import lamina
from lamina.capture.own.callable import interpreted_callable
from lamina.record import Record

I = torch.tensor([0, 1])  # noqa: E741 - indices
MASK = torch.tensor([True, True, False, False])


def subscript(z, v):
    z[I] = v


def mask(z, v):
    z[MASK] = v


def copied(z, v):
    z.index_copy_(0, I, v)


def added(z, v):
    z.index_add_(0, I, v)


def of_a_half(z, v):
    z.half().index_fill_(0, I, 1e10)


def of_a_complex(z, v):
    z.index_fill_(0, I, 1j)


def to_an_expanded(z, v):
    z[:1].expand(4).index_add_(0, I, v)


V2, V3, WHOLE = torch.ones(2), torch.ones(3), torch.ones(2, dtype=torch.int64)


@pytest.mark.parametrize(
    ("write", "value"),
    [
        *((write, value) for write in (subscript, mask) for value in (V2, V3, WHOLE, V3[:1], V2.sum(), V2[None])),
        *((write, value) for write in (copied, added) for value in (V2, WHOLE, V3)),
        (of_a_half, V2),
        (of_a_complex, V2),
        (to_an_expanded, V2),
    ],
)
def test_what_is_wrong_with_a_write_is_handled(write: Callable[..., None], value: torch.Tensor) -> None:
    def program(x, v):
        z = (x * 2).clone()
        try:
            write(z, v)
        except (RuntimeError, IndexError):
            return "caught"
        return z

    compiled = lamina.compile(program, backend="eager", options={"capture": "own"})
    wanted = program(torch.ones(4), value)
    for _ in range(2):
        found = compiled(torch.ones(4), value)
        assert torch.equal(found, wanted) if isinstance(wanted, torch.Tensor) else found == wanted


def test_a_write_that_is_right_ends_no_graph() -> None:
    graphs = []

    def backend(gm, example_inputs):
        graphs.append(gm)
        return gm.forward

    def program(x, v):
        z = x * 2
        try:
            z[I] = v
            y = z + 1
        except RuntimeError:
            return x
        return y * 3

    found = interpreted_callable(program, backend_callable=backend, record=Record())(torch.ones(4), V2)
    assert torch.equal(found, program(torch.ones(4), V2))
    assert len(graphs) == 1
