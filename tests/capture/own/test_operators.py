"""Operators of torch.ops, the program's own among them, go into graphs where they only compute."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import lamina
from lamina.capture.frame_reasons import REUSED

_calls: list[int] = []


@torch.library.custom_op("lamina_own::scaled", mutates_args=())
def scaled(x: Tensor, by: float) -> Tensor:
    """An operator that computes, with a gradient."""
    _calls.append(len(x))
    if by < 0:
        raise ValueError("by is negative")
    return x * by


@torch.library.custom_op("lamina_own::fill", mutates_args=("x",))
def fill(x: Tensor) -> None:
    """One that writes."""
    x.fill_(2.0)


scaled.register_fake(lambda x, by: torch.empty_like(x))
scaled.register_autograd(
    lambda ctx, gradient: (torch.ops.lamina_own.scaled(gradient, ctx.by), None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "by", inputs[1]),
)
fill.register_fake(lambda x: None)


def _compiled(program: Any) -> Any:
    return lamina.compile(program, options={"capture": "own", "cache": False})


def _reasons(compiled: Any, kind: str) -> set[Any]:
    return {d.reason.code for d in compiled.record.decisions(kind)}


def _by_packet(x: Tensor) -> Tensor:
    return torch.ops.lamina_own.scaled(x.sin(), 3.0) + 1


def _by_overload(x: Tensor) -> Tensor:
    return torch.ops.lamina_own.scaled.default(x.sin(), 3.0) + torch.ops.aten.cos(x)


def _by_definition(x: Tensor) -> Tensor:
    return scaled(x.sin(), by=3.0).exp()


@pytest.mark.parametrize("program", [_by_packet, _by_overload, _by_definition])
def test_operators_that_compute_end_no_graph(program: Any) -> None:
    compiled = _compiled(program)
    for step in range(4):
        x = torch.linspace(-1.0, 1.0 + step, 8).requires_grad_()
        _calls.clear()
        found = compiled(x)
        assert _calls == [8]  # each call asks the operator anew
        wanted = program(x)
        torch.testing.assert_close(found, wanted)
        grads = [torch.autograd.grad(y.square().sum(), x)[0] for y in (found, wanted)]
        torch.testing.assert_close(*grads)
    assert not compiled.record.decisions("break")
    assert REUSED.number in _reasons(compiled, "capture")


def test_an_operator_that_is_replaced_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = _compiled(_by_packet)
    x = torch.ones(4)
    for _ in range(2):
        assert torch.allclose(compiled(x), _by_packet(x))
    torch.ops.lamina_own.scaled  # noqa: B018 - which puts it where it is found from then on
    monkeypatch.setattr(torch.ops.lamina_own, "scaled", lambda x, by: x - by)
    assert torch.allclose(compiled(x), x.sin() - 2)


def test_an_operator_that_raises_raises_where_the_program_handles_it() -> None:
    def program(x: Tensor, by: float) -> Tensor:
        try:
            torch.ops.lamina_own.scaled(x, by)
        except ValueError:
            return x - 1
        return x + 1

    compiled = _compiled(program)
    for by in (1.0, -1.0, 2.0, -2.0, 1.0):
        assert torch.equal(compiled(torch.ones(3), by), torch.ones(3) + (1 if by > 0 else -1))


def test_operators_that_write_run_between_graphs() -> None:
    def program(x: Tensor) -> Tensor:
        y = x * 2
        torch.ops.lamina_own.fill(y)
        return y + x

    compiled = _compiled(program)
    for _ in range(3):
        assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 3.0))
    assert compiled.record.decisions("break")
