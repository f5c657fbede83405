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


def added_to_rows(z):
    z[:2] += 2


def multiplied_in_place(z):
    z[1:, ::2] *= 3
    z[0] -= 1


def to_itself(z):
    z[:] = z


@pytest.mark.parametrize("write", [added_to_rows, multiplied_in_place, to_itself])
def test_a_part_that_is_assigned_to_its_own_place_ends_no_graph(write: Callable[..., None]) -> None:
    def program(x):
        y = x.sin()
        z = y * y
        write(z)
        return y, z

    compiled = lamina.compile(program, backend="eager", options={"capture": "own"})
    found, wanted = ([*call(torch.arange(8.0, requires_grad=True).view(4, 2))] for call in (compiled, program))
    for results in (found, wanted):
        results[0].retain_grad()
        (results[0].sum() + results[1].sum()).backward()
        results[0] = results[0].grad
    torch.testing.assert_close(found, wanted)
    assert not [d for d in compiled.record.decisions() if d.kind == "break"]


def of_the_other(a, b):
    b.add_(a)


def of_itself(a, b):
    shifted = a[1:] + a[:-1]  # views of what looks like the other
    b[1:].add_(b[:-1])
    return shifted


def of_a_part_of_the_other(a, b):
    b[:3].mul_(a[:3])


def apart() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(8.0), torch.arange(8.0)


def shifted() -> tuple[torch.Tensor, torch.Tensor]:
    memory = torch.arange(9.0)
    return memory[1:], memory[:-1]


@pytest.mark.parametrize("write", [of_the_other, of_itself, of_a_part_of_the_other])
@pytest.mark.parametrize("order", [(apart, apart, shifted, apart), (shifted, shifted, apart, shifted)])
@pytest.mark.parametrize("handles", [True, False])
def test_writes_to_memory_that_the_call_reads_are_refused_at_their_place(
    write: Callable[..., None], order: tuple[Callable[..., tuple[torch.Tensor, torch.Tensor]], ...], handles: bool
) -> None:
    def done(world, a, b):
        made = world["made"] = a * 3
        if handles:
            try:
                write(a, b)
            except RuntimeError:
                world["refused"] = True
        else:
            write(a, b)
        world["done"] = True
        return made + b

    compiled = lamina.compile(done, backend="eager", options={"capture": "own"})
    for operands in order:
        outcomes = []
        for call in (done, compiled):
            world: dict[str, object] = {}
            a, b = operands()
            try:
                result = str(call(world, a, b))
            except RuntimeError as error:
                result = str(error)
            outcomes.append((result, str(world), str(a), str(b)))
        assert outcomes[0] == outcomes[1]
