"""Functions that make objects whose end is noticed are Python's to run; names as read in torch 2.11 to 2.13."""

from __future__ import annotations

import dis
import functools
import gc
import threading
import weakref
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from torch._dynamo.exc import SkipFrame, unimplemented
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.side_effects import SideEffects
from torch._dynamo.source import AttrSource, GlobalStateSource, LocalCellSource, LocalSource
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.variables.base import AttributeMutationExisting, ValueMutationExisting
from torch._dynamo.variables.builder import VariableBuilder
from torch._dynamo.variables.functions import SkipFunctionVariable
from torch._dynamo.variables.misc import NewGlobalVariable, WeakRefVariable
from torch._dynamo.variables.user_defined import UserDefinedClassVariable
from torch._guards import Guard, Source

from lamina.capture.finalizers.ends import holds_nothing, is_noticed, values_replaced
from lamina.capture.guards.torch_private import add_check_of_call, expression, reader
from lamina.capture.log import CaptureLog
from lamina.capture.modes.torch_private import traced_function
from lamina.capture.trace_corrections.torch_private import compiles_for_lamina
from lamina.record import Record

__all__ = ["end_guards", "leave_finalizers_to_python", "noticed_end", "release_trace"]

_FINALIZER = "it makes an object of class {name}, whose __del__ runs when nothing refers to it any more"
_PROXY = "it uses a weak reference that raises when its object has ended"
_WEAK_REFERENCE = "it makes a weak reference that is told when an object ends"


def leave_finalizers_to_python() -> None:
    """Let Python run functions that make an object with ``__del__``, or a weak reference that notices an object's end.

    Dynamo makes an object for each one that it traces, whose ``__del__`` runs while it compiles; those that the
    program makes live as long as the call, or are never made. It calls no weak reference's function, and takes what
    one refers to to be there for ever.
    """
    wrap_any, refer_any = VariableBuilder._wrap, WeakRefVariable.build
    skip_any = SkipFunctionVariable.call_function
    track_any, call_any = SideEffects.track_new_user_defined_object, UserDefinedClassVariable.call_function

    @functools.wraps(track_any)
    def track(self: Any, base: Any, kind: Any, *args: Any, **kwargs: Any) -> Any:
        _leave_where_finalized(kind.value)
        return track_any(self, base, kind, *args, **kwargs)

    @functools.wraps(call_any)
    def call(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        _leave_where_finalized(self.value)
        if self.value is weakref.ref and args and (len(args) > 1 or args[0].source is None):
            _leave(_WEAK_REFERENCE)
        return call_any(self, tx, args, kwargs)

    @functools.wraps(wrap_any)
    def wrap(self: Any, value: Any) -> Any:
        if type(value) in weakref.ProxyTypes:
            _leave(_PROXY)
        return wrap_any(self, value)

    def refer(tx: Any, *args: Any, **kwargs: Any) -> Any:
        vars(tx.output)[_ASKED] = True
        return refer_any(tx, *args, **kwargs)

    @functools.wraps(skip_any)
    def skip(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.value is weakref.proxy:
            _leave(_PROXY)
        return skip_any(self, *args, **kwargs)

    SkipFunctionVariable.call_function = skip  # type: ignore[method-assign]
    VariableBuilder._wrap = wrap  # type: ignore[method-assign]
    WeakRefVariable.build = staticmethod(refer)  # type: ignore[method-assign]
    SideEffects.track_new_user_defined_object = track  # type: ignore[method-assign, assignment]
    UserDefinedClassVariable.call_function = call  # type: ignore[method-assign]


def _leave_where_finalized(kind: type) -> None:
    if isinstance(getattr(kind, "__del__", None), FunctionType):  # those of files are C's
        _leave(_FINALIZER.format(name=kind.__qualname__))


def _leave(why: str) -> None:
    """End the trace, if it is for Lamina: the function that it began with is Python's, with what it calls compiled."""
    tx = InstructionTranslator.current_tx()
    if not compiles_for_lamina(tx.output):
        return
    if tx.one_graph:
        unimplemented(
            gb_type="object whose end is noticed",
            context="__del__ or a weak reference",
            explanation=f"Something runs when an object ends: {why}",
            hints=["Make such objects outside of the compiled function"],
        )
    CaptureLog(Record()).run_by_python(traced_function(), why, True)
    raise SkipFrame(why)


_left = threading.local()
"""``noticed``: whether the trace that ended last in this thread was given up for such an object."""


def release_trace() -> None:
    """Free a trace that was given up for an object whose end is noticed, and whose own cycles hold that object."""
    if getattr(_left, "noticed", False):
        _left.noticed = False
        gc.collect()


_ASKED = "lamina_weak_references"
"""Attribute of a trace's output: that the program has weak references of its caller's."""


@dataclass(frozen=True)
class _Place:
    """Where something that the caller made may end while the function runs.

    It is the value at ``source`` where ``whole``, else what this value holds: attributes of these ``names``, or all of
    it if there are none.
    """

    source: Source
    names: tuple[str, ...] = ()
    whole: bool = False

    def values(self, found: Any) -> list[object]:
        """What may end of the value that was ``found`` at the source."""
        return [found] if self.whole else values_replaced(found, self.names or None)


def _places(tx: Any) -> Iterator[tuple[_Place, Any]]:
    """The places, with what is at each now: arguments that change, and what the trace writes to."""
    for step in dis.get_instructions(tx.f_code):
        if step.opname in ("STORE_FAST", "DELETE_FAST") and step.argval in tx.f_locals:
            yield _Place(LocalSource(step.argval), whole=True), tx.f_locals[step.argval]
    effects = tx.output.side_effects
    items = {id(item): item for item in effects.keepalive}
    for key, variable in effects.id_to_variable.items():
        existed = isinstance(variable.mutation_type, (AttributeMutationExisting, ValueMutationExisting))
        if not existed or variable.source is None or not effects.is_modified(variable):
            continue
        names = tuple(effects.store_attr_mutations.get(variable, ()))
        if isinstance(variable, NewGlobalVariable):
            yield _Place(variable.source, whole=True), tx.f_globals.get(getattr(variable.source, "global_name", ""))
        elif isinstance(variable.source, LocalCellSource):
            held = LocalSource(variable.source.local_name, is_derefed_cell_contents=True)
            yield _Place(held, whole=True), next(iter(gc.get_referents(items[key])), None)
        elif key in items:
            yield _Place(variable.source, names), items[key]


def noticed_end(tx: Any) -> str:
    """Why the trace may be wrong: it lets something of the caller's end that is noticed; "" if it does not.

    The compiled function writes what it changes when it is at its end.
    """
    asked = _ASKED in vars(tx.output)
    for place, found in _places(tx):
        if is_noticed(place.values(found), asked):
            _left.noticed = True
            return "an object may end while it runs that has a method __del__ or a weak reference that is told"
    return ""


def end_guards(tx: Any, guarded: Collection[Source]) -> list[Guard]:
    """The guard on what ``noticed_end`` has found, if other calls may have something else there."""
    asked = _ASKED in vars(tx.output)
    places = [place for place, found in _places(tx) if not _is_known(place, found, guarded)]
    return [Guard(GlobalStateSource(), functools.partial(_guard_ends, places, asked))] if places else []


def _is_known(place: _Place, found: Any, guarded: Collection[Source]) -> bool:
    """Whether other guards tell that all there holds nothing: such values are guarded by their class."""
    if not all(map(holds_nothing, place.values(found))):
        return False
    if place.whole:
        return place.source in guarded
    return bool(place.names) and all(AttrSource(place.source, name) in guarded for name in place.names)


def _guard_ends(places: Sequence[_Place], asked: bool, builder: GuardBuilder, guard: Guard) -> None:
    places = [place for place in places if _is_readable(builder, place.source)]
    if not places:
        return
    read = reader(builder, [expression(place.source) for place in places])

    def check(scope: Any) -> bool:
        values = [value for place, found in zip(places, read(scope), strict=True) for value in place.values(found)]
        return not is_noticed(values, asked, within_modules=False)  # at each call

    add_check_of_call(builder, guard, check, "objects whose end is noticed")


def _is_readable(builder: GuardBuilder, source: Source) -> bool:
    """Whether guards can read what is at ``source``: they cannot read open modes, and variables not yet set."""
    try:
        builder.get(source)
    except (NotImplementedError, LookupError, AttributeError):
        return False
    return True
