"""Torch calls traced to ATen once for each distinct use, however many layers of a model use it alike."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from lamina.aot.constant_tensors import without_numbers
from lamina.aot.trace import CallTrace, trace_call
from lamina.base.aliasing import writes_first
from lamina.base.fx.torch_private import flatten, unflatten
from lamina.base.fx.writes import elementwise_writes
from lamina.base.symbolic.torch_private import detached, has_symbols, is_fake
from lamina.base.torch_private import HigherOrderOperator, OpOverload, schema_of

__all__ = ["Call", "Calls", "Unsuitable", "Value", "is_plain"]


class Unsuitable(Exception):
    """The graph cannot be traced call by call; AOTAutograd takes it. Says why."""


class Value:
    """A tensor of the user's program: the node that computes it, its fake, and whether it is differentiable."""

    __slots__ = ("fake", "node", "requires_grad")

    def __init__(self, node: Node, fake: torch.Tensor, requires_grad: bool) -> None:
        self.node, self.fake, self.requires_grad = node, fake, requires_grad


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the captured graph with its distinct tensor operands.

    ``written`` are operands the call writes to, ``key`` is equal for calls that trace alike.
    """

    function: Callable[[list[Any]], Any]
    operands: tuple[Value, ...]
    written: tuple[int, ...]
    key: Hashable


_HIDDEN_STATE = ("_set_", "_enter_", "_exit_", "_vmap", "_grad_", "_jvp", "set_grad", "manual_seed", "_log_api")


class Calls:
    """The traces made for one graph, by what they were made of."""

    def __init__(self, decompositions: dict[Any, Callable[..., Any]]) -> None:
        self._decompositions = decompositions
        self._traces: dict[Hashable, CallTrace] = {}
        self._descriptions: dict[tuple[int, bool], Hashable] = {}
        self._kept: list[torch.Tensor] = []

    def __len__(self) -> int:
        return len(self._traces)

    def read(self, node: Node, args: Any, kwargs: Any) -> Call:
        """``node``'s call, with ``args`` and ``kwargs`` holding Values for its operands."""
        target = _target(node)
        if target is torch.tensor and (made := without_numbers(args, kwargs)) is not None:
            return Call(lambda tensors: made(), (), (), (target, _of_numbers(args), _of_numbers(kwargs)))
        leaves, spec = flatten((args, kwargs))
        operands: list[Value] = []
        slots: list[Any] = []
        for leaf in leaves:
            if isinstance(leaf, Value):
                if leaf not in operands:
                    operands.append(leaf)
                slots.append(_Slot(operands.index(leaf)))
            else:
                slots.append(leaf)

        def function(tensors: list[Any]) -> Any:
            given = [tensors[s.place] if isinstance(s, _Slot) else s for s in slots]
            positional, named = unflatten(given, spec)
            if isinstance(target, str):
                return getattr(positional[0], target)(*positional[1:], **named)
            return target(*positional, **named)

        first, _ = flatten(args[0] if args and writes_first(node) else ())
        written = tuple(i for i, operand in enumerate(operands) if any(operand is one for one in first))
        if any(operands[i].requires_grad and sum(_is_slot(s, i) for s in slots) > 1 for i in written):
            raise Unsuitable("a call reads what it writes to, and its gradient may need that as it was")
        key = (target, tuple(_key(s) for s in slots), str(spec), tuple(self._describe(v) for v in operands))
        return Call(function, tuple(operands), written, key)

    def trace(self, call: Call, tangents: Sequence[torch.Tensor | None] | None = None, grad: bool = True) -> CallTrace:
        """``call`` as ATen operations; its gradient for tangents laid out as those given, by default as its results.

        ``grad`` is whether the program has gradients on there.
        """
        shapes = None if tangents is None else tuple(_shape(t) for t in tangents)
        key = (call.key, shapes, grad)
        found = self._traces.get(key)
        if found is None:
            fakes = [detached(v.fake).requires_grad_(v.requires_grad) for v in call.operands]
            with torch.set_grad_enabled(grad):
                plain = elementwise_writes(call.key[0])  # type: ignore[index]
                found = trace_call(call.function, fakes, call.written, shapes, self._decompositions, plain)
            if found is None:
                raise Unsuitable(f"{call.key[0]} is more than a function of tensors")  # type: ignore[index]
            self._check(found)
            self._traces[key] = found
        return found

    def _check(self, trace: CallTrace) -> None:
        for node in trace.calls:
            target = node.target
            if target is operator.getitem:
                continue
            if not isinstance(target, OpOverload):
                raise Unsuitable(f"{target} is not a plain operator")
            if schema_of(target).is_mutable:
                raise Unsuitable(f"{target} writes to its operands")
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor) and not is_plain(value):
                raise Unsuitable(f"{target} makes a tensor that is not plain and strided")

    def _describe(self, value: Value) -> Hashable:
        """What of a tensor a trace may depend on."""
        place = (id(value.fake), value.requires_grad)
        found = self._descriptions.get(place)
        if found is None:
            fake = value.fake
            if not is_plain(fake):
                raise Unsuitable("an operand is not a plain strided tensor")
            found = (_shape(fake), fake.storage_offset(), fake.device, fake.is_conj(), fake.is_neg(), place[1])
            self._descriptions[place] = found
            self._kept.append(fake)
        return found


@dataclass(frozen=True, slots=True)
class _Slot:
    """Stands for an operand among a call's arguments."""

    place: int


def _of_numbers(item: Any) -> Hashable:
    leaves, spec = flatten(item)
    return (tuple(map(_key, leaves)), str(spec))


def _is_slot(item: Any, place: int) -> bool:
    return isinstance(item, _Slot) and item.place == place


def _target(node: Node) -> Any:
    target = node.target
    if node.op == "call_method":
        return target
    if isinstance(target, HigherOrderOperator):
        raise Unsuitable(f"{target} is a higher-order operator")
    name = getattr(target, "__name__", "")
    if name.startswith(_HIDDEN_STATE):
        raise Unsuitable(f"{name} changes hidden state")
    return target


def _shape(fake: torch.Tensor | None) -> Any:
    return None if fake is None else (tuple(fake.shape), fake.stride(), fake.dtype)


def is_plain(value: Any, fixed: bool = False) -> bool:
    """Whether ``value`` is a strided FakeTensor all of whose sizes are numbers; with ``fixed`` symbols that the program
    has fixed at a number count as such.
    """
    if not is_fake(value):
        return False
    if value.layout != torch.strided or value.is_quantized:
        return False
    return not has_symbols(value) if fixed else all(type(n) is int for n in (*value.shape, *value.stride()))


def _key(item: Any) -> Hashable:
    """An argument as something equal exactly when it means the same (1, 1.0 and True do not; nor 0.0 and -0.0)."""
    if isinstance(item, (float, complex)):
        return (type(item), repr(item))
    if isinstance(item, slice):
        return (slice, _key(item.start), _key(item.stop), _key(item.step))
    if isinstance(item, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool, torch.nn.Module)):
        raise Unsuitable(f"a {type(item).__name__} is an argument")
    try:
        hash(item)
    except TypeError:
        raise Unsuitable(f"a {type(item).__name__} is an argument") from None
    return (type(item), item)
