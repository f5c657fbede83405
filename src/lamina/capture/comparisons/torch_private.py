"""Comparisons that Python makes of tensors by itself: names as read in torch 2.11 to 2.13.

``x in list``, ``list.count(x)`` and ``max(x, y)`` compare objects one after the other, by identity, ``==`` and ``>``,
and ask each answer for its truth value: they give one of the objects, a number or a truth value, or raise if a tensor
has more than one element. Dynamo makes one operation on tensors of it, with a tensor for a result, and with NaN for the
greatest of numbers among which there is one. Such a comparison ends a graph that need not be the only one.

Keys that are objects of the user's with an ``__eq__`` of their own Dynamo compares by identity; here that is traced.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from types import FunctionType
from typing import Any

from torch._dynamo import utils
from torch._dynamo.exc import unimplemented
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.variables import lists
from torch._dynamo.variables.builtin import BuiltinVariable
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.lazy import LazyVariableTracker
from torch._dynamo.variables.tensor import (
    FakeItemVariable,
    SymNodeVariable,
    TensorVariable,
    UnspecializedPythonVariable,
)
from torch._dynamo.variables.user_defined import FrozenDataClassVariable, UserDefinedObjectVariable

from lamina.capture.trace_corrections.torch_private import compiles_for_lamina

__all__ = ["break_at_comparisons"]


def break_at_comparisons() -> None:
    """Replace Dynamo's functions, once, for traces of Lamina's."""
    _break_at_contains()
    _break_at_methods_of_lists()
    _break_at_extremes()
    _compare_keys()
    _break_at_hashes()


def _compare_keys() -> None:
    """Let keys of dictionaries and sets be equal as the classes of the user's say."""

    def comparing(equal_any: Any) -> Any:
        @functools.wraps(equal_any)
        def equal(self: Any, other: Any) -> bool:
            if not any(map(_compares_itself, (self, other))) or _is_same_object(self, other):
                return bool(equal_any(self, other))
            tx: Any = InstructionTranslator.current_tx()
            if not compiles_for_lamina(tx.output):
                return bool(equal_any(self, other))
            answer: Any = BuiltinVariable(operator.eq).call_function(tx, [self, other], {})
            if not answer.is_python_constant():
                _break_at_key("an object of a class whose __eq__ gives no constant")
            return bool(answer.as_python_constant())

        return equal

    kinds: list[Any] = [UserDefinedObjectVariable]
    for kind in kinds:
        kinds += kind.__subclasses__()
        if "is_python_equal" in vars(kind):
            kind.is_python_equal = comparing(vars(kind)["is_python_equal"])


def _compares_itself(variable: Any) -> bool:
    """Whether a variable is an object of a class with an ``__eq__`` of its own, which is not that of all fields."""
    found = variable.realize() if issubclass(type(variable), LazyVariableTracker) else variable
    if not issubclass(type(found), UserDefinedObjectVariable):
        return False
    kind = found.python_type()
    return isinstance(getattr(kind, "__eq__", None), FunctionType) and not _is_of_all_fields(kind, "__eq__")


def _is_of_all_fields(kind: type, name: str) -> bool:
    """Whether a class has a method that ``dataclass`` has written, for all fields."""
    method = getattr(kind, name, None)
    if not isinstance(method, FunctionType) or not is_dataclass(kind):
        return False
    return method.__code__.co_filename == "<string>" and all(f.compare and f.hash is None for f in fields(kind))


def _break_at_hashes() -> None:
    """Break at a key that is a frozen dataclass with a hash of its own: Dynamo takes that of all fields."""
    for name in ("hash_impl", "get_python_hash"):  # of 2.13, and of releases before it
        if name in vars(FrozenDataClassVariable):
            setattr(FrozenDataClassVariable, name, _breaking_at_own_hash(vars(FrozenDataClassVariable)[name]))


def _breaking_at_own_hash(hash_any: Any) -> Any:
    @functools.wraps(hash_any)
    def hashed(self: Any, *rest: Any) -> Any:
        if not _is_of_all_fields(self.python_type(), "__hash__") and _may_break(InstructionTranslator.current_tx()):
            _break_at_key("a frozen dataclass with a hash of its own")
        return hash_any(self, *rest)

    return hashed


def _is_same_object(one: Any, other: Any) -> bool:
    return one.source is not None and getattr(other, "value", None) is one.value


def _break_at_contains() -> None:
    contains_any = utils.iter_contains

    @functools.wraps(contains_any)
    def contains(items: Iterable[Any], search: Any, tx: Any, check_tensor_identity: bool = False) -> Any:
        found = list(items)
        if check_tensor_identity or not _may_break(tx):
            return contains_any(found, search, tx, check_tensor_identity)
        if not any(map(_is_tensor, (search, *found))):
            _break_at_mixed("looking for a number among numbers", (search, *found))
            return contains_any(found, search, tx, check_tensor_identity)
        return ConstantVariable.create(_contains(found, search))

    for module in (utils, lists):
        module.iter_contains = contains  # type: ignore[attr-defined]


def _contains(items: Iterable[Any], search: Any) -> bool:
    """Whether one of ``items`` is ``search``, or equal to it, as far as that is known without its elements."""
    for item in items:
        if _is_same(item, search):
            return True
        constants = [v.as_python_constant() for v in (item, search) if v.is_python_constant()]
        if len(constants) == 2:
            if constants[0] == constants[1]:
                return True
        elif not (constants and (constants[0] is None or isinstance(constants[0], str))):
            _break("looking for a tensor in a container, or for anything among tensors")
    return False


def _break_at_methods_of_lists() -> None:
    def breaking(call_any: Any) -> Any:
        @functools.wraps(call_any)
        def call(self: Any, tx: Any, name: str, args: Any, *rest: Any) -> Any:
            if name in ("count", "index", "remove") and _may_break(tx) and any(map(_is_tensor, (*self.items, *args))):
                _break(f"list.{name} among tensors")
            return call_any(self, tx, name, args, *rest)

        return call

    for kind in (lists.BaseListVariable, lists.CommonListMethodsVariable, lists.ListVariable, lists.TupleVariable):
        if "call_method" in vars(kind):
            kind.call_method = breaking(vars(kind)["call_method"])  # type: ignore[method-assign]


def _break_at_extremes() -> None:
    compare_any = BuiltinVariable._call_min_max_binary

    @functools.wraps(compare_any)
    def compare(self: Any, tx: Any, a: Any, b: Any) -> Any:
        if _may_break(tx):
            if any(map(_is_tensor, (a, b))):
                _break(f"{self.fn.__name__} of tensors")
            _break_at_mixed(f"{self.fn.__name__} of numbers", (a, b))
        if compiles_for_lamina(tx.output) and _are_floats((a, b)):
            first, second = (b, a) if self.fn is max else (a, b)
            return b if _is_less(tx, second, first) else a
        return compare_any(self, tx, a, b)

    BuiltinVariable._call_min_max_binary = compare  # type: ignore[method-assign]


def _are_floats(variables: Iterable[Any]) -> bool:
    """Whether they are floats, of which one is a symbol."""
    found = [v.realize() if issubclass(type(v), LazyVariableTracker) else v for v in variables]
    numbers = all(issubclass(type(v), (ConstantVariable, SymNodeVariable)) and v.python_type() is float for v in found)
    return numbers and not all(map(_is_fixed, found))


def _is_less(tx: Any, one: Any, other: Any) -> bool:
    """What Python asks to choose one of two floats, which tells apart neither zeros nor NaN; a guard on the answer."""
    answer: Any = BuiltinVariable(operator.lt).call_function(tx, [one, other], {})
    return bool(answer.as_python_constant() if _is_fixed(answer) else answer.evaluate_expr(tx.output))


def _break_at_mixed(what: str, variables: Iterable[Any]) -> None:
    """Break where integers are compared with floats that are not constants, or floats with such integers.

    A trace makes a float of both, also where Python gives the integer, and may take equal ones of two types for others.
    """
    found = [v.realize() if issubclass(type(v), LazyVariableTracker) else v for v in variables]
    if not all(map(_is_number, found)) or all(map(_is_fixed, found)):
        return
    if len({v.python_type() is float for v in found}) > 1:
        _break(f"{what} of two types")


def _is_fixed(variable: Any) -> bool:
    return issubclass(type(variable), ConstantVariable)


def _is_number(variable: Any) -> bool:
    numbers = (ConstantVariable, SymNodeVariable, *_NUMBERS)
    return issubclass(type(variable), numbers) and issubclass(variable.python_type(), (int, float))


def _may_break(tx: Any) -> bool:
    return not tx.one_graph and compiles_for_lamina(tx.output)


def _break_at_key(what: str) -> None:
    unimplemented(
        gb_type="comparison of keys by Python",
        context=what,
        explanation="Python asks the key for its hash and for equality",
        hints=["Use numbers, strings or tuples of these as keys"],
    )


def _break(what: str) -> None:
    unimplemented(
        gb_type="comparison of tensors by Python",
        context=what,
        explanation="Python compares tensors one after the other and asks each answer for its truth value",
        hints=["Compare by `is`, or compute it by operations of torch, such as torch.maximum"],
    )


def _is_tensor(variable: Any) -> bool:
    found = variable.realize() if issubclass(type(variable), LazyVariableTracker) else variable
    return issubclass(type(found), TensorVariable) and not issubclass(type(found), _NUMBERS)


_NUMBERS = (FakeItemVariable, UnspecializedPythonVariable)
"""Numbers that are captured as tensors."""


def _is_same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    return _is_tensor(one) and _is_tensor(other) and _example(one) is _example(other)


def _example(variable: Any) -> Any:
    return variable.as_proxy().node.meta["example_value"]
