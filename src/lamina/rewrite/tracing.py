"""A function of tensors as the ATen operations it calls.

The same tracing serves the user's calls, both sides of a rule and what replaces a match, so that equal programs look
equal however they are spelled. Operations are recorded as they are called (``aten.softmax.int``, ``aten.linear``),
above autograd; with a table of decompositions they are recorded as they are after ahead-of-time autograd.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from lamina.base.symbolic.torch_private import is_fake
from lamina.base.torch_private import OpOverload, fresh_symbols_dropped
from lamina.rewrite.known import known_result
from lamina.rewrite.torch_private import (
    DEVICE_OF,
    DispatchMode,
    above_autograd_only,
    autograd_decomposes,
    fake_mode_of,
    flatten,
    symbol_of,
)

__all__ = ["Decompositions", "Fragment", "Untraceable", "trace"]

Decompositions = Mapping[Any, Callable[..., Any]]

aten = torch.ops.aten


class Untraceable(Exception):
    """The function is more than a function of tensors. Says why."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """A traced function: its placeholders, its calls in order, and its results.

    ``results`` are nodes in the place of tensors among the leaves of what the function returned, ``spec`` says how
    those nest.
    """

    inputs: tuple[Node, ...]
    calls: tuple[Node, ...]
    results: tuple[Any, ...]
    spec: Any


def trace(
    function: Callable[[Sequence[Any]], Any],
    tensors: Sequence[torch.Tensor],
    decompositions: Decompositions | None = None,
    symbols: Callable[[Any], Node | None] | None = None,
    expected: Any = None,
) -> Fragment:
    """Call ``function`` with ``tensors`` (fake, or without data) and note its operations. Raises ``Untraceable``.

    With ``decompositions`` operations are taken apart as ahead-of-time autograd does. ``symbols`` finds the node for a
    symbolic size. ``expected`` is what the function, known to be a single operation, is known to give: the operation
    is taken to give it instead of being computed. If it is another one after all, ``Untraceable`` is raised.
    """
    tracer = _Tracer(tensors, decompositions, symbols, expected)
    with torch.no_grad(), fake_mode_of(tensors), above_autograd_only(), fresh_symbols_dropped(tensors) as fresh:
        with tracer:
            value = function(tensors)
        leaves, spec = flatten(value)
        results = tuple(tracer.node(v) if isinstance(v, torch.Tensor) else v for v in leaves)
    if tracer.fault:
        raise Untraceable(tracer.fault)
    if fresh:  # the captured graph has other symbols for the same sizes
        raise Untraceable("it makes something whose size depends on data")
    if expected is not None and not (tracer.operations == 1 and _is_same(value, expected)):
        raise Untraceable("it is more than one operation")
    return Fragment(tuple(tracer.inputs), tuple(tracer.calls), results, spec)


class _Tracer(DispatchMode):
    """Notes what reaches it. (Raising here would end the process where C++ calls, so faults are kept for later.)"""

    def __init__(
        self,
        tensors: Sequence[torch.Tensor],
        decompositions: Decompositions | None,
        symbols: Callable[[Any], Node | None] | None,
        expected: Any,
    ) -> None:
        super().__init__()
        self.expected, self.operations = expected, 0
        self.fake = any(map(is_fake, tensors))
        self.graph, self.decompositions, self.symbols = Graph(), decompositions, symbols
        self.fault = ""
        self.nodes: dict[int, Node] = {}
        self.alive: list[Any] = list(tensors)
        self.calls: list[Node] = []
        self.inputs: list[Node] = []
        for i, tensor in enumerate(tensors):
            placeholder = self.graph.placeholder(f"input_{i}")
            placeholder.meta["val"] = tensor
            self.inputs.append(placeholder)
            self.nodes[id(tensor)] = placeholder

    def node(self, tensor: torch.Tensor) -> Node | None:
        """What computes ``tensor``."""
        found = self.nodes.get(id(tensor))
        if found is None:
            self._fail("it reads a tensor that is none of its operands")
        return found

    def _fail(self, why: str) -> None:
        self.fault = self.fault or why

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is DEVICE_OF or self.fault:
            return func(*args, **kwargs)
        if not isinstance(func, OpOverload) or func._schema.is_mutable:
            self._fail(f"{func} writes to its operands" if isinstance(func, OpOverload) else f"{func} is no operator")
            return func(*args, **kwargs)
        found = self._taken_apart(func, args, kwargs) if self.decompositions is not None else NotImplemented
        if found is not NotImplemented:
            return found
        names, keywords = self._named(args), self._named(kwargs)
        self.operations += 1
        if self.expected is None:
            known = known_result(func, args, kwargs) if self.fake and self.decompositions is None else None
            value = func(*args, **kwargs) if known is None else known
        elif self.operations == 1:
            value = self.expected
        else:
            self._fail("it is more than one operation")
            return func(*args, **kwargs)
        if isinstance(value, torch.Tensor) and id(value) in self.nodes:
            return value  # it gave its operand back
        if not self.fault:
            if func.overloadpacket in (aten.to, aten.type_as) and isinstance(value, torch.Tensor):
                func, names, keywords = aten._to_copy.default, names[:1], _changes(args[0], value)
            name = str(func.overloadpacket.__name__)
            self._note(self.graph.create_node("call_function", func, names, keywords, name), value)
        return value

    def _taken_apart(self, func: Any, args: Any, kwargs: Any) -> Any:
        assert self.decompositions is not None
        rule = self.decompositions.get(func)
        if rule is not None:
            with self:
                found = rule(*args, **kwargs)
            if found is not NotImplemented:
                return found
        if autograd_decomposes(func, args, kwargs):
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
        if symbol_of(item) is not None:
            found = None if self.symbols is None else self.symbols(item)
            if found is None:
                self._fail(f"it uses the symbolic size {item}, which no node has")
            return found
        return item

    def _note(self, node: Node, value: Any) -> None:
        """``node`` computes ``value``: a tensor, or several."""
        self.calls.append(node)
        node.meta["val"] = value
        if isinstance(value, torch.Tensor):
            self.nodes[id(value)] = node
            self.alive.append(value)
        elif isinstance(value, (tuple, list)):
            for i, item in enumerate(value):
                if isinstance(item, torch.Tensor):
                    self._note(self.graph.call_function(operator.getitem, (node, i)), item)
        else:
            self._fail(f"{node.target} makes a {type(value).__name__}")


def _is_same(value: Any, expected: Any) -> bool:
    """Whether a function gave the very tensors that its operation gave it."""
    if isinstance(value, (tuple, list)) and isinstance(expected, (tuple, list)):
        return len(value) == len(expected) and all(a is b for a, b in zip(value, expected, strict=True))
    return value is expected


def _changes(before: torch.Tensor, after: torch.Tensor) -> dict[str, Any]:
    """The keywords of the copy that makes ``after`` of ``before``."""
    found: dict[str, Any] = {}
    if after.dtype != before.dtype:
        found["dtype"] = after.dtype
    if after.device != before.device:
        found["device"] = after.device
    return found
