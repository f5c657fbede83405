"""Each rewrite, on both sides: what it changes, what it must leave, and that values and aliasing stay."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from lamina.errors import InvalidIR
from lamina.rewrite.passes import clean, merge_common, remove_dead_code, remove_no_ops
from lamina.rewrite.verify import verify_fx

aten = torch.ops.aten


def graph_of(function, *inputs):
    gm = make_fx(function, tracing_mode="fake")(*inputs)
    output = gm.graph.output_node()
    if not isinstance(output.args[0], (tuple, list)):
        output.args = ((output.args[0],),)
    gm.recompile()
    return gm


def count(gm, target) -> int:
    return sum(n.target is target for n in gm.graph.nodes)


def same(before, after, *inputs):
    torch.testing.assert_close(after(*inputs), before(*inputs), equal_nan=True, rtol=0, atol=0)
    verify_fx(after, "test")


X = torch.randn(3, 4)


def test_a_pass_that_changes_nothing_returns_the_same_object():
    gm = graph_of(lambda x: (x.sin() + x.cos(),), X)
    for change in (remove_dead_code, remove_no_ops, merge_common, clean):
        assert change(gm) is gm


def test_dead_code_goes_and_effects_stay():
    def f(x):
        x.exp()
        torch.rand(2)
        return (x.sin(),)

    gm = graph_of(f, X)
    after = remove_dead_code(gm)
    assert count(after, aten.exp.default) == 0
    assert count(after, aten.rand.default) == 1
    assert torch.equal(after(X)[0], X.sin())


def test_equal_pure_calls_are_merged():
    gm = graph_of(lambda x: ((x + 1).sin() * (x + 1).sin(),), X)
    after = merge_common(gm)
    assert count(after, aten.sin.default) == 1
    assert count(after, aten.add.Tensor) == 1
    same(gm, after, X)


def test_numbers_of_different_type_or_sign_are_not_equal():
    def f(x):
        a = torch.full((2,), 1) * x, torch.full((2,), 1.0) * x, torch.full((2,), True) * x
        return (a[0] + a[1] + a[2], torch.full((2,), 0.0).sqrt() / 1 + torch.full((2,), -0.0).sqrt())

    gm = graph_of(f, torch.arange(2))
    assert count(merge_common(gm), aten.full.default) == 5


def test_random_calls_are_not_merged():
    gm = merge_common(graph_of(lambda x: (torch.rand_like(x) - torch.rand_like(x),), X))
    (difference,) = gm.graph.find_nodes(op="call_function", target=aten.sub.Tensor)
    assert len(set(difference.args)) == 2
    assert count(gm, aten.rand_like.default) == 2


def test_what_a_call_gives_back_may_be_computed_before():
    def f(x):
        torch.arange(4)
        return ((torch.arange(4) + 0) * x,)

    gm = graph_of(f, X)
    assert count(gm, aten.arange.default) == 2
    after = clean(gm)
    assert count(after, aten.arange.default) == 1
    assert count(after, aten.add.Tensor) == 0
    same(gm, after, X)


@pytest.mark.parametrize("returned", [lambda a, b: (a, b), lambda a, b: (a.view(-1), b.t())])
def test_two_results_stay_two_tensors(returned):
    gm = graph_of(lambda x: returned(x + 1, x + 1), X)
    first, second = clean(gm)(X)
    first.zero_()
    assert second.any()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.clone(),
        lambda x: x * 1,
        lambda x: x * 1.0,
        lambda x: x / 1,
        lambda x: x - 0,
        lambda x: x**1,
        lambda x: x.view(3, 4),
        lambda x: x.expand(3, 4),
        lambda x: x[:],
        lambda x: aten._to_copy(x, dtype=torch.float32),
        lambda x: aten.alias(x),
    ],
)
def test_operations_that_do_nothing_go(function):
    gm = graph_of(lambda x: (function(x.exp()).sin(),), X)
    after = remove_no_ops(gm)
    assert [n.target for n in after.graph.nodes if n.op == "call_function"] == [aten.exp.default, aten.sin.default]
    same(gm, after, X)


@pytest.mark.parametrize(
    ("function", "value"),
    [
        (lambda x: x + 0, torch.tensor([[-0.0] * 4] * 3)),
        (lambda x: x * 1.0, torch.ones(3, 4, dtype=torch.int64)),
        (lambda x: x.t().clone(memory_format=torch.contiguous_format).view(-1), X),
        (lambda x: x.double(), X),
        (lambda x: x.view(4, 3), X),
        (lambda x: x[1:], X),
        (lambda x: x / 2, X),
        (lambda x: x.expand(2, 3, 4), X),
    ],
)
def test_operations_that_do_something_stay(function, value):
    gm = graph_of(lambda x: (function(x).neg(),), value)
    same(gm, remove_no_ops(gm), value)
    assert len(remove_no_ops(gm).graph.nodes) == len(gm.graph.nodes)


def test_a_returned_copy_stays_a_copy():
    gm = graph_of(lambda x: (x.clone(), x.view(3, 4) * 1), X)
    copied, scaled = clean(gm)(X)
    assert copied.data_ptr() != X.data_ptr()
    assert scaled.data_ptr() != X.data_ptr()


def test_a_chain_of_no_ops_collapses():
    gm = graph_of(lambda x: ((x.clone() * 1).view(3, 4).clone().sin(),), X)
    assert [n.target for n in remove_no_ops(gm).graph.nodes if n.op == "call_function"] == [aten.sin.default]


def broken(change):
    gm = graph_of(lambda x: (x.sin().cos(),), X)
    nodes = {n.name: n for n in gm.graph.nodes}
    change(gm.graph, nodes)
    return gm


def _dead(graph, nodes):
    with graph.inserting_before(nodes["cos"]):
        graph.call_function(aten.exp.default, (nodes["sin"],)).meta["val"] = X


def _writes(graph, nodes):
    with graph.inserting_before(nodes["cos"]):
        graph.call_function(aten.sin_.default, (nodes["sin"],)).meta["val"] = X


def _copies_into_a_result(graph, nodes):
    with graph.inserting_after(nodes["cos"]):
        graph.call_function(aten.copy_.default, (nodes["sin"], nodes["cos"])).meta["val"] = X


def _reads_after_writing(graph, nodes):
    with graph.inserting_before(nodes["sin"]):
        graph.call_function(aten.copy_.default, (nodes["x_1"], nodes["x_1"])).meta["val"] = X


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g, n: n["sin"].meta.pop("val"), 'no meta["val"]'),
        (_dead, "is dead"),
        (_writes, "writes to its operands"),
        (_copies_into_a_result, "writes to something other than an input"),
        (_reads_after_writing, "after it was written"),
        (lambda g, n: n["sin"].append(n["x_1"]), "before it is computed"),
        (lambda g, n: setattr(n["sin"], "target", torch.sin), "not an operator"),
        (lambda g, n: setattr(n["output"], "args", (n["cos"],)), "other than a tuple"),
        (lambda g, n: g.erase_node(n["output"]), "is dead"),
    ],
)
def test_the_verifier_names_what_is_wrong(change, message):
    with pytest.raises(InvalidIR, match=message.replace("[", r"\[").replace("]", r"\]")):
        verify_fx(broken(change), "test")


def test_the_verifier_accepts_and_returns_normal_form():
    gm = broken(lambda g, n: None)
    assert verify_fx(gm, "test") is gm
