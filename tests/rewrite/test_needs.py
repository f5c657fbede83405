"""What keeps rules from being traced and patterns from being tried turns nothing away that could match."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.fx import Node

import lamina
from lamina.base.rule import Rule
from lamina.extend import rule, tensor
from lamina.rewrite import engine
from lamina.rewrite.left_side import patterns_of
from lamina.rewrite.match_search import Search
from lamina.rewrite.needs import needs_of
from lamina.rewrite.pattern import Call
from lamina.rewrite.rules import RULES
from tests.rewrite.engine import applied, compiled

X = torch.randn(4, 6)


def _operations(calls: list[Call]) -> set[str]:
    found: set[str] = set()
    while calls:
        call = calls.pop()
        found.add(str(getattr(getattr(call.op, "overloadpacket", None), "__name__", call.op)))
        flat = [a for arg in call.args for a in (arg if isinstance(arg, tuple) else (arg,))]
        calls.extend(a for a in flat if isinstance(a, Call))
    return found


@pytest.mark.parametrize("one", RULES, ids=lambda r: r.name)
def test_what_a_rule_is_said_to_need_is_in_each_of_its_patterns(one: Rule) -> None:
    for pattern in patterns_of(one, None, frozenset((torch.float32, torch.bfloat16))):
        assert needs_of(one) <= _operations(list(pattern.roots))


def test_needs_are_told_from_the_results_only() -> None:
    def before(x):
        torch.exp(x)  # of no use
        return torch.tanh(x) * torch.sigmoid(x)

    assert needs_of(rule(before, lambda x: x)) == {"tanh", "sigmoid"}


@pytest.mark.parametrize(
    "before",
    [
        lambda x: torch.exp(x) if x.shape[-1] > 3 else torch.tanh(x),
        lambda x: torch.exp(x) if x.dtype == torch.float32 else torch.tanh(x),
        lambda x: torch.exp(x) if bool(x.sum() > 0) else torch.tanh(x),
        lambda x: torch.exp_(x),
    ],
    ids=["size", "dtype", "value", "write"],
)
def test_nothing_is_known_of_a_function_that_asks_for_more(before) -> None:
    assert needs_of(rule(before, lambda x: x)) == frozenset()


def test_rules_that_a_graph_has_no_operation_for_are_not_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    traced: list[str] = []

    def spy(one: Rule, *rest):
        traced.append(one.name)
        return patterns_of(one, *rest)

    monkeypatch.setattr(engine, "patterns_of", spy)
    absent = rule(lambda x: torch.erfc(x) * 2, lambda x: 2 * torch.erfc(x), name="absent", at=("captured",))
    there = rule(lambda x: torch.sin(x) * 2, lambda x: torch.sin(x) + torch.sin(x), name="there")
    record = compiled(lambda x: torch.sin(x) * 2, [X], [absent, there])
    assert applied(record, "there") == 1
    assert "there" in traced
    assert "absent" not in traced


def test_a_rule_comes_in_when_another_makes_what_it_needs() -> None:
    last = rule(lambda x: torch.sigmoid(x), lambda x: 1 / (1 + torch.exp(-x)), name="last")
    first = rule(lambda x: torch.tanh(x), lambda x: 2 * torch.sigmoid(2 * x) - 1, name="first")
    record = compiled(torch.tanh, [X], [last, first], without_rules=[r.name for r in RULES])
    assert applied(record, "first") == applied(record, "last") == 1


def test_an_expected_rule_is_explained_though_the_graph_lacks_an_operation() -> None:
    mine = rule(lambda x: torch.sigmoid(x) * torch.tanh(x), lambda x: torch.tanh(x) * torch.sigmoid(x), name="mine")
    with pytest.raises(lamina.errors.UnexpectedMatches, match=r"the nearest miss is \w+ .*after 2 nodes that fit"):
        compiled(lambda x: torch.sigmoid(x) * torch.cos(x), [X], [mine], expect_matches={"mine": 1})


def test_operands_far_from_those_of_the_pattern_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    solutions = Search.solutions

    def spy(self: Search, node: Node):
        tried.append(self.pattern.rule.name)
        return solutions(self, node)

    monkeypatch.setattr(Search, "solutions", spy)
    silu = rule(lambda x: x * torch.sigmoid(x), lambda x: F.silu(x), name="silu of mine")
    record = compiled(lambda x: (x * x.cos()) * (x.sin() * 3) + x * torch.sigmoid(x), [X], [silu])
    assert applied(record, "silu of mine") == 1
    assert tried.count("silu of mine") == 1


@pytest.mark.parametrize(
    "spelling",
    [
        lambda x, w: w * (x - x.mean(-1, True)) * torch.rsqrt((x - x.mean(-1, True)).pow(2).mean(-1, True)),
        lambda x, w: (x - x.mean(-1, True)).clone() / ((x - x.mean(-1, True)) ** 2).mean(-1, True).sqrt() * w * 1.0,
    ],
)
def test_values_that_are_computed_twice_are_found_through_either(spelling) -> None:
    def before(x=tensor(..., "d"), w=tensor("d")):
        near = x - x.mean(-1, keepdim=True)
        return near / torch.sqrt(near.pow(2).mean(-1, keepdim=True)) * w

    mine = rule(before, lambda x, w: F.layer_norm(x, w.shape, w, None, 0.0), name="mine")
    assert applied(compiled(spelling, [X, torch.rand(6)], [mine], without_rules=[r.name for r in RULES]), "mine") == 1


def test_sums_of_very_many_operands_are_compared_too() -> None:
    def long(x):
        total = x.sin() + x.erf()
        for _ in range(100):
            total = total + x.cos()
        return total

    mine = rule(lambda x: x.sin() + x.erf(), lambda x: x.erf() - (-x).sin(), name="mine")
    assert applied(compiled(long, [X], [mine]), "mine") == 1
