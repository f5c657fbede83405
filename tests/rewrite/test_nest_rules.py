"""Rules on loop nests: what they may do, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import lamina
from lamina.errors import BadArgument, RuleFailed
from lamina.extend import nest_rule
from lamina.ir.loops import Compute, Nest, Store

X = torch.randn(4, 6)


def run(*rules):
    torch.compiler.reset()
    compiled = lamina.compile(lambda x: (x.sin() + 1).exp(), backend="interp", options={"rules": rules, "strict": True})
    return compiled(X), compiled.record


@nest_rule
def cosines(nest: Nest) -> Nest | None:
    """Another function, so that it shows."""
    body = tuple(replace(e, op="cos") if isinstance(e, Compute) and e.op == "sin" else e for e in nest.body)
    return replace(nest, body=body)


def test_a_rule_changes_the_nests_it_knows():
    out, record = run(cosines)
    torch.testing.assert_close(out, (X.cos() + 1).exp())
    (decision,) = [d for d in record.decisions("rewrite") if d.taken]
    assert decision.subject[0] == "cosines"
    assert dict(decision.facts)["rule at"].startswith("test_nest_rules.py:")


def test_a_rule_that_knows_none_changes_nothing():
    out, record = run(nest_rule(lambda nest: None, name="none"))
    torch.testing.assert_close(out, (X.sin() + 1).exp())
    assert not record.decisions("rewrite")


WRONG = {
    "returned a int": lambda nest: 3,
    "raised ZeroDivisionError": lambda nest: 1 // 0,
    "store to": lambda nest: replace(nest, body=tuple(e for e in nest.body if not isinstance(e, Store))),
    "ill formed": lambda nest: replace(nest, body=nest.body[1:]),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_rule_is_named(what):
    with pytest.raises(RuleFailed, match=f"rule 'wrong'.*{what}"):
        run(nest_rule(WRONG[what], name="wrong"))
    with pytest.raises(BadArgument):
        nest_rule(3)
