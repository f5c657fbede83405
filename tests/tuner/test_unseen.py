"""Outputs of all kinds, and what calls leave behind in Python: a candidate that is wrong in these alone is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import lamina
from lamina.errors import BadArgument
from lamina.tuner.programs import Built, Subject, timed_call
from lamina.tuner.samples import held_out, samples_of
from lamina.tuner.values import Candidate
from lamina.tuner.verification import Allowed, EagerRaised, Reference
from tests.tuner import unseen
from tests.tuner.unseen import LEFT, OUTPUTS, REFUSED, Gives, Leaves


def reasons(model: Any, candidate: Callable[[Any], Any], *inputs: Any) -> list[str]:
    """Why a candidate is refused, in three calls one after the other."""
    subject = Subject(model, samples_of(inputs))
    reference = Reference(subject, held_out(subject.samples))
    built = Built(candidate(model))
    found = []
    for _ in range(3):
        with reference.kept():
            built.call(*inputs)
        found.append(reference.verify(built, Allowed()).reason)
    return found


def batch() -> torch.Tensor:
    return torch.randn(4, 16, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_are_compared_whatever_holds_them(name: str) -> None:
    model = Gives(name).eval()
    assert reasons(model, lambda model: lambda x: model(x), batch()) == ["", "", ""]
    wrong = reasons(model, unseen.other_tensor, batch())
    assert all(reason.startswith("output") for reason in wrong), wrong


@pytest.mark.parametrize("name", REFUSED)
def test_outputs_that_cannot_be_compared_are_said(name: str) -> None:
    with pytest.raises(EagerRaised, match="nobody can tell whether a candidate gives what it gives"):
        reasons(Gives(name).eval(), lambda model: model, batch())


def test_a_model_that_gives_an_open_file_is_not_tuned() -> None:
    candidates = [Candidate("same", "import", {"target": "tests.tuner.liars:for_one_size"})]
    with pytest.raises(BadArgument, match=r"holds an object of the class .*TextIOWrapper|BufferedRandom"):
        lamina.tune(Gives("file").eval(), batch(), candidates=candidates, journal=False, seconds=0.1)


@pytest.mark.parametrize("where", LEFT)
def test_what_a_call_leaves_behind_is_compared(where: str) -> None:
    def tried(candidate: Callable[[Any], Any]) -> list[str]:
        model = Leaves(where).eval()
        before = dict(vars(model))
        found = reasons(model, candidate, batch(), [])
        assert dict(vars(model)) == before
        assert not model.seen
        assert not model.table
        return found

    assert tried(unseen.leaves_the_same) == ["", "", ""]
    assert all(tried(unseen.leaves_nothing))
    assert all(tried(unseen.leaves_another))


def test_work_that_is_left_to_an_iterator_is_timed() -> None:
    done = []

    def lazy(x: torch.Tensor) -> Any:
        return {"rows": (done.append(row) for row in x)}

    call = timed_call(lazy, Subject(lazy, samples_of(batch())), lazy)
    for number in range(1, 4):
        call()
        assert len(done) == 4 * number


def test_work_in_training_that_an_iterator_does_is_said() -> None:
    subject = Subject(Gives("iterator in a tuple"), samples_of(batch().requires_grad_()), lambda y: y[0].sum())
    with pytest.raises(EagerRaised, match="an iterator, which the loss takes"):
        Reference(subject, held_out(subject.samples))
