"""A graph in the making."""

from __future__ import annotations

import contextlib
import operator
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.fx.node import map_arg

from lamina.base.captured import OF_A_MODULE
from lamina.base.devices import kind_of
from lamina.base.modes import autocast_depth
from lamina.base.overlap import meet
from lamina.base.rng_state import rng_state, set_rng_state
from lamina.base.source import operation_name
from lamina.base.torch_private import storage_of
from lamina.capture.own.fakes import Fakes, look
from lamina.capture.own.pending import Pending, lost
from lamina.capture.own.torch_private import (
    SET_GRAD,
    asking_numbers,
    autocast_states,
    looking_like,
    mode_with_numbers,
    settings,
    unhooked,
)
from lamina.capture.own.trials import Trials, Tried
from lamina.capture.own.writing import Pair, part_of
from lamina.ops.raising import holds

__all__ = ["Examples", "Segment", "inputs_first", "is_quiet", "trial_of", "writes_to_outside"]


class Segment:
    """A graph in the making, with the tensors that it reads and those that it computes.

    Results at the places ``unseen`` are read by other graphs of the call only. ``handled`` are calls that may raise
    what the program goes on after. ``left_at`` is the call that raised, whose modes are those of the program then.
    Inputs that stand for tensors which are not computed yet look as ``expected``, by their identity. ``held`` says of
    inputs whether a module has them, where it matters: a graph that is given a parameter is another one then.
    """

    def __init__(self, stand_ins: Fakes, held: Callable[[torch.Tensor], bool] | None = None) -> None:
        self.stand_ins, self.held = stand_ins, held
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
        self.draws = self.writes = self.writes_outside = self.records = self.watched = self.switches = False
        self.started = self.failed = self.is_part = False
        self.left_at: Node | None = None
        self.depth = autocast_depth()
        self.handled: list[Node] = []
        self.generators: dict[torch.device, torch.Tensor] = {}
        self.marks: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []
        self.trials = Trials()
        self.learnt: dict[int, tuple[float, Node]] = {}
        self._written: set[int] | None = set()
        self._memories: dict[int, int] = {}
        self.pairs: dict[Pair, None] = {}
        self.unseen: frozenset[int] = frozenset()
        self._whole = (0, 0, 0)
        self.expected: dict[int, Any] = {}

    def __enter__(self) -> None:
        """A call is going to be recorded; what an exception leaves of one is taken back."""
        self._whole = len(self.graph.nodes), len(self.key), len(self.inputs)

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None:
            self.take_back(*self._whole)

    def take_back(self, nodes: int, entries: int, inputs: int) -> None:
        """Be as before, when there were so many: nodes, their entries and inputs would not belong to each other."""
        left = {*[*reversed(self.graph.nodes)][: len(self.graph.nodes) - nodes]}
        del self.key[entries:], self.inputs[inputs:], self.looks[inputs:], self.fakes[inputs:]
        for known in (self.input_nodes, self.nodes):
            for key in [key for key, node in known.items() if node in left]:
                del known[key]
        for node in left:
            self.numbers.pop(node, None)
            self.trials.written.pop(node, None)
        self.learnt = {key: (value, node) for key, (value, node) in self.learnt.items() if node not in left}
        self.pending = [made for made in self.pending if id(made._fake) in self.nodes]
        for node in reversed([node for node in self.graph.nodes if node in left]):
            self.graph.erase_node(node)

    def begin(self) -> None:
        """The graph runs now, from the state that random generators have."""
        if self.draws:
            devices = {torch.device("cpu"), *(t.device for t in self.inputs if kind_of(t).queued)}
            self.generators = {device: rng_state(device) for device in devices}
        self.started = True

    def draw_again(self) -> None:
        """Let what is computed again draw the numbers that the graph has drawn."""
        for device, state in self.generators.items():
            set_rng_state(state, device)

    def note_writes(self, targets: Sequence[torch.Tensor], records: bool) -> None:
        """A call writes to ``targets``, to which it gives a history if it ``records`` one.

        What is written ``outside`` of the graph's own results is not written again if the graph raises.
        """
        self.writes = True
        self.writes_outside = self.writes_outside or writes_to_outside(self, targets)
        self.records = self.records or records
        if self._written is not None:
            self._written.update(map(id, targets))
        made = [target._fake for target in targets if type(target) is Pending]
        if made and any(one.layout is not torch.strided or storage_of(one) in self._of_inputs() for one in made):
            self._written = None  # of a view of an input it is not known which part is written to

    def owns(self, targets: Sequence[torch.Tensor]) -> bool:
        """Whether an attempt may write to ``targets``, as nobody sees that if it is given up."""
        return False

    def _of_inputs(self) -> dict[int, int]:
        """The memories of the inputs without values, with the positions of these."""
        for at in range(len(self._memories), len(self.fakes)):
            fake = self.fakes[at]
            self._memories[storage_of(fake) if fake.layout is torch.strided else -1 - at] = at
        return self._memories

    def meets(self, target: Any, operands: Sequence[Any], elementwise: bool) -> bool:
        """Whether a write to ``target`` is eager's, for the memory that it shares with one of the ``operands``.

        Eager refuses it, or what it leaves depends on the order of the elements; ``elementwise`` calls may read what
        they write to. All are tensors without values. Inputs of which views are a target and an operand are ``pairs``.
        """
        self._of_inputs()
        if not elementwise and sum(tensor is target for tensor in operands) > 1:
            return True
        others = [tensor for tensor in operands if tensor is not target and tensor.layout is torch.strided]
        if any(meet(target, tensor, alike=not elementwise) for tensor in others):
            return True
        own = self._memories.get(storage_of(target))
        if own is None:
            return False
        to = part_of(target, self.fakes[own])
        for tensor in others:
            at = self._memories.get(storage_of(tensor), own)
            if at != own and tensor.numel():
                pair = Pair(own, at, to, part_of(tensor, self.fakes[at]))
                if pair.meet(self.inputs):
                    return True
                self.pairs[pair] = None
        return False

    def tensors(self) -> list[Any]:
        """All tensors of the graph, without values."""
        made = (node.meta.get("example_value") for node in self.graph.nodes)
        return [*self.fakes, *(one for one in made if isinstance(one, torch.Tensor))]

    @property
    def tracks(self) -> bool:
        """Whether the graph gives tensors a history."""
        return self.state[0] and any(tensor.requires_grad for tensor in self.inputs)

    def written(self) -> tuple[int, ...]:
        """The positions of the inputs that may be written to."""
        known = self._written
        return tuple(at for at, tensor in enumerate(self.inputs) if known is None or id(tensor) in known)

    @property
    def writes_anywhere(self) -> bool:
        """Whether it is not known which of the inputs are written to."""
        return self._written is None

    def apart_by_place(self) -> bool:
        """Whether inputs at other places of one storage have nothing to do with each other.

        They share a version, which autograd asks for, and calls may look at other places than those of their operands.
        """
        return not self.tracks and not any(
            operation_name(node.target).startswith("as_strided") for node in self.graph.nodes
        )

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

    def raises_nothing(self) -> bool:
        """Whether it is known that no call so far raises for what its operands hold."""
        given = {self.input_nodes[id(tensor)]: tensor for tensor in self.inputs}
        with contextlib.suppress(Exception):
            self.watched = self.trials.fail(self.graph.nodes, given, _is_loud)
        return not self.watched

    def module(self, anew: bool = False) -> tuple[GraphModule, list[Any], Any]:
        """The graph, its inputs without values and the mode of those.

        Each of its nodes has what it gives as the computation of fake tensors says it; that is made ``anew``, and may
        raise, where it matters which of these share memory.
        """
        gm = GraphModule(torch.nn.Module(), inputs_first(self.graph))
        if self.learnt:
            mode = mode_with_numbers()
            with mode, torch.no_grad():
                given = zip(self.fakes, self.inputs, strict=True)  # which may have got a history
                fakes = [looking_like(fake).requires_grad_(tensor.requires_grad) for fake, tensor in given]
            with torch.set_grad_enabled(self.state[0]), mode, unhooked(), asking_numbers(mode):
                Examples(gm).run(*fakes)
            return gm, fakes, mode
        if self.stand_ins.copied or anew:
            forgiven = contextlib.nullcontext() if anew else contextlib.suppress(Exception)
            with torch.set_grad_enabled(self.state[0]), self.mode, unhooked(), forgiven:  # it was computed call by call
                Examples(gm).run(*self.fakes)
        return gm, self.fakes, self.mode

    def learns(self, value: float, tensor: torch.Tensor) -> None:
        """A number is given to calls that the graph is to hold for each value of it: ``tensor`` has it."""
        self.fake_of(tensor)
        given = self.input_nodes[id(tensor)]
        node = self.graph.call_method("item", (given,))
        self.numbers[node] = len(self.numbers)
        self.key.append(("number", self.numbers[given]))
        self.learnt[id(value)] = value, node

    def forget_pinned(self, is_learnt: Callable[[Any], bool]) -> None:
        """Have integers that are not learnt any more as constants: a graph holds some calls for integers only."""
        if self.learnt:
            for key, (value, _) in list(self.learnt.items()):
                if type(value) is int and not is_learnt(value):
                    del self.learnt[key]

    def with_constants(self) -> list[float]:
        """Hold the calls for the numbers of this call only, in place of what stands for all; gives these."""
        numbers = {node: value for value, node in self.learnt.values()}
        self.learnt.clear()
        for node in numbers:
            for user in tuple(node.users):
                user.args, user.kwargs = map_arg((user.args, user.kwargs), lambda one: numbers.get(one, one))
            self.graph.erase_node(node)
        return [*numbers.values()]

    def node_of(self, value: Any) -> Any:
        """The node that has a tensor without values, or a number that is learnt; others are constants."""
        if isinstance(value, torch.Tensor):
            return self.nodes[id(value)]
        return self.learnt[id(value)][1] if id(value) in self.learnt and type(value) in (float, int) else value

    def fake_of(self, tensor: torch.Tensor) -> Any:
        """What stands for ``tensor`` while nothing is computed."""
        if type(tensor) is Pending:
            if id(tensor._fake) not in self.nodes:
                raise lost(tensor)
            return tensor._fake
        node = self.input_nodes.get(id(tensor))
        if node is None:
            appearance = self.expected.get(id(tensor)) or look(tensor)
            held = self.held is not None and self.held(tensor)
            if held and appearance[0] is torch.Tensor:
                appearance = (torch.nn.Buffer, *appearance[1:])
            fake = self.stand_ins.of(tensor, appearance, self.alike[appearance])
            self.alike[appearance] += 1
            self.looks.append(appearance)
            node = self.graph.placeholder(f"l_{len(self.inputs)}")
            node.meta["example_value"] = fake
            if held:
                node.meta[OF_A_MODULE] = True
            self.input_nodes[id(tensor)] = self.nodes[id(fake)] = node
            self.numbers[node] = len(self.numbers)
            self.inputs.append(tensor)
            self.fakes.append(fake)
        return node.meta["example_value"]


def writes_to_outside(segment: Segment, targets: Sequence[torch.Tensor]) -> bool:
    """Whether one of the ``targets`` of a write was there before the graph, or may share memory with what was."""
    made = [segment.fake_of(target) for target in targets if type(target) is Pending]
    if len(made) < len(targets):
        return True
    given = {storage_of(fake) for fake in segment.fakes if fake.layout is torch.strided} if made else set()
    return any(fake.layout is not torch.strided or storage_of(fake) in given for fake in made)


def trial_of(segment: Segment) -> Tried | None:
    """What tells of inputs whether a call raises what the program goes on after; None if it does not of these."""
    tried = Tried(segment.graph, segment.handled, segment.trials.written)
    return tried if tried.hold(*segment.inputs) else None


def inputs_first(graph: Graph) -> Graph:
    """``graph`` with its placeholders in front of all else, in their order, as passes of FX expect them.

    They were made where calls first read them.
    """
    first: Node | None = None
    for node in tuple(graph.nodes):
        if node.op != "placeholder":
            first = first or node
        elif first is not None:
            first.prepend(node)
    return graph


class Examples(Interpreter):
    """Runs a graph on fake tensors and notes what each node gives."""

    def run_node(self, n: Node) -> Any:
        found = super().run_node(n)
        if n.op != "output" and isinstance(found, (torch.Tensor, torch.SymFloat, tuple, list)):
            n.meta["example_value"] = found
        return found


def _tensors_of(node: Node) -> list[Node]:
    """The tensors that a call gives, as nodes."""
    if isinstance(node.meta.get("example_value"), torch.Tensor):
        return [node]
    return [tensor for user in node.users if user.target is operator.getitem for tensor in _tensors_of(user)]


def _is_loud(node: Node) -> bool:
    return node.op in ("call_function", "call_method") and not is_quiet(node)


def is_quiet(node: Node) -> bool:
    """Whether a node raises for no values, as far as is known."""
    return node.target is SET_GRAD or holds(node)
