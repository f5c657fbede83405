"""The trace of one interpreted call: what it read, what it ran, what it wrote, and what it gave."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

import torch

from lamina.base.class_flags import MADE_BY_PYTHON
from lamina.base.modes import autocast_depth
from lamina.base.torch_private import is_leaf
from lamina.capture.own.frame import MISSING
from lamina.capture.own.pending import Pending
from lamina.capture.own.reuse.ahead import note_apart
from lamina.capture.own.reuse.facts import Facts, Place, called, constant_key, is_settled
from lamina.capture.own.reuse.gradients import Gradients
from lamina.capture.own.reuse.learning import DICTS, Learning
from lamina.capture.own.reuse.values import entry_of
from lamina.capture.own.torch_private import is_plain, unseen

__all__ = ["DICTS", "TENSORS", "Effect", "Trace", "entry", "let_go", "looks_but_for_sizes", "tensor_look"]

TENSORS = (torch.Tensor, torch.nn.Parameter)
_FIXED = (
    MethodDescriptorType, WrapperDescriptorType, ClassMethodDescriptorType, GetSetDescriptorType, MemberDescriptorType,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Effect:
    """A write: ``function(target, *operands)`` on an object that was there before the call."""

    function: Callable[..., Any]
    target: Any
    operands: tuple[Any, ...]


class Trace:
    """What a call does, as far as it can be done again by what it says; ``ended`` says why it cannot, if so.

    ``where`` gives the user's line in progress, ``varying`` names places whose numbers are others in each call,
    ``sizes`` knows tensors whose sizes are.
    """

    def __init__(self, where: Callable[[], str], state: tuple[Any, ...], varying: frozenset[str] = frozenset()) -> None:
        self.where, self.state, self.varying = where, state, varying
        self.learning = Learning(self)
        self.gradients = Gradients(self)
        self.facts = Facts()
        self.ended: str | None = None
        self.effects: list[Effect] = []
        self.known: dict[int, tuple[Any, Place]] = {}
        self.made: dict[int, Any] = {}
        self.changed: set[tuple[int, Any]] = set()
        self.containers: dict[int, Any] = {}
        self.looked: dict[tuple[int, str], Any] = {}
        self.views: dict[type, Any] = {}
        self.sizes: Any = None
        self.apart: dict[int, tuple[Any, dict[int, Place]]] = {}
        self.given: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
        self._entered: set[int] = set()
        self._depth = autocast_depth()
        self.attempt: Callable[[], None] | None = None
        """What is asked before something is done that cannot be taken back, where a function is only tried."""

    def end(self, why: str) -> None:
        """Nothing is noted any more: a later call is interpreted again."""
        if self.attempt is not None:
            self.attempt()
        if self.ended is None:
            self.ended = f"{why} ({self.where()})" if self.where() else why
            let_go(self)

    def begin(
        self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Note what the call is given; gives it with copies of what varies."""
        self.given = args, kwargs
        self.fixed(target)
        self.note("state", (), self.state)
        self.note("arguments", (), (len(args), tuple(kwargs)))
        given = tuple(self.enter(value, self.facts.place("argument", None, at)) for at, value in enumerate(args))
        return given, {name: self.enter(v, self.facts.place("keyword", None, name)) for name, v in kwargs.items()}

    def finish(self, state: tuple[Any, ...]) -> None:
        """The call has returned in a ``state`` of torch; note what its writes rest on."""
        self.given = (), {}
        if state != self.state or autocast_depth() != self._depth:
            self.end("the call leaves another state of torch than it found")
        note_apart(self)
        for _, places in self.apart.values():
            if len(places) > 1:
                self.note("distinct", (*places.values(),), None)
        self.apart.clear()
        for changed in list(self.containers.values()):
            place = self.place_of(changed)
            for other, at in list(self.known.values()):
                alike = type(other) is type(changed) and other is not changed
                if place is not None and alike and at.number != place.number:
                    self.note("apart", (place, at), None)

    def note(self, kind: str, places: tuple[Place, ...], value: Any) -> None:
        """Note a fact with the line in progress."""
        if self.ended is None:
            self.facts.note(kind, places, value, self.where())

    def place_of(self, value: Any) -> Place | None:
        """Where an object was found; None for one that the call has made."""
        found = self.known.get(id(value))
        return None if found is None else found[1]

    def fixed(self, value: Any, name: str = "") -> Any:
        """``value``, an object that is the same one in all calls for which the facts hold."""
        if not is_settled(value) and id(value) not in self.known:
            place = self.facts.place("object", None, value, name or called(value) or type(value).__name__)
            self.known[id(value)] = value, place
            self._note_class(value, place)
        return value

    def _note_class(self, value: Any, place: Place) -> None:
        """Note the class of an object that is always the same one, if its class can be replaced."""
        kind = type(value)
        if kind is ModuleType or kind.__flags__ & MADE_BY_PYTHON:
            self.note("type", (place,), kind)

    def enter(self, value: Any, place: Place, whole: bool = False) -> Any:
        """``value``, which was found at ``place``; with ``whole`` the program may read it by itself."""
        if self.ended is not None or place.number in self._entered:
            return value
        if not whole and self.varying and type(value) in (float, int) and str(place) in self.varying:
            return self.learning.vary(value, place)
        self._entered.add(place.number)
        if is_settled(value):
            self.note("constant", (place,), value)
            return value
        if id(value) in self.known:
            if isinstance(value, (type, ModuleType)) or _is_fixed(value):
                self.note("is", (place,), value)
            else:
                self.note("same", (place, self.known[id(value)][1]), None)
            return value
        self._entered_anew(value, place)
        return value

    def _entered_anew(self, value: Any, place: Place) -> None:
        kind = type(value)
        if issubclass(kind, type) or kind is ModuleType or _is_fixed(value):
            self.note("is", (place,), value)
            self.known[id(value)] = value, place
            self._note_class(value, place)
            return
        if kind is Pending or self.is_made(value) or id(value) in self.learning.results:
            self.end("an object that the call has made is read from outside")
            return
        self.note("type", (place,), kind)
        self.known[id(value)] = value, place
        if kind in TENSORS:
            with unseen():
                look = tensor_look(value) if is_plain(value) else None
            if look is None:
                self.end("a tensor is of an unusual kind")
            else:
                kind_of_fact, told = ("look", look) if self.sizes is None else self.sizes.look(value, place, look)
                self.note(kind_of_fact, (place,), told)

    def child(self, owner: Any, how: str, key: Any, value: Any, whole: bool = False) -> Any:
        """``value``, which is the attribute or item ``key`` of ``owner``; ``whole`` as above."""
        place = self.place_of(owner)
        if place is None or (id(owner), constant_key(key)) in self.changed:
            return value
        return self.enter(value, self.facts.place(how, place, key), whole)

    def dict_item(self, container: Any, key: Any) -> Any:
        """``container[key]`` of a dictionary, ``MISSING`` if it has none."""
        found = container.get(key, MISSING)
        if found is not MISSING:
            return self.child(container, "item", key, found)
        place = self.place_of(container)
        if place is not None and (id(container), constant_key(key)) not in self.changed:
            self.note("absent", (place,), key)
        return MISSING

    def attribute_of(self, owner: Any, name: str) -> Any:
        """An attribute that C code of Python's gives without asking anybody."""
        return self.child(owner, "attribute", name, getattr(owner, name))

    def opened(self, container: Any) -> None:
        """Note what is in a list, tuple or dictionary from outside, and in which order."""
        place = self.place_of(container)
        if place is None or self.ended is not None:
            return
        if id(container) in self.containers:
            self.end("a container is read as a whole after it was written to")
        elif type(container) in DICTS:
            if not all(is_settled(key) and type(key) in (str, int) for key in container):
                self.end("a dictionary has keys other than texts and integers")
                return
            self.note("keys", (place,), tuple(container))
            for key, value in list(container.items()):
                self.child(container, "item", key, value, whole=True)
        elif type(container) in (list, tuple):
            self.note("length", (place,), len(container))
            for at, value in enumerate(container):
                self.child(container, "item", at, value, whole=True)
        else:
            self.end(f"a {type(container).__name__} is read as a whole")

    def length(self, container: Any) -> None:
        """Note the length of a container from outside."""
        place = self.place_of(container)
        if place is None:
            return
        if id(container) in self.containers:
            self.end("a container is read as a whole after it was written to")
        self.note("length", (place,), len(container))

    def class_entry(self, kind: type, name: str) -> Any:
        """What a class or a base of it has under ``name``, not bound; ``MISSING`` if there is nothing."""
        key = (id(kind), name)
        if key in self.looked:
            return self.looked[key]
        found = self.searched(kind, kind.__mro__, name)
        if kind in TENSORS and type(found) is FunctionType and (place := self.place_of(found)) is not None:
            self.note("is", (place,), found)  # torch calls it, and nobody enters it
        self.looked[key] = found
        return found

    def searched(self, kind: type, bases: tuple[type, ...], name: str) -> Any:
        """The same in some of the bases of ``kind``."""
        if kind.__flags__ & MADE_BY_PYTHON:
            self.fixed(kind)
            order = self.facts.place("attribute", self.known[id(kind)][1], "__mro__")
            self.note("is", (order,), kind.__mro__)
        for base in bases:
            entries = vars(base)
            written = base.__flags__ & MADE_BY_PYTHON
            if written:
                label = f"vars({base.__qualname__})"
                place = self.facts.place("object", None, self._view(base), label)
                self.known.setdefault(id(self._view(base)), (self._view(base), place))
            if name in entries:
                return self.child(self._view(base), "item", name, entries[name]) if written else entries[name]
            if written:
                self.note("absent", (place,), name)
        return MISSING

    def _view(self, kind: type) -> Any:
        """What a class has of its own, the same object each time."""
        found = self.views.get(kind)
        if found is None:
            found = self.views[kind] = vars(kind)
        return found

    def remember(self, value: Any) -> Any:
        """``value``, an object that the call has just made and that somebody may take for one from outside."""
        if self.ended is None:
            try:
                self.made[id(value)] = weakref.ref(value)
            except TypeError:
                self.made[id(value)] = lambda: value
        return value

    def is_made(self, value: Any) -> bool:
        """Whether the call has made ``value``."""
        found = self.made.get(id(value))
        return found is not None and found() is value

    def effect(self, function: Callable[..., Any], target: Any, operands: tuple[Any, ...], at: Any, key: Any) -> None:
        """A write to ``at[key]``, which is what the write to ``target`` changes; before it is done."""
        if self.attempt is not None:
            self.attempt()
        self.effects.append(Effect(function, target, operands))
        self.changed.add((id(at), constant_key(key)))
        self.containers[id(at)] = at


def let_go(trace: Trace) -> None:
    """Have a trace hold nothing of its call any more: its parts lead to each other, and wait for the collector."""
    trace.learning.clear()
    trace.gradients.clear()
    trace.apart.clear()
    trace.effects.clear()
    trace.known.clear()
    trace.made.clear()
    trace.containers.clear()
    trace.given = (), {}


def entry(trace: Trace, container: Any, key: Any) -> Any:
    """``container[key]`` of a dictionary, for a tensor as the key, which is told by its identity; ``MISSING`` if none.

    The trace ends where it is not known which tensor that is.
    """
    places = (trace.place_of(container), trace.place_of(key))
    by_identity = trace.class_entry(type(key), "__hash__") is torch.Tensor.__hash__
    if None in places or id(container) in trace.containers or not by_identity:
        trace.end("it is not known which key of a dictionary is asked for")
        return container.get(key, MISSING)
    return trace.enter(dict.get(container, key, MISSING), trace.facts.place("computed", None, (entry_of, *places)))


def tensor_look(t: torch.Tensor) -> Any:
    """What the fact about a tensor says: (dtype, device, sizes, strides, offset, requires_grad, leaf, conj, neg,
    inference).
    """
    return (
        t.dtype, t.device, tuple(t.shape), t.stride(), t.storage_offset(), t.requires_grad, is_leaf(t), t.is_conj(),
        t.is_neg(), t.is_inference(),
    )  # fmt: skip


def looks_but_for_sizes(look: Any, found: Any, positions: Sequence[int]) -> Any:
    """``look`` with what ``found``, another one, has at some positions among its sizes and strides."""
    rank = len(look[2])
    if len(found[2]) != rank:
        return look
    numbers, others = [*look[2], *look[3]], (*found[2], *found[3])
    for at in positions:
        numbers[at] = others[at]
    return (*look[:2], tuple(numbers[:rank]), tuple(numbers[rank:]), *look[4:])


def _is_fixed(value: Any) -> bool:
    """Whether ``value`` is a function of C's, or an entry of a class of C's, which cannot change."""
    if type(value) is BuiltinFunctionType:
        return value.__self__ is None or isinstance(value.__self__, (ModuleType, type))
    return issubclass(type(value), _FIXED)
