"""check_rule finds the input on which the sides of a rule differ, and says so."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from lamina.errors import BadArgument, RuleFailed
from lamina.extend import rule, scalar, tensor
from lamina.testing import check_rule


def test_sides_that_agree():
    found = check_rule(rule(lambda x: x * torch.sigmoid(x), lambda x: F.silu(x)))
    assert found.ok
    assert {"float32", "bfloat16"} == {case.inputs.partition("=")[2].partition("[")[0] for case in found.cases}
    assert len({case.inputs for case in found.cases}) == len(found.cases) >= 8


WRONG = {
    "another value": (lambda x: x * 2, lambda x: x * 2.001),
    "another gradient": (lambda x: x * torch.sigmoid(x), lambda x: x * torch.sigmoid(x).detach()),
    "another dtype": (lambda x: x * 2, lambda x: (x * 2).float()),
    "another shape": (lambda x: x.sum(-1), lambda x: x.sum(-1, keepdim=True)),
    "another precision": (lambda x: x.exp().sum(-1), lambda x: x.exp().half().to(x.dtype).sum(-1)),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_sides_that_differ(wrong):
    one = rule(*WRONG[wrong], name=wrong)
    with pytest.raises(RuleFailed, match=rf"rule '{wrong}' differ:\n.*x=\w+\[") as caught:
        check_rule(one)
    assert caught.value.where.startswith("test_check_rule.py:")


def test_only_gradients_that_are_asked_for():
    one = rule(*WRONG["another gradient"], inference_only=True)
    assert check_rule(one).ok
    assert check_rule(rule(*WRONG["another gradient"]), grads=False).ok


def test_a_difference_at_some_sizes_only():
    uneven = rule(
        lambda x=tensor(..., "d"): x.mean(-1),
        lambda x: x[..., : x.shape[-1] // 2 * 2].sum(-1) / x.shape[-1],
        name="odd",
    )
    with pytest.raises(RuleFailed) as caught:
        check_rule(uneven, dtypes=(torch.float32,))
    assert "x=float32[3, 5]" in str(caught.value)
    assert "x=float32[4, 6, 8]" not in str(caught.value)


def test_the_first_inputs_are_described_and_the_others_counted():
    with pytest.raises(RuleFailed) as caught:
        check_rule(rule(lambda x, y: x * y, lambda x, y: x * y.detach(), name="half"), dtypes=(torch.float32,))
    text = str(caught.value)
    assert "after lacks ['gradient of argument 1']" in text
    assert text.count("float32[") == 2
    assert "and on 4 more of 5 kinds of input" in text


def test_what_cannot_be_a_pattern_is_said():
    with pytest.raises(BadArgument, match="before writes to x"):
        check_rule(rule(lambda x: x.add_(1), lambda x: x + 1))
    with pytest.raises(BadArgument, match="before returns x, which it did not compute"):
        check_rule(rule(lambda x: x, lambda x: x * 1))
    fine = rule(lambda x: x * 2, lambda x: x + x)
    for wrong in ({"dtypes": "float32"}, {"dtypes": torch.float32}, {"device": "cdua"}, {"device": "cuda:99"}):
        with pytest.raises(BadArgument, match=f"the {next(iter(wrong))} of check_rule"):
            check_rule(fine, **wrong)


def test_what_a_rule_does_not_apply_to_is_skipped():
    wide = rule(
        lambda x: x * 2, lambda x: x + x if x.shape[-1] > 4 else x, where=lambda match: match["x"].shape[-1] > 4
    )
    found = check_rule(wide)
    assert found.ok
    assert found.skipped
    assert all("where(match) is False" in case.complaint for case in found.skipped)
    with pytest.raises(RuleFailed, match="could be tried on no input"):
        check_rule(rule(lambda x: x * 2, lambda x: x + x, where=lambda match: False))


def test_wildcards_of_all_kinds_and_examples():
    def before(x=tensor(..., "n", "d"), w=tensor("d"), keep=tensor(..., "n", "d", dtype=torch.bool), a=scalar()):
        return (x * w * a).masked_fill(keep, 0.0)

    assert check_rule(rule(before, lambda x, w, keep, a: torch.where(keep, 0.0, a * x * w))).ok
    rows = rule(lambda t=tensor("v", "d"), i=tensor("n", dtype=torch.int64): t[i], lambda t, i: F.embedding(i, t))
    assert check_rule(rows, examples=[{"t": torch.randn(9, 3), "i": torch.tensor([8, 0, 8])}]).ok
    with pytest.raises(BadArgument):
        check_rule(before)
