"""The brief text of a graph: a line for each call, equal where nothing changed, with the graphs that are called."""

from __future__ import annotations

import torch
from torch.fx import symbolic_trace

from lamina.report.brief_graphs import Ends, brief_text


class Inner(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.cos()


class Outer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = symbolic_trace(Inner())
        self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = torch.add(self.inner(x), self.weight, alpha=2).sum(0)
        return made


class _WholeInner(torch.fx.Tracer):
    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, torch.fx.GraphModule) or super().is_leaf_module(m, module_qualified_name)


def test_each_call_is_a_line_and_graphs_that_are_called_follow() -> None:
    outer = Outer()
    graph = _WholeInner().trace(outer)
    gm = torch.fx.GraphModule(outer, graph)
    for node in graph.nodes:
        if node.name == "add":
            node.meta |= {"val": torch.ones(2, 3), "source": "model.py:12 add"}
    ends = Ends()
    text = brief_text(graph, gm, ends)
    assert text.splitlines() == [
        "x = input",
        "inner = self.inner(x)  # inner",
        "weight = self.weight",
        "add: float32[2, 3] = torch.add(inner, weight, alpha=2)  # model.py:12 add",
        "sum_1 = add.sum(0)  # sum",
        "return sum_1",
        "graph inner:",
        "    x = input",
        "    cos = x.cos()  # cos",
        "    return cos",
    ]
    assert brief_text(graph, gm, ends) == text
    (called,) = [node for node in graph.nodes if node.op == "call_method"]
    called.args = (called.args[0], 1)
    changed = brief_text(graph, gm, ends)
    assert [a for a, b in zip(changed.splitlines(), text.splitlines(), strict=True) if a != b] == [
        "sum_1 = add.sum(1)  # sum"
    ]
