"""Functions with calls that only Dynamo captures have its graphs, which is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import lamina

OWN = {"capture": "own", "strict": True, "cache": False}


def _loop(x: Tensor) -> Tensor:
    def rounds(i: Tensor, y: Tensor) -> Tensor:
        return i < 5

    def body(i: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return i + 1, y.sin() + x

    return while_loop(rounds, body, (torch.zeros((), dtype=torch.int64), x * 2))[1] + 1  # type: ignore[no-any-return]


def _mapped(x: Tensor) -> Tensor:
    return torch_map(lambda row: row.sin() + 1, x * 2).relu()  # type: ignore[no-any-return]


def _scanned(x: Tensor) -> Tensor:
    last, rows = scan(lambda carry, row: (carry + row, carry * row), torch.zeros(4), x * 2)
    return last + rows  # type: ignore[no-any-return]


def _joined(x: Tensor) -> Tensor:
    return associative_scan(torch.add, x * 2, 0, combine_mode="generic") + 1  # type: ignore[no-any-return]


def _told(compiled: Any) -> list[str]:
    return [one.reason for one in compiled.record.decisions() if "captures its calls from now on" in one.reason]


@pytest.mark.parametrize("function", [_loop, _mapped, _scanned, _joined])
@pytest.mark.parametrize("fullgraph", [False, True])
def test_loops_of_torch(function: Callable[[Tensor], Tensor], fullgraph: bool) -> None:
    torch.compiler.reset()
    compiled = lamina.compile(function, options=OWN, fullgraph=fullgraph)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(4, 4)
            torch.testing.assert_close(compiled(x), function(x))
    assert len(_told(compiled)) == 1
    assert compiled.stats().graphs


def test_what_was_done_before_is_not_done_twice() -> None:
    done: list[int] = []

    def function(x: Tensor) -> Tensor:
        done.append(1)
        return _mapped(x)

    torch.compiler.reset()
    compiled = lamina.compile(function, options=OWN)
    for count in (1, 2, 3):
        compiled(torch.randn(4, 4))
        assert len(done) == count


def test_versions_without_such_a_call_stay() -> None:
    def function(x: Tensor, mapped: bool) -> Tensor:
        return _mapped(x) if mapped else x.cos() * 3

    torch.compiler.reset()
    compiled = lamina.compile(function, options=OWN)
    x = torch.randn(4, 4)
    for mapped in (False, True, False, True):
        torch.testing.assert_close(compiled(x, mapped), function(x, mapped))
    assert len(_told(compiled)) == 1


def test_what_is_printed_before_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    def function(x: Tensor) -> Tensor:
        print("before")
        return _mapped(x)

    torch.compiler.reset()
    compiled = lamina.compile(function, options=OWN)
    for count in (1, 2, 3):
        compiled(torch.randn(4, 4))
        assert capsys.readouterr().out.count("before") == 1, count


def test_an_update_of_random_numbers_is_made_once() -> None:
    def function(x: Tensor) -> Tensor:
        return _mapped(x + torch.rand(4, 4))

    torch.compiler.reset()
    compiled = lamina.compile(function, options={**OWN, "numerics": "eager"})
    x = torch.randn(4, 4)
    for _ in range(2):
        torch.manual_seed(0)
        expected, after = function(x), torch.rand(1)
        torch.manual_seed(0)
        torch.testing.assert_close(compiled(x), expected)
        assert torch.equal(torch.rand(1), after)
