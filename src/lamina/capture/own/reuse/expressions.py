"""The program of one trace: its facts, graphs and values in order, then its writes and what it gives."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from types import MemberDescriptorType, MethodType
from typing import Any

import torch

from lamina.capture.own.reuse.asking import Names, asked, condition, literal
from lamina.capture.own.reuse.facts import is_settled
from lamina.capture.own.reuse.paths import Node
from lamina.capture.own.reuse.run import Called, Ran
from lamina.capture.own.reuse.trace import DICTS, Trace
from lamina.capture.own.reuse.values import Ref, Value
from lamina.capture.own.writing import Writing

__all__ = ["Path", "Unbuildable"]

_BUILT = (list, tuple, set, dict)


class Unbuildable(Exception):
    """A trace cannot say how to make a value again."""


class Path:
    """The program of ``trace``, whose call gave ``result``, as nodes from ``node`` on, one for each decision.

    Raises ``Unbuildable`` if it cannot be written.
    """

    def __init__(self, trace: Trace, result: Any, names: Names) -> None:
        self.trace, self.names = trace, names
        self._built: dict[int, tuple[Any, str]] = {}
        self._making: list[str] = []
        effects = [self._effect(effect) for effect in trace.effects]
        returned = self.expression(result)
        self.node = node = Node()
        first = 0
        for place, step in enumerate(trace.learning.steps):
            if place == trace.learning.spoils:
                node.steps.append("spoiled = True")
            node.steps.append(self._step(place, step, place == trace.learning.spoils))
            if isinstance(step, Value) and step.pinned:
                node.asks = asked(trace.facts.rows[first : step.rows], names)
                first = step.rows
                node.name = step.ref.name
                following = Node()
                node.nexts = [(condition("constant", [node.name], step.value, names), following)]
                node = following
        node.asks = asked(trace.facts.rows[first:], names)
        spoiled = ["spoiled = True"] if effects and trace.learning.spoils is None else []
        node.end = [*self._making, *spoiled, *effects, f"return {returned}"]

    def _step(self, number: int, step: Ran | Value | Called, first: bool) -> str:
        """A step as a line; the ``first`` one that writes or draws may still find that the call is not for it."""
        if isinstance(step, Called):
            return self._call(step)
        function = self.names.object(step.function if isinstance(step, Value) else step.run)
        if isinstance(step, Value):
            operands = (one.name if isinstance(one, Ref) else literal(one, self.names) for one in step.operands)
            return f"{step.ref.name} = {function}({', '.join(operands)})"
        if first and isinstance(step.run, Writing) and step.run.pairs:
            function = f"{function}.unless_they_meet"
        if step.trial is not None:
            function = f"{self.names.object(step.trial)}.before({function})"
        if first and step.begins_anew:
            function = f"begun_anew({function})"
        given = ", ".join(step.given)
        inputs = f"({given}{',' if given else ''})"
        called = self._within(step, function, inputs) or f"{function}({given})"
        if step.aliased:
            called = f"distinct({called}, {inputs})"
        results = [f"t{number}_{place}" for place in range(step.results)]
        if len(results) == 1:
            return f"{results[0]} = {called}[0]"
        return f"{', '.join((*results, '*_'))} = {called}" if results else called

    def _call(self, step: Called) -> str:
        """A call between graphs as a line."""
        function, given = self.names.object(step.function), [*map(self._operand, step.operands)]
        named = [f"{name}={self._operand(value)}" for name, value in step.keywords.items()]
        called = self._within(step, function, self._operand(step.operands), named)
        called = called or f"{function}({', '.join((*given, *named))})"
        results = ", ".join(step.names)
        return f"{results}{',' if step.in_tuple else ''} = {called}" if results else called

    def _within(self, step: Ran | Called, function: str, inputs: str, named: Sequence[str] = ()) -> str:
        """A call in the grad mode and the autocast of a step; "" where these are as when the traced call began."""
        if step.within is None and step.autocast is None:
            return ""
        autocast = literal(() if step.autocast is None else step.autocast, self.names)
        return f"within({', '.join((str(step.within), function, inputs, autocast, *named))})"

    def _operand(self, value: Any) -> str:
        if isinstance(value, Ref):
            return value.name
        if type(value) in (list, tuple):
            parts = ", ".join(map(self._operand, value))
            return f"[{parts}]" if type(value) is list else f"({parts}{',' if value else ''})"
        return literal(value, self.names)

    def _effect(self, effect: Any) -> str:
        parts = (self.expression(effect.target), *map(self.expression, effect.operands))
        return f"{self.names.object(effect.function)}({', '.join(parts)})"

    def expression(self, value: Any) -> str:
        """An expression for a value as it is at the end of the call."""
        trace = self.trace
        ref = trace.learning.ref(value)
        if ref is not None:
            return ref.name
        if is_settled(value) and not trace.learning.is_within(value):
            return literal(value, self.names)
        found = self._built.get(id(value))
        if found is not None:
            if not found[1]:
                raise Unbuildable(f"a {type(value).__qualname__} that holds itself")
            return found[1]
        self._built[id(value)] = value, ""
        made = self._made(value)
        name = f"v{len(self._making)}"
        self._making.append(f"{name} = {made}")
        self._built[id(value)] = value, name
        return name

    def _made(self, value: Any) -> str:
        kind = type(value)
        if kind in _BUILT:
            return self._container(value)
        if kind is torch.Size:
            return f"{self.names.object(kind)}({self._container(tuple(value))})"
        if kind is MethodType:
            return f"bound({self.expression(value.__func__)}, {self.expression(value.__self__)})"
        if isinstance(value, tuple) and hasattr(kind, "n_sequence_fields"):
            return f"{self.names.object(kind)}({self._container(tuple(value))})"
        if isinstance(value, tuple) and self.trace.is_made(value) and not getattr(value, "__dict__", None):
            return f"{self.names.object(tuple.__new__)}({self.names.object(kind)}, {self._container(tuple(value))})"
        if self.trace.is_made(value) and not isinstance(value, type) and self._is_simple(kind):
            return self._instance(value)
        if kind is OrderedDict:
            return f"{self.names.object(kind)}({self._container(value)})"
        raise Unbuildable(f"a {kind.__qualname__}")

    def _container(self, value: Any) -> str:
        if type(value) in DICTS:
            return "{" + ", ".join(f"{self.expression(k)}: {self.expression(v)}" for k, v in value.items()) + "}"
        parts = ", ".join(self.expression(part) for part in value)
        if type(value) is list:
            return f"[{parts}]"
        if type(value) is set:
            return f"{{{parts}}}" if value else f"{self.names.object(set)}()"
        return f"({parts},)" if parts else "()"

    def _is_simple(self, kind: type) -> bool:
        """Whether an instance is what is in its ``__dict__``, and in it as a dictionary."""
        plain: bool = not any(
            isinstance(entry, MemberDescriptorType) for base in kind.__mro__ for entry in vars(base).values()
        )
        return (
            plain
            and getattr(kind, "__new__", None) in (object.__new__, dict.__new__)
            and getattr(kind, "__getattribute__", None) in (object.__getattribute__, dict.__getattribute__)
        )

    def _instance(self, value: Any) -> str:
        kind = type(value)
        name = f"v{len(self._making)}"
        if issubclass(kind, dict):
            return self._dictionary(value, name)
        self._making.append(f"{name} = new({self.names.object(kind)})")
        self._built[id(value)] = value, name
        space = self._container(dict(vars(value)))
        self._making.append(f"{name}.__dict__.update({space})")
        return name

    def _dictionary(self, value: Any, name: str) -> str:
        """An object of a subclass of ``dict``, whose own methods do not run."""
        of, kind = OrderedDict if issubclass(type(value), OrderedDict) else dict, type(value)
        self._making.append(f"{name} = {self.names.object(dict.__new__)}({self.names.object(kind)})")
        self._built[id(value)] = value, name
        put = self.names.object(of.__setitem__)
        for key, part in of.items(value):
            self._making.append(f"{put}({name}, {self.expression(key)}, {self.expression(part)})")
        if vars(value):
            self._making.append(f"{name}.__dict__.update({self._container(dict(vars(value)))})")
        return name
