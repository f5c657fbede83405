"""A callable whose calls are interpreted once for all those that read the same, its computations in compiled graphs."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch.fx import GraphModule, Node

from lamina.base.collector import collector_held
from lamina.base.decision import Decision
from lamina.capture.frame_reasons import BY_DYNAMO, HANDED_ON, NOT_WANTED, OTHER_STATE
from lamina.capture.module import is_transparent, original_of, transparent
from lamina.capture.own.compiler_marks.torch_private import seen_by_dynamo
from lamina.capture.own.frame import MISSING, NotBegun
from lamina.capture.own.guards.library import Library
from lamina.capture.own.reuse.conditions import Names
from lamina.capture.own.reuse.driver import Driver, Miss, cannot_tell
from lamina.capture.own.reuse.kinds import errors_kept
from lamina.capture.own.reuse.versions import Versions
from lamina.capture.own.torch_private import in_ordinary_state
from lamina.capture.printed_name import name_compiled
from lamina.capture.stance.torch_private import (
    SWITCHED_OFF,
    compiling_is_switched_off,
    stance_in_words,
    under_stances,
    uses_what_is_compiled,
)
from lamina.record import Record

__all__ = ["interpreted_callable", "interprets"]

Backend = Callable[[GraphModule, Sequence[Any]], Callable[..., Any]]


class Store(Protocol):
    """What other processes have stored of the calls of one callable, and what is to be stored for others."""

    waiting: list[Driver]

    def found(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Driver, Callable[[], Any]] | None: ...
    def wait(self, driver: Driver) -> None: ...
    def left(self) -> None: ...
    def keep(self) -> None: ...


def _as_traced(node: Node, laid_out: bool) -> bool:
    """No call gives something else than tracing tells."""
    return False


def _no_machine() -> None:
    """No guard machine: facts are asked in Python."""


def interpreted_callable(
    target: Any,
    *,
    backend_callable: Backend,
    record: Record,
    fullgraph: bool = False,
    machine: Callable[[], Library | None] = _no_machine,
    attributes: Mapping[str, object] = MappingProxyType({}),
    dynamic: bool | None = None,
    store: Callable[[Any], Store | None] = lambda target: None,
    disabled: bool = False,
    other_in_eager: Callable[[Node, bool], bool] = _as_traced,
    keeps: bool = False,
    by_dynamo: Callable[[Any], Any] | None = None,
) -> Any:
    """``target``, a function, method or module, with the graphs of its torch calls compiled by ``backend_callable``.

    A call is interpreted, and what it reads is noted; a later one for which all of that is the same runs the same
    graphs and writes. What comes back has the ``attributes``. With ``fullgraph`` a call raises ``GraphBroken`` where it
    would end its graph before it returns; what it has done to the program's objects until then stays done. ``machine``
    gives the guard machine that asks facts, if there is one. With ``dynamic`` false each graph is compiled for its own
    integers; if it is true, sizes of tensors are inputs from the first graph on. ``store`` gives where the calls of a
    target are stored, if anywhere. ``disabled``: the environment switches torch's compilers off.
    ``other_in_eager`` says of a call whether tracing tells another type or rank of its results than it gives or, if
    that is asked, other strides. ``keeps``: ``backend_callable`` keeps what is computed of parameters and buffers
    alone. ``by_dynamo`` compiles a target that has calls which only Dynamo captures: it makes all later ones.
    """
    entry_of = partial(
        _Entry,
        backend=backend_callable,
        record=record,
        fullgraph=fullgraph,
        machine=machine,
        dynamic=dynamic,
        store=store,
        disabled=disabled,
        other_in_eager=other_in_eager,
        keeps=keeps,
        by_dynamo=by_dynamo,
    )
    if isinstance(target, torch.nn.Module):
        module = original_of(target) if is_transparent(target) else target
        return transparent(module, lambda original: _call_of(entry_of(original)), attributes)
    compiled = _call_of(entry_of(target))
    for name in ("__name__", "__doc__", "__module__"):
        if hasattr(target, name):
            setattr(compiled, name, getattr(target, name))
    compiled.__dict__.update(attributes, __wrapped__=target)
    return name_compiled(compiled, target)


def interprets(target: Any, record: Record) -> bool:
    """Whether this front end does what is asked for; why not is noted in ``record``."""
    if isinstance(target, type):
        why = "a class is compiled"
    elif isinstance(target, torch.jit.ScriptModule):
        why = "it is a TorchScript module"
    else:
        return True
    name = str(getattr(target, "__name__", type(target).__name__))
    record.note("", "capture", Decision("capture", (name,), False, BY_DYNAMO(why=why)))
    return False


def _call_of(entry: _Entry) -> Any:
    """A function that makes the calls of ``entry``: what it does costs each of them."""
    return seen_by_dynamo(under_stances(entry.versions, entry.called, entry.uncompiled, MISSING), entry.target)


class _Entry:
    """Calls of one target."""

    def __init__(
        self,
        target: Any,
        backend: Backend,
        record: Record,
        fullgraph: bool,
        machine: Callable[[], Library | None],
        dynamic: bool | None,
        store: Callable[[Any], Store | None],
        disabled: bool,
        other_in_eager: Callable[[Node, bool], bool],
        keeps: bool,
        by_dynamo: Callable[[Any], Any] | None,
    ) -> None:
        self.keeps, self.by_dynamo = keeps, by_dynamo
        self.handed: Any = None
        self.disabled, self.other_in_eager = disabled, other_in_eager
        self.target, self.backend, self.record, self.fullgraph = target, backend, record, fullgraph
        self.dynamic = dynamic
        self.noted: set[str] = set()
        name = getattr(target, "__name__", type(target).__name__)
        self.subject = (str(name),)
        self.versions = Versions(self.subject, record, machine, Names.of(target))
        self.interpreting: Any = None
        self.store: Store | None = None
        with record.harmless("capture"):
            self.store = store(target)
        if self.store is not None:
            atexit.register(_kept_at_exit, weakref.ref(self.store))

    def called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a call gives for which the first driver is not, as far as the guard machine can tell."""
        if self.store is not None and self.store.waiting:
            with self.record.harmless("capture"):
                self.store.keep()
            found = self.versions.with_machine(args, kwargs)
            if found is not MISSING:
                return found
        found = self.versions.quick(args, kwargs)
        if found is not MISSING:
            return found
        if not in_ordinary_state():
            self._note("state", Decision("capture", self.subject, False, OTHER_STATE()))
            return self.target(*args, **kwargs)
        if compiling_is_switched_off(self.disabled):
            return self._by_python(SWITCHED_OFF, args, kwargs)
        found = self.versions.run(args, kwargs)
        if found is not MISSING:
            return found
        if self.handed is not None:
            return self.handed(*args, **kwargs)
        with errors_kept():
            found = self._stored(args, kwargs)
            return self._interpreted(args, kwargs) if found is MISSING else found

    def uncompiled(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a call gives under a stance in which nothing is compiled."""
        stance = stance_in_words()
        if uses_what_is_compiled():
            for ask in (self.versions.first, self.versions.quick):
                found = ask(args, kwargs)
                if found is not MISSING:
                    return found
            found = self.versions.run(args, kwargs) if in_ordinary_state() else MISSING
            if found is not MISSING:
                return found
        return self._by_python(f"the stance of torch.compile is {stance}", args, kwargs)

    def _by_python(self, why: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the target gives, which is not compiled since the user does not want that."""
        self._note(why, Decision("capture", self.subject, False, NOT_WANTED(why=why)))
        return self.target(*args, **kwargs)

    def _stored(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the call gives if it was stored by another process, else ``MISSING``."""
        while self.store is not None:
            found = None
            with self.record.harmless("capture"), collector_held(lasting=True):
                found = self.store.found(args, kwargs)
            if found is None:
                break
            driver, run = found
            self.versions.take(driver)
            result = run()
            if type(result) is not Miss:
                return result
        return MISSING

    def _interpreted(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.interpreting is None:
            self.interpreting = import_module("lamina.capture.own.interpreting").Interpreting(
                self.target,
                self.subject,
                self.backend,
                self.record,
                self.fullgraph,
                self.dynamic,
                self.versions,
                self.other_in_eager,
                self.keeps,
            )
            self.interpreting.hands_on = self.by_dynamo is not None
        try:
            result = self.interpreting.call(args, kwargs)
        except NotBegun:
            self._hand_on()
            return self.handed(*args, **kwargs)
        self._hand_on()
        made, self.interpreting.made = self.interpreting.made, []
        if self.store is not None:
            for driver in made:
                self.store.wait(driver)
                self.versions.first = cannot_tell  # the next call stores it
            if not made:
                with self.record.harmless("capture"):
                    self.store.left()
        return result

    def _hand_on(self) -> None:
        """Have Dynamo capture the calls for which there is no version, if one was met that only Dynamo captures."""
        what = self.interpreting.regions.others
        if what and self.by_dynamo is not None and self.handed is None:
            self.handed = self.by_dynamo(self.target)
            self._note("handed on", Decision("capture", self.subject, True, HANDED_ON(what=what)))

    def _note(self, name: str, decision: Decision) -> None:
        if name not in self.noted:
            self.noted.add(name)
            self.record.note("", decision.kind, decision)


def _kept_at_exit(store: weakref.ref[Store]) -> None:
    """Store what waits for it when the process ends."""
    found = store()
    if found is not None:
        found.keep()
