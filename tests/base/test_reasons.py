"""Reasons of decisions carry registered codes and remedies."""

from __future__ import annotations

import copy
import pickle

import pytest

from lamina.base import reasons
from lamina.base.decision import Decision
from lamina.base.reasons import Code, Codes, Reason, registered


@pytest.fixture(autouse=True)
def sections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reasons, "_SECTIONS", {})


def test_a_reason_is_its_sentence_with_code_and_remedy() -> None:
    waits = Codes(51, "fusion").add(7, "{first} runs between", "longer", "move {first} before them")
    reason = waits(first="addmm")
    decision = Decision("fuse", ("a", "b"), False, reason)
    assert reason == "addmm runs between"
    assert (decision.code, decision.remedy) == ("LM5107", "move addmm before them")


def test_a_copied_or_pickled_reason_keeps_its_code() -> None:
    reason = Reason("why", "LM0001", "how")
    for made in (copy.deepcopy(reason), pickle.loads(pickle.dumps(reason))):
        assert (made, made.code, made.remedy) == ("why", "LM0001", "how")


@pytest.mark.parametrize(("count", "said"), [(0, "0 kernels of b"), (1, "1 kernel of b"), ("2", "2 kernels of b")])
def test_what_is_counted_agrees_with_its_number(count: object, said: str) -> None:
    assert Code("LM9999", "{count:kernel} of {b}", "")(count=count, b="b") == said


def test_a_missing_word_is_an_error() -> None:
    with pytest.raises(KeyError, match="first"):
        Codes(51, "fusion").add(7, "{first} runs between", "longer")(second="x")


def test_braces_around_other_things_than_names_stay() -> None:
    code = Codes(51, "fusion").add(7, 'options={"freeze": True} for {what}', "longer", '{"a": 1} {what}')
    reason = code(what="{this}")
    assert (reason, reason.remedy) == ('options={"freeze": True} for {this}', '{"a": 1} {this}')


def test_numbers_are_registered_once() -> None:
    codes = Codes(51, "fusion")
    codes.add(7, "a", "b")
    with pytest.raises(ValueError, match="7"):
        codes.add(7, "c", "d")
    with pytest.raises(ValueError, match="100"):
        codes.add(100, "c", "d")
    with pytest.raises(ValueError, match="51"):
        Codes(51, "other")
    with pytest.raises(ValueError, match="51"):
        Codes(51, "fusion")


def test_codes_and_sections_come_by_number() -> None:
    late, early = Codes(52, "later"), Codes(51, "earlier")
    late.add(9, "b", "b")
    late.add(2, "a", "a")
    assert registered() == (early, late)
    assert [code.number for code in late] == ["LM5202", "LM5209"]
