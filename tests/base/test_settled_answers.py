"""Questions about symbolic sizes after the guards are settled: refused to the thread that holds their program."""

from __future__ import annotations

import threading

import pytest
import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from lamina.base.symbolic.environment.torch_private import AskedTooLate, answers_settled
from lamina.base.symbolic.torch_private import is_positive, is_sure


def _size() -> tuple[ShapeEnv, torch.SymInt]:
    env = ShapeEnv()
    varying = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC])
    fake = FakeTensorMode(shape_env=env).from_tensor(
        torch.ones(6, 3), source=ConstantSource("x"), symbolic_context=varying
    )
    size: torch.SymInt = fake.shape[0]
    assert isinstance(size, torch.SymInt)
    return env, size


def test_nothing_is_refused_before_the_guards_are_settled() -> None:
    _, size = _size()
    with answers_settled([size]):
        assert is_sure(size > 4)


def test_a_question_that_no_guard_tells_is_refused() -> None:
    env, size = _size()
    assert size > 2
    env.freeze()
    with answers_settled([size]):
        assert is_sure(size > 1)
        assert not is_sure(size > 4)
        assert is_positive(size)
        with pytest.raises(AskedTooLate):
            bool(size > 4)
        with answers_settled([size]):
            pass
        assert not is_sure(size > 4), "the inner one has opened the outer one"
    assert is_sure(size > 4)


def test_other_threads_are_asked_as_ever_and_hold_their_own() -> None:
    env, size = _size()
    env.freeze()
    told: list[bool] = []
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with answers_settled([size]):
            inside.set()
            assert leave.wait(60)
            told.append(is_sure(size > 4))

    thread = threading.Thread(target=hold)
    with answers_settled([size]):
        thread.start()
        assert inside.wait(60)
    told.append(is_sure(size % 2 == 0))
    leave.set()
    thread.join()
    assert told == [True, False]
