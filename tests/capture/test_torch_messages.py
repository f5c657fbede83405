"""Torch's messages of many lines: none beside what Lamina says of the same, all where somebody asks for them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch._logging import set_logs

import lamina

NAME = "torch._subclasses.fake_tensor"


@pytest.fixture
def told() -> Iterator[list[str]]:
    """The messages of torch's logger while a test runs."""
    found: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger(NAME).addHandler(handler)
    torch.compiler.reset()
    yield found
    logging.getLogger(NAME).removeHandler(handler)


def product(x: Tensor, w: Tensor) -> Tensor:
    return x.sin() @ w


def refused(compiled: Callable[[Tensor, Tensor], Tensor]) -> None:
    with pytest.raises(RuntimeError, match=r"cannot be multiplied|reduction dim"):
        compiled(torch.randn(3, 4), torch.randn(5, 6))


def test_a_call_that_eager_refuses_is_told_by_its_error_alone(told: list[str]) -> None:
    refused(lamina.compile(product))
    refused(torch.compile(product, backend="lamina"))
    assert told == []


def test_who_asks_for_torch_s_logs_gets_them(told: list[str]) -> None:
    set_logs(dynamo=logging.WARNING)
    try:
        refused(lamina.compile(product))
    finally:
        set_logs()
    assert told


def test_messages_of_other_backends_stay(told: list[str]) -> None:
    lamina.compile(product)
    with pytest.raises(Exception, match=r"cannot be multiplied|reduction dim"):
        torch.compile(product, backend="eager")(torch.randn(3, 4), torch.randn(5, 6))
    assert told
