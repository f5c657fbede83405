"""The rule engine: what a pattern matches, what it must leave, and what is said about both."""

from __future__ import annotations

import math
import re
import sys
import warnings

import pytest
import torch
import torch.nn.functional as F

import lamina
from lamina.base.identity import identity_of
from lamina.errors import BadArgument, RuleFailed, UnexpectedMatches, UnknownOption
from lamina.extend import Match, rule, scalar, tensor
from tests.rewrite.engine import applied, compiled

X = torch.randn(4, 6)
W = torch.randn(6)

silu = rule(lambda x: x * torch.sigmoid(x), lambda x: F.silu(x), name="silu of mine")


def _gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


gelu = rule(_gelu, lambda x: F.gelu(x, approximate="tanh"), name="gelu of mine")
attention = rule(
    lambda q, k, v: torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), -1) @ v,
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
    name="attention of mine",
)


def _rms(x=tensor(..., "d"), w=tensor("d"), eps=scalar()):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w


rms = rule(_rms, lambda x, w, eps: F.rms_norm(x, (x.shape[-1],), w, eps), name="rms of mine")


def ours(function, inputs, rules, **options):
    """The record, with none of Lamina's own rules in the way."""
    names = [one.name for one in lamina.rewrite.rules.RULES]
    return compiled(function, inputs, rules, without_rules=names, **options)


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize(
    "spelling",
    [
        lambda x: x * torch.sigmoid(x),
        lambda x: torch.sigmoid(x).mul(x),
        lambda x: torch.multiply(x, x.sigmoid()),
        lambda x: x.sigmoid() * x.contiguous() * 1.0,
        lambda x: (x + 1) * torch.sigmoid(x + 1),
    ],
)
def test_operands_come_in_any_order_and_spelling(spelling):
    record = ours(spelling, [X.clone().requires_grad_()], [silu])
    assert applied(record, silu.name) == 1


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize(
    "spelling",
    [
        _gelu,
        lambda x: x * 0.5 * (1.0 + torch.tanh((x + 0.044715 * torch.pow(x, 3.0)) * 0.7978845608028654)),
        lambda x: x * (0.5 * (torch.tanh(0.7978845608 * (x + x * x * x * 0.044715)) + 1)),
        lambda x: (1 + (math.sqrt(2 / math.pi) * (0.044715 * x.pow(3) + x)).tanh()) * x / 2,
    ],
)
def test_products_and_sums_match_however_they_are_nested(spelling):
    record = ours(spelling, [X.clone().requires_grad_()], [gelu])
    assert applied(record, gelu.name) == 1


def test_another_constant_is_another_function():
    record = ours(lambda x: 0.5 * x * (1 + torch.tanh(0.7 * (x + 0.044715 * x**3))), [X], [gelu])
    assert applied(record, gelu.name) == 0


@pytest.mark.parametrize("dynamic", [False, True])
def test_scalars_take_the_number_that_is_there(dynamic):
    def f(x, w):
        return w * (x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + 1e-6))

    record = ours(f, [X, W], [rms], dynamic=dynamic)
    assert applied(record, rms.name) == 1


def test_a_size_in_the_pattern_is_the_size_in_the_graph():
    q, k, v = (torch.randn(2, 3, 5, 16, requires_grad=True) for _ in range(3))

    def f(q, k, v, scale):
        return F.softmax((q @ k.mT) * scale, dim=3).matmul(v).transpose(1, 2)

    right = ours(lambda q, k, v: f(q, k, v, 16**-0.5), [q, k, v], [attention])
    assert applied(right, attention.name) == 1
    wrong = ours(lambda q, k, v: f(q, k, v, 0.3), [q, k, v], [attention])
    assert applied(wrong, attention.name) == 0


def test_a_literal_that_looks_like_a_size_stays_a_literal():
    sixth = rule(lambda x: x * 6 + x.shape[-1], lambda x: (x + x.shape[-1] / 6) * 6, name="six")
    assert applied(ours(lambda x: x * 6 + 6, [X], [sixth]), "six") == 1
    assert applied(ours(lambda x: x * 5 + 6, [X], [sixth]), "six") == 0
    assert applied(ours(lambda x: x * 6 + 5, [X], [sixth]), "six") == 0


def test_half_of_a_dimension():
    def halves(x=tensor(..., "d")):
        n = x.shape[-1] // 2
        return torch.cat((-x[..., n:], x[..., :n]), -1)

    turned = rule(halves, lambda x: torch.cat(x.chunk(2, -1)[::-1], -1) * _signs(x), name="turned")
    assert applied(ours(lambda x: torch.cat([-x[:, 3:], x[:, :3]], dim=1), [X], [turned]), "turned") == 1
    assert applied(ours(lambda x: torch.cat([-x[:, 2:], x[:, :2]], dim=1), [X], [turned]), "turned") == 0


def _signs(x):
    n = x.shape[-1] // 2
    return torch.cat((-torch.ones_like(x[..., :n]), torch.ones_like(x[..., n:])), -1)


def test_casts_to_float32_are_part_of_the_pattern_in_half_precision_only():
    def norm(x, w):
        wide = x.to(torch.float32)
        return w * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)

    def before(x=tensor(..., "d"), w=tensor("d"), eps=scalar()):
        return w * (x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)).type_as(x)

    wide = rule(before, lambda x, w, eps: F.rms_norm(x.float(), w.shape, None, eps).to(x.dtype) * w, name="wide norm")
    for dtype in (torch.float32, torch.bfloat16):
        record = ours(norm, [X.to(dtype), W.to(dtype)], [wide], tolerance=0.02)
        assert applied(record, "wide norm") == 1
    narrow = ours(
        lambda x, w: w * (x * torch.rsqrt(x.pow(2).mean(-1, True) + 1e-6)), [X.bfloat16(), W.bfloat16()], [wide]
    )
    assert applied(narrow, "wide norm") == 0


def test_several_results_are_replaced_together():
    merged = rule(
        lambda x=tensor(..., "k"), a=tensor("n", "k"), b=tensor("m", "k"): (F.linear(x, a), F.linear(x, b)),
        lambda x, a, b: F.linear(x, torch.cat((a, b))).split((a.shape[0], b.shape[0]), -1),
        name="merged",
    )
    inputs = [X.clone().requires_grad_(), torch.randn(3, 6), torch.randn(5, 6)]
    record = ours(lambda x, a, b: F.linear(x, a).sin().sum() + F.linear(x, b).cos(), inputs, [merged], tolerance=1e-4)
    assert applied(record, "merged") == 1


def test_a_value_that_is_needed_elsewhere_is_not_matched_away():
    def f(x):
        gate = torch.sigmoid(x)
        return x * gate, gate + 1

    assert applied(ours(f, [X], [silu]), silu.name) == 0
    both = rule(lambda x: (x * torch.sigmoid(x), torch.sigmoid(x)), lambda x: (F.silu(x), x.sigmoid()), name="both")
    assert applied(ours(lambda x: f(x), [X], [both]), "both") == 1


def test_equal_calls_of_equal_operands_are_one_value():
    def f(x):
        return (x * torch.sigmoid(x)).tanh() * torch.sigmoid((x * torch.sigmoid(x)).tanh())

    assert applied(ours(f, [X], [silu]), silu.name) == 3


def test_conditions_see_shapes_dtypes_and_users():
    seen: list[Match] = []

    def wide_enough(match: Match) -> bool:
        seen.append(match)
        return match["x"].shape[-1] > 4 and match["x"].dtype == torch.float32 and match.users("x") == 0

    chosen = rule(silu.before, silu.after, where=wide_enough, name="chosen")
    assert applied(ours(lambda x: x * x.sigmoid(), [X], [chosen]), "chosen") == 1
    assert applied(ours(lambda x: x * x.sigmoid(), [X[:, :3].clone()], [chosen]), "chosen") == 0
    assert applied(ours(lambda x: x * x.sigmoid() + x, [X], [chosen]), "chosen") == 0
    assert seen[0].training is False
    assert len(seen[0].matched) == 2


def test_memory_that_is_written_to_is_left_alone():
    def f(x):
        copy = x.clone()
        gate = torch.sigmoid(copy)
        copy.add_(1)
        return copy * gate

    assert applied(ours(f, [X], [silu]), silu.name) == 0


@pytest.mark.parametrize("front", ["dynamo", "own"])
def test_a_match_does_not_reach_across_regions_without_gradients(front):
    def f(x):
        with torch.no_grad():
            gate = torch.sigmoid(x)
        return x * gate

    assert applied(ours(f, [X.clone().requires_grad_()], [silu], capture=front), silu.name) == 0


@pytest.mark.parametrize("front", ["dynamo", "own"])
@pytest.mark.parametrize("inside", [torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize("around", [torch.no_grad, torch.enable_grad])
def test_a_graph_may_begin_where_gradients_are_off(around, inside, front):
    """What it begins in tells nothing of the calls behind a switch: rules of ours would join both to one call."""

    def f(x):
        with inside():
            gate = torch.sigmoid(x)
        with torch.enable_grad():
            return x * gate

    compiled = lamina.compile(f, options={"capture": front})
    for _ in range(2):
        x = X.clone().requires_grad_()
        results = []
        for function in (compiled, f):
            with around():
                out = function(x)
            results.append((out, *torch.autograd.grad(out.sum(), x)))
        torch.testing.assert_close(*results)


def test_what_attention_lays_out_as_its_operands_has_the_strides_of_eager():
    turned = rule(
        lambda x: torch.sinh(torch.asinh(x)),
        lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
        name="turned",
        at=("captured",),
    )

    def attention(x):
        y = torch.sinh(torch.asinh(x))
        return F.scaled_dot_product_attention(y, y, y)

    record = compiled(attention, [torch.randn(2, 3, 6, 4)], [turned])
    assert applied(record, "turned") == 1


def test_a_returned_tensor_does_not_become_an_alias():
    nothing = rule(lambda x: x * 1, lambda x: x, name="nothing")
    assert applied(ours(lambda x: (x * 1).sin(), [X], [nothing]), "nothing") == 1
    for f in (lambda x: x * 1, lambda x: (x * 1).view(-1), lambda x: (x * 1, (x * 1).t())):
        record = ours(f, [X], [nothing])
        assert applied(record, "nothing") == 0
        assert any("share memory" in d.reason for d in record.decisions("rewrite"))


WRONG = {
    "sum": (
        lambda x: x.sin().sum(),
        "its right side gives float32[] on cpu where its left side gives float32[4, 6] on cpu",
    ),
    "wide": (
        lambda x: x.sin().double(),
        "its right side gives float64[4, 6] on cpu where its left side gives float32[4, 6] on cpu",
    ),
    "none": (lambda x: None, "its right side gives something that is no tensor"),
    "two": (lambda x: (x, x.sin()), "its right side gives 2 results, its left side 1"),
    "failing": (lambda x: x + 1 // 0, "its right side failed: ZeroDivisionError: integer division or modulo by zero"),
    "writing": (lambda x: x.sin_(), "its right side cannot be traced: aten.sin_.default writes to its operands"),
}


@pytest.mark.parametrize("place", ["captured", "inference"])
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_right_side_is_told_with_its_place(name, place):
    after, why = WRONG[name]

    def mine():
        return rule(lambda x: x.sin(), after, at=(place,), name=name)

    one = mine()
    with pytest.warns(
        lamina.LaminaWarning, match=re.escape(f"{name!r} matches, but is not applied: {why}\n  at test_en")
    ):
        record = ours(lambda x: x.sin(), [X], [one], strict=False)
    assert {d.reason for d in record.decisions("rewrite") if d.subject[0] == name} == {why}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours(lambda x: x.sin(), [X], [one], strict=False)  # once is enough
    with pytest.raises(RuleFailed, match=re.escape(why)) as caught:
        ours(lambda x: x.sin(), [X], [mine()])
    assert caught.value.where.startswith(f"test_engine.py:{after.__code__.co_firstlineno}, matched at test_engine.py:")
    with pytest.warns(lamina.LaminaWarning), pytest.raises(UnexpectedMatches, match=re.escape(why)) as caught:
        ours(lambda x: x.sin(), [X], [mine()], strict=False, expect_matches={name: 1})
    assert caught.value.where == f"test_engine.py:{after.__code__.co_firstlineno}"
    assert "mend its right side" in caught.value.remedy


def test_a_failing_right_side_names_the_line_that_failed():
    def after(x):
        y = x.cos()
        return y + 1 // 0

    with pytest.raises(RuleFailed, match=rf"at test_engine.py:{after.__code__.co_firstlineno + 2}, matched at"):
        ours(lambda x: x.sin(), [X], [rule(lambda x: x.sin(), after, name="late")])


@pytest.mark.by_dynamo("sizes that vary are 2 or more with Dynamo, and may be 1 with the own front end")
def test_a_right_side_whose_symbolic_sizes_may_fit_is_no_mistake():
    half = rule(lambda x: x.sin(), lambda x: x.sin().new_empty((x.shape[0] + 4) // 2, x.shape[1]), name="half")
    short = rule(lambda x: x.sin(), lambda x: x.sin()[:, :1], name="short")
    with warnings.catch_warnings():
        warnings.simplefilter("error", lamina.LaminaWarning)
        record = ours(lambda x: x.sin(), [X], [half], dynamic=True)
    assert any("its right side" in d.reason for d in record.decisions("rewrite"))
    with pytest.raises(RuleFailed, match=r"'short' matches, but"):
        ours(lambda x: x.sin(), [X], [short], dynamic=True)


def test_rules_of_ours_that_decline_do_not_warn(monkeypatch):
    broken = rule(lambda x: x.sin(), lambda x: x.sum(), name="broken")
    monkeypatch.setattr("lamina.rewrite.rewriting.RULES", (broken,))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        record = compiled(lambda x: x.sin(), [X])
    assert any(d.subject[0] == "broken" and "its right side gives" in d.reason for d in record.decisions("rewrite"))


def test_a_match_that_could_not_be_replaced_is_the_reason_of_an_expectation():
    nothing = rule(lambda x: x * 1, lambda x: x, name="nothing")
    with pytest.raises(UnexpectedMatches, match=r"applied 0 times in lambda0, not 1; a match at .* share memory"):
        ours(lambda x: x * 1, [X], [nothing], expect_matches={"nothing": 1})


def test_rules_for_inference_leave_training_alone():
    only = rule(lambda x: x.sin(), lambda x: torch.cos(x - math.pi / 2), inference_only=True, name="only")
    assert applied(ours(lambda x: x.sin(), [X], [only]), "only") == 1
    assert applied(ours(lambda x: x.sin(), [X.clone().requires_grad_()], [only]), "only") == 0


@pytest.mark.parametrize(("place", "trained"), [("inference", False), ("joint", True)])
def test_rules_run_on_decomposed_graphs_too(place, trained):
    x = X.clone().requires_grad_(trained)
    once = rule(lambda x: x.sin(), lambda x: torch.cos(x - math.pi / 2), at=(place,), name="once")
    assert applied(ours(lambda x: x.sin() + x, [x], [once]), "once") == 1
    other = "joint" if place == "inference" else "inference"
    elsewhere = rule(lambda x: x.sin(), lambda x: torch.cos(x - math.pi / 2), at=(other,), name="elsewhere")
    assert applied(ours(lambda x: x.sin() + x, [x], [elsewhere]), "elsewhere") == 0


def test_new_nodes_carry_the_lines_they_came_from():
    record = ours(lambda x: (x * torch.sigmoid(x)).sum(), [X.clone().requires_grad_()], [silu])
    rewrites = next(s.value for s in record.stages if s.name == "rewrite" and getattr(s.value, "done", None))
    (done,) = rewrites.done
    assert done.rule == silu.name
    assert done.rule_place.startswith("test_engine.py:")
    assert any("sigmoid" in line for line in done.before)
    assert any("silu" in line for line in done.after)
    assert all(s.startswith("test_engine.py:") for s in done.sources)
    assert done.rule in rewrites.text()


def test_fuel_stops_the_engine():
    again = rule(lambda x: x.sin(), lambda x: torch.cos(x - math.pi / 2), name="again")
    assert applied(ours(lambda x: x.sin().sin().sin(), [X], [again], tolerance=1e-4), "again") == 3
    assert applied(ours(lambda x: x.sin().sin().sin(), [X], [again], fuel=2, tolerance=1e-4), "again") == 2
    assert applied(ours(lambda x: x.sin().sin().sin(), [X], [again], fuel=0), "again") == 0


def test_rules_that_undo_each_other_are_named():
    there = rule(lambda x: x.sin(), lambda x: torch.cos(x - 0.5), name="there")
    back = rule(lambda x: torch.cos(x - 0.5), lambda x: x.sin(), name="back")
    with pytest.raises(RuleFailed, match=r"circles: back, there have rewritten"):
        ours(lambda x: x.sin(), [X], [there, back])


def test_an_expected_match_that_fails_names_the_nearest_miss():
    ours(lambda x: x * x.sigmoid(), [X], [silu], expect_matches={silu.name: 1})
    nearest = r"matched 0 times .*nearest miss is tanh \(test_engine.py:\d+ tanh\).*not aten.sig"
    with pytest.raises(UnexpectedMatches, match=nearest):
        ours(lambda x: x * x.tanh(), [X], [silu], expect_matches={silu.name: 1})
    with pytest.raises(UnexpectedMatches, match=r"sigmoid.* needs it as well"):
        ours(lambda x: (x * (y := x.sigmoid()), y + 1), [X], [silu], expect_matches={silu.name: 1})
    refusing = rule(silu.before, silu.after, where=lambda match: False, name="refusing")
    with pytest.raises(UnexpectedMatches, match=r"where\(match\) says no\n  at test_engine.py:\d+"):
        ours(lambda x: x * x.sigmoid(), [X], [refusing], expect_matches={"refusing": 1})
    with pytest.raises(UnexpectedMatches, match="no rule is called 'silu of mime'\n  do: did you mean 'silu of mine'"):
        ours(lambda x: x, [X], [silu], expect_matches={"silu of mime": 1})


def test_only_rules_that_are_there_can_be_left_out():
    with pytest.raises(UnknownOption, match=r"names 'silu of sigmiod', which .*\n  do: did you mean 'silu of sigmoid'"):
        compiled(lambda x: x.sin(), [X], [], without_rules=("silu of sigmiod",))


def test_two_rules_of_one_name_are_refused_with_both_places():
    one = rule(lambda x: x.sin(), lambda x: x.cos(), name="mine")
    two = rule(lambda x: x.tan(), lambda x: x.cos(), name="mine")
    assert applied(ours(lambda x: x * x.sigmoid(), [X], [silu, silu]), silu.name) == 1  # the same one twice is one
    with pytest.raises(
        BadArgument, match=r"two rules are called 'mine'\n  at test_engine.py:(\d+) and test_"
    ) as caught:
        lamina.compile(torch.sin, options={"rules": [one, two]})
    assert caught.value.where == f"{one.place} and {two.place}"
    assert one.place != two.place
    brought = lamina.extend.Backend("brought", lambda gm, inputs: gm.forward, rules=(one,))
    with pytest.raises(BadArgument, match="two rules are called 'mine'"):
        lamina.compile(torch.sin, backend=brought, options={"rules": [two]})(X)


def test_a_rule_that_is_called_like_one_of_ours_is_refused():
    same = rule(lambda x: x.tan(), lambda x: x.cos(), name="silu of sigmoid")
    with pytest.raises(BadArgument, match=r"called 'silu of sigmoid', as one of Lamina's is\n  at test_engine.py:\d+"):
        ours(lambda x: x.sin(), [X], [same])


FACTOR = 2.0


def scaled_by_a_global(x):
    return x * FACTOR


def test_globals_that_a_function_names_are_part_of_what_it_is(monkeypatch):
    def caller(x):
        return scaled_by_a_global(x)

    before = identity_of(scaled_by_a_global), identity_of(caller)
    assert before == (identity_of(scaled_by_a_global), identity_of(caller))
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 3.0)
    assert identity_of(scaled_by_a_global) != before[0]
    assert identity_of(caller) != before[1]


def test_variables_that_look_like_an_options_are_told(monkeypatch):
    monkeypatch.setenv("LAMINA_NUMERIC", "eager")
    with pytest.warns(UserWarning, match="LAMINA_NUMERIC is no option's; did you mean LAMINA_NUMERICS"):
        lamina.compile(torch.sin)
    monkeypatch.delenv("LAMINA_NUMERIC")
    monkeypatch.setenv("LAMINA_RULES", "mine")
    with pytest.warns(UserWarning, match="LAMINA_RULES is not read; give 'rules' to lamina.compile"):
        lamina.compile(torch.sin)


def test_a_rule_that_makes_no_sense_is_refused_where_it_is_made_or_traced():
    with pytest.raises(BadArgument, match=r"after takes y, which before does not\n  at test_engine.py"):
        rule(lambda x: x, lambda y: y)
    wrong = {"at": [("nowhere",), None, "captured"], "where": ["d > 8"], "name": [3], "tolerance": [-1, "small", 2]}
    for option, values in wrong.items():
        for value in values:
            with pytest.raises(BadArgument, match=rf".*{option if option != 'at' else 'a rule runs at'}.*\n  at test_"):
                rule(lambda x: x.sin(), lambda x: x, **{option: value})
    with pytest.raises(BadArgument, match=r"after is tanh, which does not say .*\n  at .*\n  do: wrap it"):
        rule(lambda x: x.sin(), torch.tanh)
    unused = rule(lambda x, y: x.sin(), lambda x, y: x.cos(), name="unused")
    with pytest.raises(BadArgument, match="does not use y"):
        ours(lambda x: x.sin(), [X], [unused])
    broken = rule(lambda x, w=tensor("d"): x * w, lambda x, w: x, name="broken")
    with pytest.raises(BadArgument, match="failed on example tensors"):
        ours(lambda x: x.sin(), [X], [broken])
    writing = rule(lambda x: x.add_(1), lambda x: x, name="writing")
    with pytest.raises(BadArgument, match="writes to its operands"):
        ours(lambda x: x.sin(), [X], [writing])


def test_what_code_a_rule_is_made_of_is_part_of_the_key():
    options = lamina.Options(rules=(silu,))
    assert options.rules == lamina.Options.of(None, {"rules": [silu]}).rules
    assert hash(options) == hash(lamina.Options(rules=(silu,)))
    assert options.key() != lamina.Options(rules=(gelu,)).key()
    assert "sigmoid" not in str(options.key())  # a hash of it
    assert _times(2).identity() != _times(3).identity()
    assert _times(2).identity() == _times(2).identity()


def _times(n):
    return rule(lambda x: x * 2, lambda x: x * n, name="times")


def test_a_bug_of_the_engine_leaves_the_program_as_it_is(monkeypatch):
    def fail(*args, **kwargs):
        raise ZeroDivisionError("a bug of the engine")

    monkeypatch.setattr("lamina.rewrite.rewriting.aten_form", fail)
    record = ours(lambda x: x * x.sigmoid(), [X], [rule(silu.before, silu.after, at=("captured",))], strict=False)
    reasons = [d.reason for d in record.decisions("rewrite")]
    assert reasons == ["the rules failed: ZeroDivisionError: a bug of the engine; the graph stays as it was"]
    with pytest.raises(lamina.StageFailed, match="a bug of the engine"):
        ours(lambda x: x * x.sigmoid(), [X], [silu])
