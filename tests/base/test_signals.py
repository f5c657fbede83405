"""What a handler of a signal raises is the program's: nothing of ours takes it for a failure of its own."""

from __future__ import annotations

import signal
from functools import partial
from importlib import import_module

import pytest
import torch

import lamina
from lamina.base.recovery import is_internal, recover
from lamina.base.signals import raised_by_handler
from lamina.record import Record


class Alarm(Exception):
    """What a handler raises."""


def handler(number, frame):
    raise Alarm


class Handling:
    """An object that handles signals."""

    def __call__(self, number, frame):
        raise Alarm


@pytest.fixture(params=[handler, partial(handler), Handling()], ids=["function", "partial", "object"])
def arrives(request):
    """Does what a signal does that arrives now."""
    before = signal.signal(signal.SIGUSR1, request.param)
    yield lambda *given, **named: request.param(signal.SIGUSR1, None)
    signal.signal(signal.SIGUSR1, before)


def raised(function):
    try:
        function()
    except Exception as error:
        return error
    raise AssertionError


def test_it_is_told_from_other_errors(arrives) -> None:
    assert raised_by_handler(raised(arrives))
    assert not raised_by_handler(raised(lambda: 1 / 0))
    assert not is_internal(raised(arrives))
    assert is_internal(raised(lambda: 1 / 0))


def test_a_record_does_not_swallow_it(arrives) -> None:
    record = Record()
    with pytest.raises(Alarm), record.harmless("capture"):
        arrives()
    assert not record.incomplete
    with record.harmless("capture"):
        raise ValueError
    assert record.incomplete


def test_nothing_smaller_takes_its_place(arrives) -> None:
    options = {"doing": "x", "region": "y", "instead": "z", "strict": False, "note": lambda decision: None}
    with pytest.raises(Alarm):
        recover(raised(arrives), **options)


def test_one_that_arrives_while_a_graph_is_compiled_comes_out_of_the_call(arrives, monkeypatch) -> None:
    compiled = lamina.compile(lambda x: x.sin() + 1, options={"capture": "own"})
    with monkeypatch.context() as patch:
        patch.setattr(import_module("lamina.compile"), "_compiled", arrives)
        with pytest.raises(Alarm):
            compiled(torch.ones(3))
    torch.testing.assert_close(compiled(torch.ones(3)), torch.ones(3).sin() + 1)
