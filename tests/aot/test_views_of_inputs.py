"""How results that are views of inputs, or parts of one tensor, were made: that decides who may write to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import lamina


def _parts(x: Tensor) -> Any:
    return x.split(2)


def _rows(x: Tensor) -> Any:
    return x.unbind(0)


def _view_of_a_part(x: Tensor) -> Any:
    return x.chunk(2)[1][None]


def _parts_of_a_product(x: Tensor) -> Any:
    return (x * 2).split(2)


def _view(x: Tensor) -> Any:
    return x.t()


def _view_without_gradients(x: Tensor) -> Any:
    with torch.no_grad():
        flat = x.view(-1)
    return flat, x * 2


def _parts_without_gradients(x: Tensor) -> Any:
    with torch.no_grad():
        return x.split(2)


FUNCTIONS = (
    _parts,
    _rows,
    _view_of_a_part,
    _parts_of_a_product,
    _view,
    _view_without_gradients,
    _parts_without_gradients,
)


def _said(call: Callable[[], object]) -> str:
    """What a call raises, without the name of the operation."""
    try:
        call()
    except RuntimeError as error:
        return str(error).partition(" is a view ")[2][:40] or str(error)[:40]
    return ""


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("kind", ["leaf", "computed", "constant"])
@pytest.mark.parametrize("dynamic", [None, True])
def test_writes_are_refused_where_eager_refuses_them(function: Any, kind: str, dynamic: bool | None) -> None:
    def seen(run: Callable[[Tensor], Any]) -> list[Any]:
        x = torch.arange(8.0).view(4, 2).requires_grad_(kind != "constant")
        given = x * 1 if kind == "computed" else x
        result = run(given)
        results = result if isinstance(result, tuple) else (result,)
        shown: list[Any] = [(t.requires_grad, t.is_leaf) for t in results]
        shown.append(_said(lambda: results[0].mul_(2)))
        shown.append(_said(lambda: given.mul_(1)))
        shown.append(_said(lambda: sum(t.sum() for t in results)))  # a view of what was written to is made again
        shown.append(given.tolist())
        return shown

    assert seen(lamina.compile(function, dynamic=dynamic)) == seen(function)


def _parts_before_a_mode_is_left_off(x: torch.Tensor) -> torch.Tensor:
    first, *_ = x.unbind(0)
    torch.set_grad_enabled(False)
    return first


def _parts_before_a_graph_break_without_gradients(x: torch.Tensor) -> torch.Tensor:
    first, *_ = x.split(1)[1].unbind(0)
    with torch.no_grad():
        torch._dynamo.graph_break()
    return first


@pytest.mark.parametrize("capture", ["own", "dynamo"])
@pytest.mark.parametrize("function", [_parts_before_a_mode_is_left_off, _parts_before_a_graph_break_without_gradients])
def test_parts_are_views_of_the_input_where_the_graph_ends_without_gradients(function: Any, capture: str) -> None:
    torch.compiler.reset()
    compiled = lamina.compile(function, options={"capture": capture, "strict": True})
    for call in (function, compiled, compiled):
        x = torch.ones(3, 4, requires_grad=True) * 1
        part = call(x)
        left = torch.is_grad_enabled()
        torch.set_grad_enabled(True)
        assert left == (function is not _parts_before_a_mode_is_left_off)
        assert part._is_view()
        (gradient,) = torch.autograd.grad(part.sum(), x, retain_graph=True)
        assert gradient.sum() == 4
        x.zero_()
        with pytest.raises(RuntimeError, match="multiple views"):
            part.sum().backward()
