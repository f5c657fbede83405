"""The tracer: a dispatch mode that writes down the ATen operations that reach it as nodes of a graph.

Rules use it above autograd, on operations as they are called, to compare and to replace them; joint tracing uses it
below autograd, on what a call and its backward come down to. What is passed in says what differs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from lamina.base.fx.torch_private import DEVICE_OF, DispatchMode, autograd_decomposes
from lamina.base.fx.writes import Written, written_by
from lamina.base.symbolic.torch_private import detached, is_fake
from lamina.base.torch_private import OpOverload, schema_of, storage_of

__all__ = ["Decompositions", "Recorder", "Unrecordable", "called"]

Decompositions = Mapping[Any, Callable[..., Any]]
"""By operation: what takes it apart, or gives ``NotImplemented``."""

aten = torch.ops.aten


class Unrecordable(Exception):
    """Raised by what computes results: the operations cannot be written down. Says why."""


def called(func: Any, args: Any, kwargs: Any) -> Any:
    """What an operation gives."""
    return func(*args, **kwargs)


class Recorder(DispatchMode):
    """Notes each operation that reaches it as a node, once what has a decomposition is taken apart.

    ``inputs`` are placeholders for the tensors it is made with, ``calls`` the nodes after those, each with its value as
    ``meta["val"]``. ``fault`` says why the operations are not what a graph can hold: one writes, reads a tensor of
    unknown origin, or makes something else than tensors. Nothing is noted from there on, and all is computed as without
    the mode: an exception would end the process where C++ calls.

    Without ``decompositions`` operations are noted as they come. ``symbols`` gives what stands for a symbolic number
    among arguments, a node as a rule, or None; without it there must be none. ``computed`` gives an operation's result,
    by default by calling it, or raises ``Unrecordable``. If tensors are ``differentiated`` they are fakes that enter
    autograd's graph, and nodes hold them detached from it. Then an operator that writes to a tensor whose memory no
    other that is known shares is noted as the one that computes the new value, which that tensor stands for from there.
    """

    def __init__(
        self,
        tensors: Sequence[torch.Tensor],
        decompositions: Decompositions | None = None,
        *,
        symbols: Callable[[Any], Any] | None = None,
        computed: Callable[[Any, Any, Any], Any] = called,
        differentiated: bool = False,
    ) -> None:
        super().__init__()
        self.fault = ""
        self.calls: list[Node] = []
        self.inputs: list[Node] = []
        self._graph, self._decompositions, self._symbols, self._computed = Graph(), decompositions, symbols, computed
        self._differentiated, self._resting = differentiated, False
        self._nodes: dict[int, Node] = {}
        self._overwritten: set[int] = set()
        self._alive: list[Any] = list(tensors)  # their ids are taken
        for i, tensor in enumerate(tensors):
            placeholder = self._graph.placeholder(f"input_{i}")
            placeholder.meta["val"] = tensor
            self.inputs.append(placeholder)
            self._nodes[id(tensor)] = placeholder

    def node(self, tensor: torch.Tensor) -> Node | None:
        """What computes ``tensor``; None, and a fault, if that is not known."""
        found = self._nodes.get(id(tensor))
        if found is None:
            self._stop("it reads a tensor that is none of its operands")
        return found

    def is_written_to(self, tensor: Any) -> bool:
        """Whether an operation that was noted wrote to ``tensor``."""
        return id(tensor) in self._overwritten

    def as_one(self, target: Any, args: tuple[Any, ...], make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """What ``make`` gives, noted as the one call ``target(*args)``, whatever making it takes."""
        self._resting = True
        made = make()
        self._note(self._graph.call_function(target, args), made)
        self._resting = False
        return made

    def _stop(self, why: str) -> None:
        self.fault = self.fault or why

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is DEVICE_OF or self._resting or self.fault:
            return func(*args, **kwargs)
        found = self._taken_apart(func, args, kwargs)
        if found is not NotImplemented:
            return found
        if not isinstance(func, OpOverload):
            self._stop(f"{func} is no operator")
            return func(*args, **kwargs)
        if schema_of(func).is_mutable:
            return self._written(func, types, args, kwargs)
        names, keywords = self._named(args), self._named(kwargs)
        try:
            value = self._computed(func, args, kwargs)
        except Unrecordable as why:
            self._stop(str(why))
            return func(*args, **kwargs)
        if isinstance(value, torch.Tensor) and id(value) in self._nodes:
            return value  # it gave its operand back
        if not self.fault:
            if func.overloadpacket in (aten.to, aten.type_as) and isinstance(value, torch.Tensor):
                func, names, keywords = aten._to_copy.default, names[:1], _changes(args[0], value)
            name = str(func.overloadpacket.__name__)
            self._note(self._graph.create_node("call_function", func, names, keywords, name), value)
        return value

    def _written(self, func: OpOverload, types: Any, args: Any, kwargs: Any) -> Any:
        """What ``func``, which writes, gives: noted as what gives the new values, or as a fault."""
        found = written_by(func) if self._differentiated else None
        tensors = [args[i] for i in found.places if i < len(args)] if found is not None else []
        if found is None or len(tensors) < len(found.places) or not all(map(self._is_alone, tensors)):
            self._stop(f"{func} writes to its operands")
            return func(*args, **kwargs)
        given = self.__torch_dispatch__(found.operator, types, args, kwargs)
        values = list(given) if isinstance(given, (tuple, list)) else [given]
        new = values[len(values) - len(tensors) :]
        if not all(_replaces(value, tensor) for value, tensor in zip(new, tensors, strict=True)):
            self._stop(f"{func} writes something else than a new value")
        if self.fault:
            return func(*args, **kwargs)
        for value, tensor in zip(new, tensors, strict=True):
            self._nodes[id(tensor)] = self._nodes[id(value)]
            self._overwritten.add(id(tensor))
        return self._after_write(func, found, args, kwargs, values)

    def _after_write(self, func: OpOverload, found: Written, args: Any, kwargs: Any, values: list[Any]) -> Any:
        if found.in_place:
            return func(*args, **kwargs)  # also what a fake keeps of its numbers changes
        return tuple(values[: len(values) - len(found.places)])

    def _is_alone(self, tensor: Any) -> bool:
        """Whether no other tensor that is known shares the memory of ``tensor``, which is one."""
        if not is_fake(tensor) or id(tensor) not in self._nodes:
            return False
        memory = storage_of(tensor)
        return all(one is tensor or not _has_storage(one) or storage_of(one) != memory for one in self._alive)

    def _taken_apart(self, func: Any, args: Any, kwargs: Any) -> Any:
        if self._decompositions is None:
            return NotImplemented
        rule = self._decompositions.get(func)
        if rule is not None:
            with self:
                found = rule(*args, **kwargs)
            if found is not NotImplemented:
                return found
        plain = isinstance(func, OpOverload) and not schema_of(func).is_mutable
        if plain and autograd_decomposes(func, args, kwargs):
            with self:
                return func.decompose(*args, **kwargs)
        return NotImplemented

    def _named(self, item: Any) -> Any:
        """``item`` with nodes for its tensors and symbols."""
        if isinstance(item, torch.Tensor):
            return self.node(item)
        if isinstance(item, (tuple, list)):
            items = [self._named(x) for x in item]
            return items if isinstance(item, list) else tuple(items)
        if isinstance(item, dict):
            return {name: self._named(x) for name, x in item.items()}
        if isinstance(item, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            found = None if self._symbols is None else self._symbols(item)
            if found is None:
                self._stop(f"it uses the symbolic size {item}, which no node has")
            return found
        return item

    def _note(self, node: Node, value: Any) -> None:
        """``node`` computes ``value``: a tensor, or several."""
        self.calls.append(node)
        if isinstance(value, torch.Tensor) and (is_fake(value) or not self._differentiated):
            node.meta["val"] = detached(value) if self._differentiated else value
            self._nodes[id(value)] = node
            self._alive.append(value)
        elif isinstance(value, (tuple, list)):
            for i, item in enumerate(value):
                if isinstance(item, torch.Tensor):
                    self._note(self._graph.call_function(operator.getitem, (node, i)), item)
                elif self._differentiated and item is not None and type(item) is not int:
                    self._stop(f"{node.target} makes a {type(item).__name__}")
            held = {id(v): self._nodes[id(v)].meta["val"] for v in value if id(v) in self._nodes}
            node.meta["val"] = tuple(held.get(id(v), v) for v in value) if self._differentiated else value
        else:
            self._stop(f"{node.target} makes a {type(value).__name__}")


def _has_storage(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout == torch.strided


def _replaces(value: Any, tensor: torch.Tensor) -> bool:
    """Whether ``value`` may stand for what ``tensor`` is after a write: it is laid out alike, in memory of its own."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value is tensor:
        return False
    layouts = [(one.shape, one.stride(), one.dtype, one.device) for one in (value, tensor)]
    return layouts[0] == layouts[1] and storage_of(value) != storage_of(tensor)


def _changes(before: torch.Tensor, after: torch.Tensor) -> dict[str, Any]:
    """The keywords of the copy that makes ``after`` of ``before``."""
    found: dict[str, Any] = {}
    if after.dtype != before.dtype:
        found["dtype"] = after.dtype
    if after.device != before.device:
        found["device"] = after.device
    return found
