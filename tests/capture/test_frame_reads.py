"""Functions that ask Python for their own variables find them."""

import inspect
import sys

import pytest
import torch

import lamina
from lamina.capture.modes.frame_reads import asks_for_own_frame


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def evaluates(x):
    y = x * 2  # noqa: F841  (what is evaluated reads it)
    return eval("y + 1")


def evaluates_between_two_uses(x):
    y = x * 2
    z = y + 1
    return eval("y + z"), z


def executes(x):
    y = x * 2
    exec("y.add_(1)")
    return y


def lists_variables(x):
    y = x * 2
    return y, sorted(vars()), dir()


def looks_at_its_frame(x):
    y = 3  # noqa: F841  (read from the frame)
    return x * sys._getframe().f_locals["y"], sys._getframe().f_code.co_name


def inspects_its_frame(x):
    y = 3  # noqa: F841  (read from the frame)
    return x * inspect.currentframe().f_locals["y"]


def within_another(x):
    return evaluates(x.sin()).cos()


OWN = [evaluates, evaluates_between_two_uses, executes, lists_variables, looks_at_its_frame, inspects_its_frame]


@pytest.mark.parametrize("f", [*OWN, within_another])
def test_what_they_find(f):
    compiled = lamina.compile(f)
    for _ in range(2):
        wanted, found = f(torch.ones(2)), compiled(torch.ones(2))
        assert str(found) == str(wanted)


@pytest.mark.parametrize("f", OWN)
def test_they_are_known(f):
    assert asks_for_own_frame(f.__code__)


def test_others_are_not_taken_for_them():
    def f(model, x):
        return model.eval()(x), vars(model), dir(model), locals()

    assert not asks_for_own_frame(f.__code__)
