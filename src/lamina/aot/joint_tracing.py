"""The joint graph of a captured graph, put together of traces of its single calls.

AOTAutograd runs the whole program three times through several dispatch layers: 2 ms for each operation, for every
layer of a model again. Equal calls trace equal, so here each distinct call is traced and differentiated once and
copied wherever it occurs; the chain rule between calls is applied here, in the order the autograd engine would take.
What does not fit this picture (see ``Unsuitable``) goes to AOTAutograd.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from lamina.aot.calls import Call, Calls, Unsuitable, Value, is_plain
from lamina.aot.torch_private import (
    ENTER_AUTOCAST,
    SET_GRAD,
    STATELESS,
    backend_fakes,
    is_checkpointed,
    plain_dispatch,
    tracing_state,
)
from lamina.aot.trace import CallTrace
from lamina.aot.traits import as_assumed, computes_with_gradients, dense, dependence, is_static, last_uses
from lamina.base.captured import NOTES, example
from lamina.base.fx.copying import Made, Write, copy_nodes
from lamina.base.fx.torch_private import flatten, graph_module, unflatten
from lamina.base.source import source_of
from lamina.base.symbolic.torch_private import detached
from lamina.base.torch_private import fresh_symbols_dropped, schema_of, storage_of
from lamina.ops.aliasing import makes_view

__all__ = ["JointGraph", "trace_joint"]

aten = torch.ops.aten
_CARRIED = ("stack_trace", "nn_module_stack", NOTES)


@dataclass(frozen=True, slots=True)
class JointGraph:
    """A joint graph in AOTAutograd's form and what the runtime must know of it.

    ``results`` counts the user's outputs, ``differentiable`` are the positions of those that require a gradient (one
    tangent each), ``tangents_of`` for each input the positions of the outputs its gradient depends on (None without a
    gradient), ``mutated`` the positions of inputs the graph writes to, ``static`` those of parameters and buffers.
    ``traced`` is the number of distinct calls that were traced, ``trained`` whether gradients are on where the graph is
    called and one of its inputs requires one.
    """

    joint: GraphModule
    results: int
    differentiable: tuple[int, ...]
    tangents_of: tuple[frozenset[int] | None, ...]
    mutated: tuple[int, ...]
    static: tuple[int, ...]
    traced: int
    trained: bool = False


@dataclass(slots=True)
class _Use:
    """One call of the captured graph, copied into the joint graph."""

    call: Call
    trace: CallTrace
    position: int
    nodes: list[Node]
    results: list[Value]
    source: str
    meta: dict[str, Any]


def trace_joint(
    gm: GraphModule, example_inputs: Sequence[Any], decompositions: dict[Any, Callable[..., Any]]
) -> JointGraph:
    """The joint graph (or the inference graph, without tangents) of ``gm``. Raises ``Unsuitable``."""
    captured = [example(n) for n in gm.graph.find_nodes(op="placeholder")]
    if not all(is_plain(x, fixed=True) for x in captured) or not all(
        isinstance(x, torch.Tensor) for x in example_inputs
    ):
        raise Unsuitable("an input has a symbolic size or is not a plain tensor")
    if not plain_dispatch():
        raise Unsuitable("autocast, a function transform or a dispatch mode is active")
    mode, fakes = backend_fakes(example_inputs)
    if mode is None:
        raise Unsuitable("there is no tensor input")
    if any(map(is_checkpointed, gm.graph.nodes)):
        raise Unsuitable("activation checkpointing decides what is computed again")
    history = computes_with_gradients(gm.graph)
    with tracing_state(mode), _out_of_inference_mode(), fresh_symbols_dropped(fakes):
        return _JointTracer(gm, fakes, example_inputs, decompositions, history).run()


@contextlib.contextmanager
def _out_of_inference_mode() -> Iterator[None]:
    """Tracing records aliasing, which tensors made in inference mode do not know."""
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield


class _JointTracer:
    def __init__(
        self,
        gm: GraphModule,
        fakes: Sequence[Any],
        example_inputs: Sequence[Any],
        decompositions: dict[Any, Callable[..., Any]],
        history: bool,
    ) -> None:
        self.history = history
        """Whether a call of the graph is made where gradients are on."""
        self.gm, self.fakes, self.inputs = gm, fakes, example_inputs
        self.calls = Calls(decompositions)
        self.graph = Graph()
        self.env: dict[Node, Any] = {}
        self.looking: dict[Node, dict[Node, None]] = {}
        """By node of the joint graph: captured nodes of which a value looked at its memory, in order."""
        self.primals: list[Value] = []
        self.current: dict[Node, Value] = {}
        self.places: dict[Value, Node] = {}
        """``current`` the other way round."""
        self.uses: list[_Use] = []
        self.roots: dict[Node, frozenset[Node]] = {}
        self.seeds: dict[torch.device, Node] = {}
        self.streams = 0
        self.gradients: dict[Value, Node] = {}
        self.arrived: dict[Node, dict[Node, None]] = {}
        """By gradient of a call's operand: the gradients of its results, which a constant one is not computed of."""
        self.sums: dict[Any, Any] = {}
        self.grad = torch.is_grad_enabled()
        self.overwritten: dict[Node, int] = {}
        self.last_use = last_uses(gm.graph)

    def run(self) -> JointGraph:
        outputs: list[Value] = []
        for position, node in enumerate(self.gm.graph.nodes):
            if node.op == "placeholder":
                self._placeholder(node)
            elif node.op in ("call_function", "call_method"):
                self._call(node, position)
            elif node.op == "output":
                outputs = self._outputs(node)
            else:
                raise Unsuitable(f"the captured graph has a {node.op}")
        if self.grad != torch.is_grad_enabled():
            raise Unsuitable("gradients are left switched on or off")
        differentiable = tuple(i for i, v in enumerate(outputs) if v.requires_grad)
        gradients = self._backward([outputs[i] for i in differentiable])
        mutated = tuple(i for i, v in enumerate(self.primals) if self.current[v.node] is not v)
        for i in mutated:
            self._write_back(self.primals[i])
        results = tuple(v.node for v in outputs)
        self.graph.output((*results, *gradients) if differentiable else results)
        static = tuple(i for i, n in enumerate(self.gm.graph.find_nodes(op="placeholder")) if is_static(n))
        sources = dependence(self.graph, differentiable, gradients, self.arrived)
        self.graph.eliminate_dead_code()
        joint = graph_module(self.gm, self.graph, with_meta=False)
        trained = torch.is_grad_enabled() and any(x.requires_grad for x in self.fakes)
        return JointGraph(joint, len(results), differentiable, sources, mutated, static, len(self.calls), trained)

    def _placeholder(self, node: Node) -> None:
        index = len(self.primals)
        given = self.fakes[index]
        made = self.graph.placeholder(f"primals_{index + 1}")
        fake = detached(given)
        made.meta = {"val": fake, "partitioner_tag": "is_forward"}
        value = Value(made, fake, self.history and given.requires_grad)
        self.primals.append(value)
        self.current[made] = value
        self.places[value] = made
        self.roots[made] = frozenset([made])
        self._bind(node, value)

    def _call(self, node: Node, position: int) -> None:
        args, kwargs = self._resolved(node.args), self._resolved(node.kwargs)
        if self._changes_state(node, args):
            return
        if node.target is operator.getitem and isinstance(args[0], (tuple, list)):
            self._bind(node, args[0][args[1]])
            return
        call = self.calls.read(node, args, kwargs)
        trace = self.calls.trace(call, grad=self.grad)
        meta: dict[str, Any] = {k: node.meta[k] for k in _CARRIED if k in node.meta}
        use = _Use(call, trace, position, [], [], source_of(node), meta)
        names = dict(zip(trace.primals, (v.node for v in call.operands), strict=True))
        use.nodes = self._copy(trace.calls[: trace.forward_calls], names, use, "is_forward")
        for result, requires in zip(trace.results, trace.requires_grad, strict=True):
            use.results.append(Value(names[result], result.meta["val"], requires))
        if any(trace.requires_grad):
            self.uses.append(use)
        leaves, spec = flatten(trace.structure)
        self._bind(node, unflatten([_pick(i, use.results, call.operands) for i in leaves], spec))
        for primal, result in trace.updates:
            self._overwrite(call.operands[primal], use.results[result], position)

    def _bind(self, name: Node, value: Any) -> None:
        """Let the captured graph's node ``name`` mean ``value``."""
        self.env[name] = value
        for node in _nodes_in(value):
            for root in self.roots[node]:
                self.looking.setdefault(root, {})[name] = None

    def _changes_state(self, node: Node, args: Any) -> bool:
        """Whether ``node`` is not computation but switches gradients, or autocast (off anyway) off."""
        if node.target is SET_GRAD:
            self.grad = bool(args[0])
            if self.grad and not torch.is_grad_enabled() and any(x.requires_grad for x in self.inputs):
                raise Unsuitable("gradients are switched on inside")
        elif node.target is ENTER_AUTOCAST:
            if args[2] if len(args) > 2 else node.kwargs.get("enabled", True):
                raise Unsuitable("autocast is switched on inside")
        elif node.target not in STATELESS:
            return False
        self.env[node] = None
        return True

    def _resolved(self, value: Any) -> Any:
        """``value`` with the captured graph's nodes replaced by what they are now."""
        if isinstance(value, Node):
            return self.env[value]
        if isinstance(value, (tuple, list)):
            items = [self._resolved(item) for item in value]
            return items if isinstance(value, list) else tuple(items)
        if isinstance(value, dict):
            return {name: self._resolved(item) for name, item in value.items()}
        if isinstance(value, slice):
            return slice(self._resolved(value.start), self._resolved(value.stop), self._resolved(value.step))
        return value

    def _copy(self, nodes: Sequence[Node], names: dict[Node, Node], use: _Use, tag: str) -> list[Node]:
        writes: dict[Node, Write] = {node: partial(self._random, node) for node in nodes if _philox(node)}
        copy_nodes(self.graph, nodes, names, writes=writes)
        operation = f"{use.source} backward" if tag == "is_backward" else use.source
        for node in nodes:
            copied = names[node]
            copied.meta = {"val": node.meta.get("val"), "source": operation, "partitioner_tag": tag, **use.meta}
            self.roots[copied] = self._roots_of(copied)
        return [names[node] for node in nodes]

    def _random(self, node: Node, graph: Graph, names: Made) -> Node:
        """Counter-based draws share the graph's seed, each with a stream of its own."""
        if _philox(node) == "lamina::philox_seed":
            (device,) = node.args
            if device not in self.seeds:
                self.seeds[device] = graph.node_copy(node, names.__getitem__)  # type: ignore[index]
            return self.seeds[device]  # type: ignore[index]
        copied = graph.node_copy(node, names.__getitem__)
        copied.args = (*copied.args[:2], self.streams, *copied.args[3:])
        self.streams += 1
        return copied

    def _roots_of(self, node: Node) -> frozenset[Node]:
        """The nodes whose memory ``node`` may look at: itself, unless it is a view."""
        producer = node.args[0] if node.target is operator.getitem else node
        if isinstance(producer, Node) and makes_view(producer.target):
            return frozenset().union(*(self.roots[n] for n in node.all_input_nodes)) or frozenset([node])
        return frozenset([node])

    def _overwrite(self, old: Value, new: Value, position: int) -> None:
        """Let every name of tensor ``old`` mean ``new`` from here on."""
        if self.roots[old.node] != frozenset([old.node]):
            raise Unsuitable("a view is written to")
        if old.requires_grad and not self.grad:  # its history then stays as it is
            raise Unsuitable("a tensor with a history is written to where gradients are switched off")
        place = self.places.get(old)
        if place is not None:
            if old.requires_grad:
                raise Unsuitable("an input that requires a gradient is written to")
            if new.requires_grad:
                raise Unsuitable("an input becomes differentiable by being written to")
            self._check_unaliased(place)
        for name in list(self.looking.get(old.node, ())):
            value = self.env[name]
            if value is old:
                self._bind(name, new)
            elif self.last_use.get(name, -1) >= position and any(old.node in self.roots[n] for n in _nodes_in(value)):
                raise Unsuitable("a tensor is written to that has a view in use")
        self.overwritten[old.node] = position
        if place is not None:
            self.current[place] = new
            del self.places[old]
            self.places[new] = place

    def _check_unaliased(self, place: Node) -> None:
        if place in self.sharing_memory:
            raise Unsuitable("an input that shares memory with another is written to")

    @functools.cached_property
    def sharing_memory(self) -> frozenset[Node]:
        """The inputs that share memory with another; asked for where one is written to, when all are known."""
        storages = [storage_of(t) for t in self.inputs]
        counts = Counter(storages)
        return frozenset(v.node for v, one in zip(self.primals, storages, strict=True) if counts[one] > 1)

    def _outputs(self, node: Node) -> list[Value]:
        (returned,) = node.args
        values = self._resolved(returned)
        if not isinstance(values, (tuple, list)) or not all(isinstance(v, Value) for v in values):
            raise Unsuitable("something other than tensors is returned")
        # An input that was written to is returned as its new value, yet must be the very input.
        seen = set(self.current).union(*(self.roots[v.node] for v in self.current.values()))
        for value in values:
            if self.roots[value.node] & seen:
                raise Unsuitable("a returned tensor shares memory with another or with an input")
            seen |= self.roots[value.node]
        return list(values)

    def _backward(self, outputs: Sequence[Value]) -> list[Any]:
        """Tangents for ``outputs`` and, for each primal, the node of its gradient or None."""
        if not outputs:
            return []
        for i, value in enumerate(outputs):
            fake = dense(value.fake)
            tangent = self.graph.placeholder(f"tangents_{i + 1}")
            tangent.meta = {"val": fake, "partitioner_tag": "is_backward"}
            self.roots[tangent] = frozenset([tangent])
            self.gradients[value] = tangent
        for use in reversed(self.uses):
            self._differentiate(use)
        if not all(self._has_shape_of(v) for v in self.primals):
            raise Unsuitable("a gradient has another shape than its tensor")
        return [self.gradients.get(v) if v.requires_grad else None for v in self.primals]

    def _has_shape_of(self, value: Value) -> bool:
        gradient = self.gradients.get(value)
        return gradient is None or gradient.meta["val"].shape == value.fake.shape

    def _differentiate(self, use: _Use) -> None:
        arrived = [self.gradients.get(v) if v.requires_grad else None for v in use.results]
        if not any(arrived):
            return
        fakes = [None if g is None else g.meta["val"] for g in arrived]
        trace = use.trace
        if not as_assumed(trace, fakes):
            trace = self.calls.trace(use.call, fakes)
            mine = trace.calls[: trace.forward_calls]
            if [n.target for n in mine] != [n.target for n in use.trace.calls[: use.trace.forward_calls]]:
                raise Unsuitable(f"{use.source} traces differently with its gradient")
        operands = use.call.operands
        names = dict(zip(trace.primals, (v.node for v in operands), strict=True))
        names.update(zip(trace.calls[: trace.forward_calls], use.nodes, strict=True))
        rest = trace.calls[trace.forward_calls :]
        names.update(zip(rest[: trace.tangents], [g for g in arrived if g is not None], strict=True))
        made = self._copy(rest[trace.tangents :], names, use, "is_backward")
        self._check_unwritten(made, use)
        wanted = [v for v in operands if v.requires_grad]
        for value, gradient in zip(wanted, trace.gradients, strict=True):
            if gradient is not None:
                self.arrived.setdefault(names[gradient], {}).update(dict.fromkeys(filter(None, arrived)))
                self._accumulate(value, names[gradient], use)

    def _check_unwritten(self, made: Sequence[Node], use: _Use) -> None:
        """Eager refuses a backward that needs what was written to after it was saved; AOTAutograd says so as well."""
        for node in made if self.overwritten else ():
            for operand in node.all_input_nodes:
                if any(self.overwritten.get(root, -1) > use.position for root in self.roots.get(operand, ())):
                    raise Unsuitable("the backward needs a value that was written to")

    def _accumulate(self, value: Value, gradient: Node, use: _Use) -> None:
        before = self.gradients.get(value)
        if before is None:
            self.gradients[value] = gradient
            return
        a, b = before.meta["val"], gradient.meta["val"]
        key = tuple((x.shape, x.stride(), x.dtype) for x in (a, b))
        if key not in self.sums:
            self.sums[key] = detached(a + b)
        total = self.graph.call_function(aten.add.Tensor, (before, gradient))
        source = f"{use.source} backward"
        total.meta = {"val": self.sums[key], "source": source, "partitioner_tag": "is_backward", **use.meta}
        self.roots[total] = frozenset([total])
        self.gradients[value] = total

    def _write_back(self, primal: Value) -> None:
        new = self.current[primal.node]
        if new.fake.shape != primal.fake.shape or new.fake.dtype != primal.fake.dtype:
            raise Unsuitable("an input changes its shape or type")
        copy = self.graph.call_function(aten.copy_.default, (primal.node, new.node))
        tag = "must_be_in_forward"
        copy.meta = {"val": primal.fake, "source": new.node.meta.get("source", ""), "partitioner_tag": tag}


def _philox(node: Node) -> str:
    """The name of the counter-based random operation that a call is of; "" for others."""
    schema = schema_of(node.target)
    return str(schema.name) if schema is not None and schema.name.startswith("lamina::philox") else ""


def _nodes_in(value: Any) -> Iterator[Node]:
    """The nodes of the joint graph for the tensors in ``value``."""
    if isinstance(value, Value):
        yield value.node
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _nodes_in(item)


def _pick(index: int | None, results: Sequence[Value], operands: Sequence[Value]) -> Value | None:
    """The tensor that ``index`` stands for in a trace's structure."""
    if index is None:
        return None
    return results[index] if index >= 0 else operands[-1 - index]
