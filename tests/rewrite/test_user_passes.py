"""Passes at the four places: what they see, what may be wrong with them, and what is then said."""

from __future__ import annotations

import pytest
import torch

import lamina
from lamina.errors import BadArgument, PassFailed
from lamina.extend import Passes
from tests.rewrite.engine import compiled

aten = torch.ops.aten
X = torch.randn(4, 6)


def two(x):
    return x.sin() * 2 + x


def targets(gm):
    return [n.target for n in gm.graph.nodes if n.op in ("call_function", "call_method")]


def watching(seen, name):
    def look(gm):
        seen.append((name, targets(gm)))
        return gm

    return look


def test_each_place_sees_its_graph():
    seen = []
    places = ("captured", "joint", "partitioned", "lowered")
    passes = Passes(**{place: watching(seen, place) for place in places})
    compiled(two, [X.clone().requires_grad_()], passes=passes)
    assert [name for name, _ in seen] == ["captured", "joint", "partitioned", "partitioned", "lowered", "lowered"]
    graphs = [found for _, found in seen]
    assert "sin" in graphs[0]
    assert aten.cos.default in graphs[1]
    assert aten.cos.default not in graphs[2]  # the forward, the backward
    assert aten.cos.default in graphs[3]
    assert graphs[4] == graphs[2]


def test_without_gradients_there_is_nothing_to_partition():
    seen = []
    passes = Passes(joint=watching(seen, "joint"), partitioned=watching(seen, "partitioned"))
    compiled(two, [X], passes=passes)
    assert [name for name, _ in seen] == ["joint"]


def twice(gm):
    """The product with 2 as a sum, without a word about dtypes or shapes."""
    for node in gm.graph.find_nodes(op="call_function", target=aten.mul.Tensor):
        if node.args[1] == 2:
            with gm.graph.inserting_before(node):
                total = gm.graph.call_function(aten.add.Tensor, (node.args[0], node.args[0]))
            node.replace_all_uses_with(total)
    return gm


@pytest.mark.parametrize("place", ["joint", "lowered"])
@pytest.mark.parametrize("trained", [False, True])
def test_new_calls_need_no_description(place, trained):
    record = compiled(two, [X.clone().requires_grad_(trained)], passes=Passes(**{place: [twice]}))
    kinds = [s.name for s in record.stages]
    assert "pass twice" in kinds


def replacing(target, *more):
    """A pass that puts other calls in the place of the sine."""

    def wrong(gm):
        for node in gm.graph.find_nodes(op="call_function", target=aten.sin.default):
            with gm.graph.inserting_before(node):
                made = gm.graph.call_function(target, (node.args[0], *more))
            node.replace_all_uses_with(made)
        return gm

    return wrong


def cyclic(gm):
    node = next(iter(gm.graph.find_nodes(op="call_function", target=aten.sin.default)))
    node.args = (next(iter(node.users)),)
    return gm


def forgetful(gm):
    output = gm.graph.output_node()
    output.args = ((),)
    return gm


def endless(gm):
    gm.graph.erase_node(gm.graph.output_node())
    return gm


def cast(gm):
    output = gm.graph.output_node()
    (result, *_) = output.args[0]
    with gm.graph.inserting_before(output):
        half = gm.graph.call_function(aten._to_copy.default, (result,), {"dtype": torch.float16})
    output.args = ((half,),)
    return gm


def raising(gm):
    raise ZeroDivisionError("by hand")


WRONG = {
    "that returns nothing": (lambda gm: None, r"returned a NoneType"),
    "that raises": (
        raising,
        r"pass 'raising' \(joint\) raised ZeroDivisionError: by hand\n  at test_user_passes.py:\d+",
    ),
    "that calls with wrong operands": (replacing(aten.select.int, 7, 0), r"made node 'select.*fails on its operands"),
    "that reads what comes later": (cyclic, r"torch.fx refuses"),
    "that calls something of its own": (replacing(torch.sin), r"is not functional ATen"),
    "that forgets the outputs": (forgetful, r"changed the number of outputs from 1 to 0"),
    "that erases the output": (endless, r"left a graph without an output"),
    "that changes a dtype": (cast, r"output 0 from float32\[4, 6\] on cpu to float16\[4, 6\]"),
    "that writes": (replacing(aten.sin_.default), r"writes to its operands"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_pass(wrong):
    function, message = WRONG[wrong]
    with pytest.raises(PassFailed, match=message) as caught:
        compiled(two, [X], passes=Passes(joint=function))
    assert caught.value.remedy
    assert caught.value.where.startswith("test_user_passes.py:")
    assert "graph():" not in str(caught.value)  # the place is said, the rest of the graph is not


def test_a_pass_on_the_captured_graph_is_checked_too():
    def tan(gm):
        for node in gm.graph.nodes:
            if node.op == "call_method" and node.target == "sin":
                node.target = "tanh"
        return gm

    with pytest.raises(AssertionError):  # a correct graph of another program: passes may do that
        compiled(two, [X], passes=Passes(captured=tan))

    def nonsense(gm):
        for node in gm.graph.nodes:
            if node.op == "call_method" and node.target == "sin":
                node.target = "sine"
        return gm

    with pytest.raises(PassFailed, match=r"'sin.*fails on its operands: AttributeError"):
        compiled(two, [X], passes=Passes(captured=nonsense))


def test_passes_are_values():
    assert Passes(joint=twice) == Passes(joint=(twice,)) == Passes(joint=[twice])
    assert not Passes()
    with pytest.raises(BadArgument, match="a pass at 'joint' is 3"):
        Passes(joint=3)
    options = lamina.Options(passes=Passes(joint=twice))
    assert options.key() != lamina.Options(passes=Passes(lowered=twice)).key()
    assert options.key() == lamina.Options(passes=Passes(joint=[twice])).key()
    assert hash(options) != hash(lamina.Options())
