"""The functions that copy FX graphs and edit them."""

from __future__ import annotations

import operator

import torch
from torch.fx import Graph, GraphModule, Node, symbolic_trace

from lamina.base.fx.copying import Made, add_calls, copy_nodes, copy_on_demand, needed_by, returning
from lamina.base.fx.editing import replace_node


def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x + y) * (x - y)


def traced() -> tuple[GraphModule, dict[str, Node]]:
    gm = symbolic_trace(product)
    for node in gm.graph.nodes:
        node.meta["source"] = node.name
    return gm, {node.name: node for node in gm.graph.nodes}


def value(graph: Graph) -> float:
    graph.lint()
    found = GraphModule({}, graph)(torch.tensor(5.0), torch.tensor(2.0))
    (found,) = found if isinstance(found, tuple) else (found,)
    return float(found)


def test_copies_have_the_names_and_meta_of_their_own() -> None:
    gm, old = traced()
    graph = Graph()
    made = copy_nodes(graph, gm.graph.nodes)
    assert [n.name for n in graph.nodes] == list(old)
    assert value(graph) == 21
    made[old["add"]].meta["source"] = "changed"
    assert old["add"].meta["source"] == "add"


def test_others_stand_for_nodes_or_are_written_in_their_place() -> None:
    gm, old = traced()

    def doubled(graph: Graph, made: Made) -> Node:
        return graph.call_function(operator.mul, (made[old["x"]], 2))

    graph = Graph()
    copy_nodes(graph, gm.graph.nodes, stand_in={old["sub"]: old["y"]}, writes={old["add"]: doubled})
    assert value(graph) == 20


def test_a_write_that_tells_what_later_nodes_are_takes_no_copy_of_theirs() -> None:
    gm, old = traced()

    def renamed(graph: Graph, made: Made) -> Node:
        made[old["sub"]] = made[old["x"]]  # until its turn comes
        return graph.call_function(operator.mul, (made[old["x"]], made[old["y"]]))

    graph = Graph()
    copy_nodes(graph, gm.graph.nodes, writes={old["add"]: renamed})
    assert value(graph) == 30


def test_a_part_is_copied_with_what_it_needs() -> None:
    gm, old = traced()
    assert needed_by([old["add"]]) == {old["x"], old["y"], old["add"]}
    assert needed_by([old["mul"]], {old["add"], old["sub"]}) == {old["mul"]}
    assert value(returning(gm, [old["sub"]])) == 3
    kept = needed_by([old["sub"]])
    part = returning(gm, [old["sub"]], [n for n in gm.graph.nodes if n in kept])
    assert value(part) == 3
    assert [n.name for n in part.nodes] == ["x", "y", "sub", "output"]
    assert part.output_node().meta == {"source": "output"}


def test_operands_are_copied_where_they_are_asked_for() -> None:
    gm, old = traced()
    graph = Graph()
    made = copy_nodes(graph, gm.graph.find_nodes(op="placeholder"))
    product = copy_on_demand(graph, old["mul"], made, lambda n: old["add"] if n is old["sub"] else n)
    graph.output(product)
    assert value(graph) == 49
    assert old["sub"] not in made


def test_calls_of_a_trace_are_added_to_a_graph() -> None:
    gm, old = traced()
    other, calls = traced()
    for node in other.graph.nodes:
        node.meta["val"] = node.name
    with gm.graph.inserting_before(old["mul"]):
        made: Made = {calls["x"]: old["add"], calls["y"]: old["sub"]}
        added = add_calls(gm.graph, [calls["add"], calls["sub"]], made, {"source": "here", "example_value": None})
    assert [n.meta["source"] for n in added] == ["here", "here"]
    assert [n.meta["example_value"] for n in added] == ["add", "sub"]
    replace_node(old["mul"], made[calls["sub"]])
    assert value(gm.graph) == 4
