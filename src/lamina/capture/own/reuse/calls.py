"""Calls of Python's own functions: which of them a trace can do again, and what they read."""

from __future__ import annotations

import _operator
import math
from abc import ABCMeta
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from enum import EnumMeta
from functools import partial
from itertools import chain, islice
from types import (
    BuiltinFunctionType,
    FunctionType,
    GeneratorType,
    MappingProxyType,
    MethodWrapperType,
    ModuleType,
)
from typing import Any

import torch
from torch.accelerator import current_accelerator

from lamina.base.class_flags import MADE_BY_PYTHON
from lamina.capture.own.callbacks import ITEM_VIEWS
from lamina.capture.own.frame import MISSING
from lamina.capture.own.natives import is_builtin_error
from lamina.capture.own.pending import Pending
from lamina.capture.own.queries.torch_private import STATE_QUERIES, is_autocast_switch
from lamina.capture.own.reuse.answers import ANSWERS, bound_method, member_of, note_kind
from lamina.capture.own.reuse.attribute_reads import Attributes
from lamina.capture.own.reuse.facts import is_settled
from lamina.capture.own.reuse.kinds import IsA
from lamina.capture.own.reuse.trace import DICTS, TENSORS, Trace
from lamina.capture.own.torch_private import SETTINGS

__all__ = ["Calls", "told_apart"]

_DETERMINED = frozenset(map(id, (*STATE_QUERIES, *SETTINGS)))
"""Functions of torch's whose answer the state of torch at the begin of the call decides."""

_WALKERS = (
    enumerate, zip, reversed, iter, list, tuple, dict, range, slice, super, set, frozenset, sum, any, all, min, max,
    OrderedDict, partial, chain, defaultdict, islice,
)  # fmt: skip
_KEYS_OR_VALUES: tuple[type, ...] = (
    type({}.keys()),
    type({}.values()),
    type(OrderedDict().keys()),
    type(OrderedDict().values()),
)
_COMPARING = frozenset(map(id, (set, frozenset, any, all, min, max, dict, OrderedDict)))
"""Of those, the ones that ask the elements for more than what they are."""
_ON_CONSTANTS = frozenset(
    map(
        id,
        (
            abs, bool, bytes, chr, complex, divmod, float, format, hash, int, len, max, min, ord, pow, repr, round,
            sorted, str, sum, any, all, callable, torch.finfo, torch.iinfo, torch.device,
        ),
    )
)  # fmt: skip
_MARKS_OF_KINDS = ("_is_param", "_is_buffer")
"""Attributes of tensors that torch's classes of tensors ask for."""
_CONTAINERS = (list, dict, set, OrderedDict, defaultdict)
_READS: dict[Any, tuple[str, ...]] = {
    dict: ("keys", "values", "items", "copy"),
    OrderedDict: ("keys", "values", "items", "copy"),
    list: ("copy",),
}
_STEPS = frozenset(
    (
        type(iter([])), type(iter(())), type(iter({})), type(iter({}.values())), type(iter({}.items())),
        type(iter(OrderedDict())), type(iter(range(0))), type(iter(set())), type(iter("")), type(iter("é")),
        type(reversed([])), islice, enumerate, zip, reversed, range, GeneratorType, chain,
        type({}.keys()), type({}.values()), type({}.items()), type(OrderedDict().values()),
        type(OrderedDict().items()), type(OrderedDict().keys()),
    )
)  # fmt: skip
"""Iterators and views, which know what they go over since they were made."""


class Calls:
    """Tells of a call whether a trace holds it, and does those that need not go to Python."""

    def __init__(self, trace: Trace, attributes: Attributes) -> None:
        self.trace, self.attributes = trace, attributes

    def known(self, value: Any) -> bool:
        """Whether all that ``value`` tells natively is decided: it is a constant, or made by the call of such."""
        if is_settled(value):
            return True
        kind = type(value)
        if kind in (list, tuple, set) and self.trace.place_of(value) is None:
            return all(self.known(part) for part in value)
        if kind in DICTS and self.trace.place_of(value) is None:
            return all(self.known(key) and self.known(part) for key, part in value.items())
        return False

    def walked(self, value: Any) -> bool:
        """Whether one may go over ``value``, whose elements are noted then."""
        kind = type(value)
        if kind in (list, tuple, *DICTS):
            self.trace.opened(value)
            return True
        if kind in _STEPS:
            return self.trace.place_of(value) is None
        if isinstance(value, tuple) and hasattr(kind, "n_sequence_fields"):  # several results of one call of torch's
            return self.trace.place_of(value) is None
        if kind is set or kind is MappingProxyType:  # such as the parameters of a signature
            return self.trace.place_of(value) is None and all(map(is_settled, value))
        return is_settled(value)

    def opened_deep(self, value: Any) -> None:
        """Note all that is in lists, tuples and dictionaries."""
        if type(value) in (list, tuple):
            self.trace.opened(value)
            for part in value:
                self.opened_deep(part)
        elif type(value) in DICTS:
            self.trace.opened(value)
            for part in value.values():
                self.opened_deep(part)

    def done(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the call gives, if it is answered here; else ``MISSING``, and ``is_native`` tells of the call."""
        if function is current_accelerator and kwargs.keys() == {"check_available"} and not args:
            return ANSWERS[id(function)](self.attributes, *kwargs.values())
        if kwargs:
            return MISSING
        if (found := bound_method(self.trace, function, args)) is not MISSING:
            return found
        if type(function) is EnumMeta:
            return member_of(self.trace, function, *args)
        answer = ANSWERS.get(id(function))
        if answer is not None:
            return answer(self.attributes, *args)
        special: Callable[..., Any] | None = _SPECIAL.get(id(function))
        return MISSING if special is None else special(self, *args)

    def is_native(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether Python may make the call, and a later call need not make it again."""
        if id(function) in _DETERMINED or is_autocast_switch(function, args):
            return True
        given = (*args, *kwargs.values())
        if function is next and len(given) == 1 and type(given[0]) is not GeneratorType:
            return hasattr(type(given[0]), "__next__") and self.walked(given[0])
        if any(function is walker for walker in _WALKERS):
            return self._walks(function, given)
        if id(function) in _ON_CONSTANTS or is_builtin_error(function):
            return all(map(self.known, given))
        if type(function) is BuiltinFunctionType:
            return self._is_native_method(function, given)
        if type(function) is MethodWrapperType:
            return function.__name__ == "__init__" and function.__objclass__ in (object, *DICTS) and not given
        return False

    def _walks(self, function: Any, given: tuple[Any, ...]) -> bool:
        if function is super:
            return len(given) == 2
        if function is partial:
            return bool(given)
        if function is defaultdict:
            return len(given) == 1
        if function is islice:
            return len(given) > 1 and all(map(is_settled, given[1:])) and self.walked(given[0])
        if function in (range, slice):
            return all(map(is_settled, given))
        if function is iter and len(given) != 1:
            return False
        if not all(self.walked(value) for value in given):
            return False
        if function in DICTS and any(type(value) is MappingProxyType for value in given):
            return False
        if function in DICTS and len(given) == 1 and type(given[0]) in ITEM_VIEWS:
            return all(is_settled(key) for key, _ in given[0])
        if id(function) in _COMPARING:
            return all(map(self.known, self._parts(given)))
        if function is sum:
            return all(type(part) in (Pending, *TENSORS) or self.known(part) for part in self._parts(given))
        return True

    def _parts(self, given: tuple[Any, ...]) -> list[Any]:
        parts: list[Any] = []
        for value in given:
            if type(value) in DICTS:
                parts.extend((*value.keys(), *value.values()))
            elif type(value) in (list, tuple, set, frozenset, MappingProxyType, *_KEYS_OR_VALUES):
                parts.extend(value)
            else:
                parts.append(value)
        return parts

    def _is_native_method(self, function: Any, given: tuple[Any, ...]) -> bool:
        owner, name = function.__self__, function.__name__
        if type(owner) is torch.device and self.trace.attempt is not None:
            self.trace.attempt()  # it enters a mode, which an attempt that is given up would not leave
        if isinstance(owner, ModuleType):
            return owner in (math, _operator) and all(map(self.known, given))
        kind = type(owner)
        if isinstance(owner, type):
            return self._is_native_maker(owner, name, given)
        if not (is_settled(owner) or kind in _CONTAINERS or kind in (tuple, frozenset)):
            return False
        if self.trace.place_of(owner) is None:
            return self._of_made(owner, name, given)
        if name not in _READS.get(kind, ()):
            return False
        self.trace.opened(owner)
        return True

    def _is_native_maker(self, owner: type, name: str, given: tuple[Any, ...]) -> bool:
        """A class method of a class of Python's own."""
        if owner is dict and name == "fromkeys" and given:
            keys = given[0]
            return type(keys) is range or (self.walked(keys) and all(map(self.known, self._parts((keys,)))))
        return owner in (int, float, str, bytes) and all(map(self.known, given))

    def _of_made(self, owner: Any, name: str, given: tuple[Any, ...]) -> bool:
        """Methods of a container that the call has made, or of a constant."""
        if type(owner) is list and name in ("append", "insert", "pop", "clear", "copy", "reverse"):
            return True
        if type(owner) in (*DICTS, defaultdict) and name in ("keys", "values", "items", "clear", "copy"):
            return True
        if type(owner) in DICTS and name in ("get", "pop", "setdefault"):
            return bool(given) and is_settled(given[0])
        if type(owner) is set and name in ("add", "discard") and len(given) == 1:
            return told_apart(self.trace, owner, given[0])
        if name in ("extend", "update"):
            return all(self.walked(value) for value in given) and not isinstance(owner, set)
        return all(map(self.known, given)) and (is_settled(owner) or self.known(owner))

    # what is answered here

    def type_of(self, *args: Any) -> Any:
        if len(args) != 1 or type(args[0]) is Pending:
            return torch.Tensor if len(args) == 1 else MISSING
        return self.trace.fixed(type(args[0]))

    def getattr_of(self, *args: Any) -> Any:
        if len(args) not in (2, 3) or type(args[1]) is not str:
            return MISSING
        try:
            return self.attributes.read(*args[:2])
        except AttributeError:
            if len(args) == 2:
                raise
            return args[2]

    def hasattr_of(self, *args: Any) -> Any:
        if len(args) != 2 or type(args[1]) is not str:
            return MISSING
        try:
            self.attributes.read(*args)
        except AttributeError:
            return False
        return True

    def get_of(self, container: Any, *args: Any) -> Any:
        """``container.get`` of a dictionary from outside."""
        if len(args) not in (1, 2) or not is_settled(args[0]):
            return MISSING
        found = self.trace.dict_item(container, args[0])
        return (args[1] if len(args) == 2 else None) if found is MISSING else found

    def isinstance_of(self, *args: Any) -> Any:
        if len(args) != 2:
            return MISSING
        value, wanted = args
        kinds = wanted if type(wanted) is tuple else (wanted,)
        if not all(isinstance(kind, type) for kind in kinds):
            return MISSING
        if self.attributes.has_reader(value):
            return self._is_by_reader(value, kinds)
        for kind in kinds:
            self._instance_facts(value, kind)
        return MISSING if self.trace.ended is not None else isinstance(value, kinds)

    def _is_by_reader(self, value: Any, kinds: tuple[type, ...]) -> bool:
        """``isinstance`` of an object whose class finds attributes in a way of its own, which is asked for the class.

        It is as often as Python asks it: once for each of ``kinds`` that is not decided without.
        """
        trace, of = self.trace, type(value)
        trace.class_entry(of, "__class__")
        for kind in kinds:
            meta = type(kind)
            abstract = trace.class_entry(meta, "__instancecheck__") is not type.__instancecheck__
            if of is kind or (not abstract and kind in of.__mro__):
                return True
            if abstract and (meta is not ABCMeta or not self._is_plainly_abstract(kind)):
                trace.end(f"whether something is a {kind.__qualname__} is asked of its metaclass")
                return isinstance(value, kinds[kinds.index(kind) :])
            try:
                told = self.attributes.read(value, "__class__")
            except AttributeError:
                if abstract:
                    raise
                continue
            if abstract and told is not of:
                trace.end("an object tells another class than it has")
                if issubclass(told, kind):
                    return True
            if abstract:
                note_kind(trace, value, kind)
            elif isinstance(told, type):
                trace.class_entry(told, "__class__")
            if issubclass(of, kind) if abstract else isinstance(told, type) and kind in told.__mro__:
                return True
        return False

    def _is_plainly_abstract(self, kind: type) -> bool:
        """Whether an abstract class tells by its registry, or as Python's own do, which classes count as it."""
        return kind.__module__ in ("collections.abc", "numbers") or (
            self.trace.class_entry(kind, "__subclasshook__") is vars(object)["__subclasshook__"]
        )

    def _instance_facts(self, value: Any, kind: type) -> None:
        """Note what decides whether ``value`` is an instance of ``kind``."""
        trace, meta = self.trace, type(kind)
        of_python = type(value).__flags__ & MADE_BY_PYTHON and type(value) not in (Pending, *TENSORS)
        if of_python and trace.class_entry(type(value), "__class__") is not vars(object)["__class__"]:
            trace.end("a class has a __class__ of its own")
        if issubclass(kind, torch.Tensor):
            checks = trace.class_entry(meta, "__instancecheck__")
            if type(checks) is FunctionType and not str(checks.__globals__.get("__name__")).startswith("torch."):
                trace.end(f"whether something is a {kind.__qualname__} is asked of its metaclass")
            if type(value) in TENSORS:
                for name in _MARKS_OF_KINDS:
                    self.attributes.bare(value, name)
            elif isinstance(value, torch.Tensor) and type(value) is not Pending:
                trace.end("it is asked which class a tensor has")
        elif trace.class_entry(meta, "__instancecheck__") is not type.__instancecheck__:
            place = trace.place_of(value)
            plain = meta is ABCMeta and self._is_plainly_abstract(kind)
            if (place is None or trace.effects) and plain and type(value) is not Pending:
                note_kind(trace, value, kind)
            elif place is None or trace.effects or not plain:
                trace.end(f"whether something is a {kind.__qualname__} is asked of its metaclass")
            else:
                trace.note("answer", (place,), (IsA(kind), isinstance(value, kind)))

    def len_of(self, *args: Any) -> Any:
        if len(args) == 1 and type(args[0]) in (Pending, *TENSORS):
            self.trace.class_entry(torch.Tensor if type(args[0]) is Pending else type(args[0]), "__len__")
            return len(args[0])
        if len(args) == 1 and type(args[0]) is MappingProxyType and self.trace.place_of(args[0]) is None:
            return len(args[0])
        if len(args) != 1 or type(args[0]) not in (list, tuple, set, *DICTS):
            return MISSING
        self.trace.length(args[0])
        return len(args[0])


def told_apart(trace: Trace, container: Any, value: Any) -> bool:
    """Whether it is known what decides that an object is in a container that the call has made: which it is.

    Objects from outside that are not the same one are noted to be apart.
    """
    if trace.place_of(container) is not None or id(container) in trace.containers:
        return False
    if type(container) not in (set, frozenset) and any(type(one) in TENSORS for one in (value, *container)):
        return False  # which are compared element by element
    if not all(is_settled(one) or _is_told_by_itself(trace, one) for one in (value, *container)):
        return False
    place = trace.place_of(value)
    if place is not None and type(value) in TENSORS:
        trace.apart.setdefault(id(container), (container, {}))[1][place.number] = place
    elif place is not None:
        for other in container:
            at = trace.place_of(other)
            if at is not None and other is not value and at.number != place.number:
                trace.note("apart", (place, at), None)
    return True


def _is_told_by_itself(trace: Trace, value: Any) -> bool:
    """Whether an object that is known, of a class of Python's, equals no other, whatever is in it."""
    kind = type(value)
    if trace.place_of(value) is None and not trace.is_made(value):
        return False
    if kind in TENSORS:
        return trace.class_entry(kind, "__hash__") is torch.Tensor.__hash__
    if not kind.__flags__ & MADE_BY_PYTHON or type(kind) is not type or kind is Pending:
        return False
    return all(trace.class_entry(kind, name) is vars(object)[name] for name in ("__hash__", "__eq__"))


_SPECIAL: dict[int, Callable[..., Any]] = {
    id(type): Calls.type_of,
    id(getattr): Calls.getattr_of,
    id(hasattr): Calls.hasattr_of,
    id(isinstance): Calls.isinstance_of,
    id(len): Calls.len_of,
}
