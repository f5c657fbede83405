"""A graph in the making."""

from __future__ import annotations

import contextlib
import operator
from collections import Counter
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Interpreter, Node

from lamina.capture.own.fakes import Fakes, look
from lamina.capture.own.pending import Pending, lost
from lamina.capture.own.torch_private import SET_GRAD, autocast_states, settings, unhooked
from lamina.ops.raising import holds

__all__ = ["Segment", "is_quiet"]


class Segment:
    """A graph in the making, with the tensors that it reads and those that it computes."""

    def __init__(self, stand_ins: Fakes) -> None:
        self.stand_ins = stand_ins
        self.mode = self.stand_ins.mode
        self.graph = Graph()
        self.key: list[Any] = []
        self.inputs: list[torch.Tensor] = []
        self.fakes: list[Any] = []
        self.looks: list[Any] = []
        self.alike: Counter[Any] = Counter()
        self.uses: Counter[Any] = Counter()
        self.input_nodes: dict[int, Node] = {}
        self.nodes: dict[int, Node] = {}
        self.pending: list[Pending] = []
        self.numbers: dict[Node, int] = {}
        self.state = (torch.is_grad_enabled(), autocast_states(), settings())
        self.draws = self.writes = self.watched = self.switches = False

    def share_memory(self) -> bool:
        """Whether two of the tensors that it reads lie in the same memory."""
        memories = [tensor.untyped_storage().data_ptr() for tensor in self.inputs if tensor.numel()]
        return len(set(memories)) < len(memories)

    def unread(self, outputs: list[Node]) -> list[Node]:
        """Results of calls that may raise for what their operands hold, and that none of the ``outputs`` depends on."""
        live, found = set(outputs), []
        for node in reversed(self.graph.nodes):
            if node not in live and node.op in ("call_function", "call_method") and not is_quiet(node):
                live.add(node)
                found.extend(_tensors_of(node)[:1])
            if node in live:
                live.update(node.all_input_nodes)
        return found

    def module(self) -> GraphModule:
        """The graph, each of its nodes with what it gives as the computation of fake tensors says it."""
        gm = GraphModule(torch.nn.Module(), self.graph)
        if self.stand_ins.copied:
            with self.mode, unhooked(), contextlib.suppress(Exception):  # it was computed call by call
                _Examples(gm).run(*self.fakes)
        return gm

    def fake_of(self, tensor: torch.Tensor) -> Any:
        """What stands for ``tensor`` while nothing is computed."""
        if type(tensor) is Pending:
            if id(tensor._fake) not in self.nodes:
                raise lost(tensor)
            return tensor._fake
        node = self.input_nodes.get(id(tensor))
        if node is None:
            appearance = look(tensor)
            fake = self.stand_ins.of(tensor, appearance, self.alike[appearance])
            self.alike[appearance] += 1
            self.looks.append(appearance)
            node = self.graph.placeholder(f"l_{len(self.inputs)}")
            node.meta["example_value"] = fake
            self.input_nodes[id(tensor)] = self.nodes[id(fake)] = node
            self.numbers[node] = len(self.numbers)
            self.inputs.append(tensor)
            self.fakes.append(fake)
        return node.meta["example_value"]


class _Examples(Interpreter):
    """Runs a graph on fake tensors and notes what each node gives."""

    def run_node(self, n: Node) -> Any:
        found = super().run_node(n)
        if isinstance(found, torch.Tensor):
            n.meta["example_value"] = found
        return found


def _tensors_of(node: Node) -> list[Node]:
    """The tensors that a call gives, as nodes."""
    if isinstance(node.meta.get("example_value"), torch.Tensor):
        return [node]
    return [tensor for user in node.users if user.target is operator.getitem for tensor in _tensors_of(user)]


def is_quiet(node: Node) -> bool:
    """Whether a node raises for no values, as far as is known."""
    return node.target is SET_GRAD or holds(node)
