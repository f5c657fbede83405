"""A rule of the user's that is not applied says why: what differed, what else needs a value, or its condition."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import lamina
from lamina.explain.explanation import Explanation
from lamina.extend import rule


def waved(x: Tensor) -> Tensor:
    return x * torch.cos(x)


def otherwise(x: Tensor) -> Tensor:
    return x * torch.sin(x + torch.pi / 2)


def needed_elsewhere(x: Tensor) -> tuple[Tensor, Tensor]:
    gate = torch.cos(x)
    return x * gate, gate


CASES: dict[str, tuple[Callable[[Tensor], object], bool, str, str]] = {
    "another operation": (lambda x: x * torch.tanh(x), True, "LM3050", "it is aten.tanh.default, not aten.cos.default"),
    "needed elsewhere": (needed_elsewhere, True, "LM3051", "needs it as well"),
    "condition": (waved, False, "LM3052", "its condition where(match) says no"),
    "nothing near": (lambda x: x + 1, True, "LM3053", "nothing in the inference graph comes near"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_rule_that_is_not_applied_says_why(case: tuple[Callable[[Tensor], object], bool, str, str]) -> None:
    torch.compiler.reset()
    program, holds, code, why = case
    own = rule(waved, otherwise, name="own rule", where=lambda match: holds)
    compiled = lamina.compile(program, options={"rules": (own,), "compare_eager": "off"})
    compiled(torch.randn(64, 64))
    found = [d for d in compiled.record.decisions("rewrite") if d.subject[0] == "own rule"]
    assert [(d.taken, d.code) for d in found] == [(False, code)]
    assert why in found[0].reason
    assert "the rule own rule is not applied" in found[0].reason
    explained = Explanation(compiled.record)
    told = explained.text().partition("Rules of yours that were not applied")[2]
    words = " ".join(told.split())
    assert words.startswith("the rule own rule is not applied")
    assert code in words
    assert found[0].remedy.split(",")[0] in words
    assert [one["code"] for one in explained.to_dict()["rules_not_applied"]] == [code]


def test_no_inference_graph_is_told_of_with_gradients() -> None:
    torch.compiler.reset()
    own = rule(waved, otherwise, name="own rule")
    compiled = lamina.compile(lambda x: x + 1, options={"rules": (own,), "compare_eager": "off"})
    compiled(torch.randn(64, 64, requires_grad=True))
    found = [d for d in compiled.record.decisions("rewrite") if d.subject[0] == "own rule"]
    assert ["nothing in the captured graph comes near" in d.reason for d in found] == [True]


def test_a_rule_that_is_applied_says_no_such_thing() -> None:
    torch.compiler.reset()
    own = rule(waved, otherwise, name="own rule")
    compiled = lamina.compile(lambda x: waved(x) + 1, options={"rules": (own,), "compare_eager": "off"})
    compiled(torch.randn(64, 64))
    found = [d for d in compiled.record.decisions("rewrite") if d.subject[0] == "own rule"]
    assert [d.taken for d in found] == [True]
    assert not Explanation(compiled.record).to_dict()["rules_not_applied"]
