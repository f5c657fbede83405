"""Writes of a traced call: which of them can be done again, and what they rest on."""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import CellType, SimpleNamespace
from typing import Any

import torch

from lamina.base.class_flags import MADE_BY_PYTHON
from lamina.base.torch_names.torch_private import REGISTRIES
from lamina.capture.own.frame import MISSING
from lamina.capture.own.pending import Pending
from lamina.capture.own.reuse.attribute_reads import Attributes
from lamina.capture.own.reuse.facts import is_settled
from lamina.capture.own.reuse.operators import ARITHMETIC, Operators
from lamina.capture.own.reuse.trace import DICTS, TENSORS, Trace

__all__ = ["SET_MODULE_ATTRIBUTE", "Changes"]


_OF_SETS = (set.add, operator.ior, operator.iand, operator.isub, operator.ixor)
SET_MODULE_ATTRIBUTE = torch.nn.Module.__setattr__


class Changes:
    """Tells of a write whether a trace holds it; one to an object from outside is noted as an effect."""

    def __init__(self, trace: Trace, attributes: Attributes, operators: Operators) -> None:
        self.trace, self.attributes, self.operators = trace, attributes, operators

    def noted(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> bool:
        """Whether the trace can do a write again, which it notes if it is one to the world outside."""
        trace, target = self.trace, operands[0]
        kind, place = type(target), trace.place_of(target)
        if all(map(is_settled, operands)):
            return True
        if function is operator.setitem and kind in (Pending, *TENSORS):
            self.operators.on_tensors(function, operands)
            return trace.ended is None
        if function in ARITHMETIC:
            tensors = any(type(value) in (Pending, *TENSORS) for value in operands)
            if tensors:
                self.operators.on_tensors(function, operands)
            return tensors
        if function is setattr:
            return self.is_attribute_noted(*operands)
        if function is delattr:
            return self._is_deletion_of_made(*operands)
        if function is operator.setitem and kind in DICTS and is_settled(operands[1]):
            if place is not None:
                trace.effect(function, target, operands[1:], target, operands[1])
            return True
        if function is operator.setitem and kind is list and type(operands[1]) is int:
            if place is not None:
                trace.length(target)
                trace.effect(function, target, operands[1:], target, operands[1] % max(len(target), 1))
            return True
        if kind is CellType and function.__name__ == "_set_cell":
            if place is not None:
                trace.effect(function, target, operands[1:], target, "cell_contents")
            return True
        if place is None and function in (dict.update, set.update):
            return self.operators.calls.walked(operands[1])
        if place is None and kind is set:
            return function in _OF_SETS and all(map(self.operators.calls.known, operands))
        return place is None and function is operator.delitem and kind in DICTS and is_settled(operands[1])

    def is_attribute_noted(self, target: Any, name: str, value: Any, plainly: bool = False) -> bool:
        """Whether ``target.name = value`` is, or ``plainly`` what ``object.__setattr__`` does."""
        trace, kind = self.trace, type(target)
        if not (kind.__flags__ & MADE_BY_PYTHON or kind is SimpleNamespace) or issubclass(kind, (type, torch.Tensor)):
            return False
        place = trace.place_of(target)
        if (place is None and not trace.is_made(target)) or not kind.__dictoffset__:
            return False
        writer = object.__setattr__ if plainly else trace.class_entry(kind, "__setattr__")
        if writer is SET_MODULE_ATTRIBUTE and (is_settled(value) or type(value) in (tuple, list, set, *DICTS)):
            if not self._is_plain_of_module(target, name):
                return False
        elif writer not in (object.__setattr__, SimpleNamespace.__setattr__):
            return False
        found = trace.class_entry(kind, name)
        if found is not MISSING and self.attributes.has(found, "__set__", "__delete__"):
            return False
        if place is not None:
            how: Callable[..., Any] = object.__setattr__ if plainly else setattr
            trace.effect(how, target, (name, value), self.attributes.stored(target, "__dict__"), name)
        return True

    def _is_deletion_of_made(self, target: Any, name: str) -> bool:
        """Whether ``del target.name`` of an object that the call has made takes an entry out of its dictionary."""
        trace, kind = self.trace, type(target)
        if not kind.__flags__ & MADE_BY_PYTHON or issubclass(kind, (type, torch.Tensor)) or not kind.__dictoffset__:
            return False
        if not trace.is_made(target) or trace.class_entry(kind, "__delattr__") is not object.__delattr__:
            return False
        found = trace.class_entry(kind, name)
        return found is MISSING or not self.attributes.has(found, "__set__", "__delete__")

    def _is_plain_of_module(self, module: Any, name: str) -> bool:
        """Whether a constant that a module is given becomes an attribute like others."""
        trace = self.trace
        space = self.attributes.stored(module, "__dict__")
        for held in REGISTRIES:
            names = trace.dict_item(space, held)
            if type(names) not in DICTS or trace.dict_item(names, name) is not MISSING:
                return False
        return True
