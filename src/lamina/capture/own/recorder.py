"""Records calls of torch's into a graph, and runs the graph where somebody needs what it computes."""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

import torch
from torch.fx import Node
from torch.overrides import TorchFunctionMode

from lamina.base.captured import MODULES
from lamina.base.drawing import call_may_draw
from lamina.base.torch_private import is_functional
from lamina.capture.modes.handlers import looks_at_values
from lamina.capture.own.checkpoints.torch_private import mark_checkpointed
from lamina.capture.own.fakes import NotHeld, Stale
from lamina.capture.own.flushing import flush
from lamina.capture.own.frame import MISSING, Unhandled
from lamina.capture.own.fused_layers import layer_of
from lamina.capture.own.kept_casts import KeptCasts
from lamina.capture.own.looking_ahead import looked_ahead
from lamina.capture.own.nested import flat, frozen, mapped, tensors
from lamina.capture.own.noting import escaped, is_size, looks, pin, pin_sizes, with_numbers
from lamina.capture.own.pending import Pending, lost, pending
from lamina.capture.own.places import by_interpreter
from lamina.capture.own.regions import Regions
from lamina.capture.own.reuse.remade import remade
from lamina.capture.own.reuse.values import is_read
from lamina.capture.own.saved_tensors.torch_private import hooks_on_saved_tensors
from lamina.capture.own.segment import Segment, is_quiet, writes_to_outside
from lamina.capture.own.torch_calls import (
    IDENTITY,
    QUERIES,
    cause_of_operands,
    in_place,
    name_of,
    recordable,
    target_of,
    writes_to_list,
)
from lamina.capture.own.torch_private import (
    LAYERS,
    SET_GRAD,
    as_plain_tensors,
    autocast_states,
    out_of_inference_mode,
    without_function_modes,
)
from lamina.capture.own.training.calls import answered
from lamina.capture.own.writing import NORMS, is_elementwise_write, overlaps_itself, part_at, written_by

__all__ = ["Recorder", "leave"]

_TORCH = os.path.dirname(torch.__file__) + os.sep
_NO_FILE = os.sep * 2
"""How the name of no file begins."""


_OF_ONE_ELEMENT = frozenset(("item", "__bool__", "__int__", "__float__", "is_nonzero"))
"""Questions for values that raise for tensors of more elements than one."""


class _Apart(Exception):
    """A call that may raise what the program handles follows a write to what was there before the graph, or ``writes``
    to that itself.
    """

    def __init__(self, writes: bool) -> None:
        self.writes = writes


class _Broken(Unhandled):
    """Ends a call whose graph would end before it does."""


class Recorder(TorchFunctionMode):
    """A function mode: what is called under it becomes nodes of a graph, whose results are pending tensors.

    ``place`` gives the user's line, as a stack trace of it, for each node. ``handled`` is asked where a call may raise
    for what is in its operands: whether the program may catch that, and then whether it ``goes_on``. ``left``: the
    program has entered modes of its own, so that nothing is recorded. ``unbegun``: nothing was written to before a
    call that only Dynamo captures; ``hands_on``: such a call ends then. With ``whole`` what cannot be recorded ends
    the call: ``broken`` says what it is. ``unhandled`` is the class of what has ended a graph, and is to end the call
    even if native code handles it. ``modules`` gives the modules that compute, as Dynamo notes them, for a model.
    ``held`` says of inputs whether a module has them, if results of such are kept. ``trace`` is told of graphs that
    run and of calls that do not go into one, ``told`` of what ends a graph; ``seen`` counts the calls that came here.
    """

    cause = ""
    """Why the last call could not be recorded, where more than its name tells (``reasons.OWN_CAUSES``)."""

    def __init__(
        self,
        regions: Regions,
        place: Callable[[], str],
        handled: Callable[[], bool],
        goes_on: Callable[[], bool],
        whole: bool = False,
    ) -> None:
        super().__init__()
        self.regions, self.place, self.handled, self.goes_on, self.whole = regions, place, handled, goes_on, whole
        self.hooks = hooks_on_saved_tensors()
        self.casts = KeptCasts()
        self.broken = ""
        self.unhandled: type[Unhandled] | None = None
        self.segment: Segment | None = None
        self.left = self.flushed = self.unbegun = self.hands_on = False
        self.trace: Any = None
        self.attempt: Any = None
        self.region = self.regions_entered = 0
        self.modules: Callable[[], dict[str, Any]] | None = None
        self.held: Callable[[torch.Tensor], bool] | None = None
        self.told: Callable[[str, str], None] | None = None
        self.seen = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = name_of(func)
        self.seen += 1
        if func is SET_GRAD:
            return self._set_grad(args)
        if name in IDENTITY:
            with as_plain_tensors():
                return func(*args, **kwargs)
        if self.attempt is not None:
            self.attempt.asked(func, args, kwargs)
        if name in QUERIES:
            pin(self.trace, args, kwargs)
            if name == "stride" and any(type(t) is Pending and min(t.shape, default=2) < 2 for t in args):
                self.flush()  # strides of such dimensions are what the computation makes of them
            found = func(*mapped(args, looks), **mapped(kwargs, looks))
            return self._told(name, args, kwargs, found, sys._getframe(1))
        found = answered(self, func, args, kwargs, sys._getframe(1))
        if found is not MISSING:
            return found
        if self.trace is not None and self.trace.learning.values:
            func, args, kwargs = with_numbers(self.trace, func, args, kwargs)
        self.cause = ""
        if recordable(func, args, kwargs, Pending) and by_interpreter(sys._getframe(1), _TORCH):
            layer = layer_of(func, args, mapped(args, looks)) if func in LAYERS and not kwargs else None
            found = self.recorded(func, args, kwargs) if layer is None else self._by_calls(layer)
            if found is not None:
                return found[0]
        self.end(name or str(func), always=True, cause=self.cause or cause_of_operands(flat((args, kwargs))))
        self.regions.native += 1
        pin(self.trace, args, kwargs)
        if name not in _OF_ONE_ELEMENT:
            pin_sizes(self.trace)
        if self.trace is not None and is_read(func, args, kwargs):
            found = func(*args)
            self.trace.learning.learn(func, args, found)
            return found
        again = None if self.trace is None else remade(func, args, kwargs)
        if again is not None:
            found = func(*args)
            self.trace.learning.called(again, args, {}, found, (torch.is_grad_enabled(), autocast_states()))
            return found
        self.casts.note(flat((args, kwargs)), torch.is_grad_enabled(), autocast_states())
        if self.trace is not None and self.trace.gradients.computes(func, args, kwargs):
            return self.trace.gradients.computed(func, args, kwargs)
        self.escaped(name)
        return func(*args, **kwargs)

    def _told(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], found: Any, frame: FrameType) -> Any:
        """What a question about a tensor is answered, whose answer in this call is ``found``."""
        if self.trace is None or self.trace.sizes is None:
            return found
        if kwargs or not args or not by_interpreter(frame, _NO_FILE):
            pin_sizes(self.trace)
            return found
        return self.trace.sizes.told(name, args, found, self.segment)

    def _by_calls(self, layer: Callable[[Callable[..., Any]], Any]) -> tuple[Any] | None:
        """What a layer gives whose calls the graph holds; None if it cannot hold one of them."""
        pin_sizes(self.trace)

        def call(func: Any, *args: Any) -> Any:
            found = self.recorded(func, args, {})
            if found is None:
                raise NotHeld(self.cause)
            return found[0]

        try:
            return (layer(call),)
        except NotHeld:
            return None

    def escaped(self, name: str) -> None:
        """What ``name`` says uses tensors outside of graphs, or may do whatever it likes."""
        escaped(self.trace, name)

    def end(
        self,
        what: str,
        always: bool = False,
        given: Iterable[torch.Tensor] = (),
        cause: str = "",
        computes: bool = False,
    ) -> None:
        """Run what is recorded, since ``what`` cannot be; raises ``_Broken`` if the whole call is to be one graph.

        Where nothing is recorded yet, it ends no graph, unless it is one that ``always`` does; it is told all the same
        where it is given tensors or ``computes`` with others. ``cause`` says more than the name of the call, as above.
        """
        tensors = list(given)
        if self.attempt is not None:
            self.attempt.refuse()
        if self.whole and (always or self.segment is not None):
            self.broken = self.broken or f"{what} ({self.place().strip()})"
            raise _Broken(self.broken)
        if self.told is not None and (always or computes or tensors or self.segment is not None):
            self.told(what, cause or cause_of_operands(tensors))
        self.flush()

    def _set_grad(self, args: tuple[bool]) -> None:
        """Switch the grad mode: within a graph if there is one."""
        if self.segment is not None and args[0] != torch.is_grad_enabled():
            with self.segment:
                self._node("call_function", SET_GRAD, tuple(args), {})
                self.segment.switches = True
        SET_GRAD(*args)

    def recorded(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any] | None:
        """The pending result of a call that the graph holds now; None if it cannot hold it."""
        if kwargs.get("requires_grad") or hooks_on_saved_tensors() != self.hooks:
            return None
        if self.segment is not None and self.segment.state[1] != autocast_states():
            self.end("a call in another state of autocast", always=True)
        if (
            self.watching
            and self.segment is not None
            and writes_to_outside(self.segment, written_by(func, args, kwargs))
        ):
            self.settle()  # what raises does so before the write
        segment = self.segment or Segment(self.regions.fakes(), self.held)
        if func is torch.full and kwargs.get("dtype") is torch.bool and len(args) == 2 and type(args[1]) is bool:
            args = args[0], int(args[1])  # one graph for both: what it is full of may be an input
        try:
            with segment, out_of_inference_mode():
                return self._put_into(segment, func, args, kwargs)
        except Stale:
            return None
        except _Apart as apart:
            if apart.writes:
                return None
            self.end("a call that may raise what the program handles, after a write")
            return self.recorded(func, args, kwargs)

    def _put_into(
        self, segment: Segment, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any] | None:
        """The same, which a graph is going to hold."""
        fake_args, fake_kwargs = mapped(args, tensors(segment.fake_of)), mapped(kwargs, tensors(segment.fake_of))
        written = written_by(func, args, kwargs)
        # What an operator of the program's does beside computing would be done twice as draws would.
        draws = call_may_draw(name_of(func), args, kwargs) or is_functional(func)
        self._refuse_in_attempt(bool(written) and not segment.owns(written), draws)
        records = (
            bool(written)
            and name_of(func) not in NORMS
            and torch.is_grad_enabled()
            and any(t.requires_grad for t in flat((fake_args, fake_kwargs)))
        )
        if any(type(target) is not Pending and (records or overlaps_itself(target)) for target in written):
            return None  # a write that gives a tensor from outside a history, or that eager refuses
        if written and name_of(func) not in NORMS:
            operands = [*flat((fake_args, fake_kwargs))]
            elementwise = is_elementwise_write(func, args)
            targets = [_fake_of(target, segment) for target in written]
            if elementwise and name_of(func) == "__setitem__":
                targets, operands = [part_at(*fake_args[:2])], operands[1:]
            if any(segment.meets(target, operands, elementwise) for target in targets):
                return None  # as above, or what depends on the order of elements, unless the memory's parts are apart
        try:
            found = looked_ahead(segment, self.regions, func, fake_args, fake_kwargs, self.whole)
        except NotHeld as refused:
            self.cause = refused.cause
            return None
        self.segment = segment
        if self.trace is not None:
            self._have_numbers(segment, (*args, *kwargs.values()))
        op, target = target_of(func)
        if target is getattr:
            fake_args = (fake_args[0], name_of(func))
        node = self._node(op, target, fake_args, fake_kwargs)
        if written:
            segment.trials.written[node] = tuple(segment.nodes[id(_fake_of(target, segment))] for target in written)
        results: Any
        if name_of(func) == "__setitem__" or writes_to_list(func):
            results = None
        elif in_place(func):
            node.meta["example_value"] = _fake_of(args[0], segment)
            results = args[0]
        else:
            results = self._results(found, node, {id(_fake_of(t, segment)): t for t in flat((args, kwargs))})
        if not is_quiet(node):  # which asks what the node gives
            self._note_loud(node, segment, written)
        segment.draws = segment.draws or draws
        if written:
            segment.note_writes(written, records)
        self.regions.calls += 1
        return (results,)

    def _have_numbers(self, segment: Segment, operands: tuple[Any, ...]) -> None:
        """Have the learnt numbers among the operands of a call as inputs."""
        segment.forget_pinned(self.trace.learning.is_learnt)
        for number in self.trace.learning.learnt_in(operands):
            if is_size(number, self.trace):
                continue
            made = None if id(number) in segment.learnt else self.trace.learning.as_tensor(number, of_floats=True)
            if made is not None:
                segment.learns(number, made)

    def _note_loud(self, node: Node, segment: Segment, written: tuple[Any, ...]) -> None:
        """Note a call that may raise for what its operands hold, and that writes to what is ``written``.

        Raises ``_Apart`` where what was computed before it could not be computed again.
        """
        segment.watched = self.handled() or segment.watched
        if not looks_at_values(node) or not self.goes_on():
            return
        writes = writes_to_outside(segment, written)
        if writes or segment.writes_outside:
            with without_function_modes():
                quiet = segment.raises_nothing()
            if not quiet:
                raise _Apart(writes)
        segment.handled.append(node)

    def _refuse_in_attempt(self, writes: bool, draws: bool) -> None:
        """End an attempt that comes to a call which writes, or which draws what another run would not draw."""
        if self.attempt is not None and (writes or (draws and not self.attempt.draws)):
            self.attempt.refuse()

    def _node(self, op: str, target: Any, args: Any, kwargs: Any) -> Node:
        segment = self.segment
        assert segment is not None
        nodes = segment.node_of
        node = segment.graph.create_node(op, target, mapped(args, nodes), mapped(kwargs, nodes))
        node.meta["stack_trace"] = self.place()
        if self.modules is not None and (stack := self.modules()):
            node.meta[MODULES] = stack
        if self.region:
            mark_checkpointed(node, self.region)
        segment.numbers[node] = len(segment.numbers)
        segment.key.append((op, target, frozen(node.args, segment.numbers), frozen(node.kwargs, segment.numbers)))
        return node

    def _results(self, found: Any, node: Node, given: dict[int, torch.Tensor]) -> Any:
        """Pending tensors for what a node computes; an operand that it gives back is the operand."""
        segment = self.segment
        assert segment is not None
        node.meta["example_value"] = found  # of several results too: what reads the graph asks of which call each is
        if isinstance(found, torch.Tensor):
            if id(found) in given:
                return given[id(found)]
            segment.nodes[id(found)] = node
            made = pending(self, found)
            segment.pending.append(made)
            return made
        parts: list[Any] = []
        for place, part in enumerate(found):
            if part is None:
                parts.append(None)
                continue
            inner = segment.graph.call_function(operator.getitem, (node, place))
            inner.meta.update((name, node.meta[name]) for name in ("stack_trace", MODULES) if name in node.meta)
            if self.region:
                mark_checkpointed(inner, self.region)
            segment.numbers[inner] = len(segment.numbers)
            segment.key.append(("item", segment.numbers[node], place))
            parts.append(self._results(part, inner, given))
        if type(found) in (tuple, list):
            return type(found)(parts)
        return type(found)(parts)  # a named tuple of torch's takes a sequence

    def flush(self, last: bool = False) -> None:
        """Run what is recorded; the tensors that anybody still holds become ordinary ones. ``last``: the call has
        returned.
        """
        flush(self, last)

    @property
    def watching(self) -> bool:
        """Whether what is recorded may raise what the program handles."""
        return self.segment is not None and self.segment.watched

    def settle(self) -> None:
        """Run what is recorded if it may raise what the program handles."""
        if self.watching:
            assert self.segment is not None
            with without_function_modes():
                quiet = self.segment.raises_nothing()
            if not quiet:
                self.flush()

    def mark(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Have ``function`` give a pending tensor attributes once that is computed."""
        if self.attempt is not None:
            self.attempt.refuse()
        if self.segment is None or id(args[0]._fake) not in self.segment.nodes:
            raise lost(args[0])
        self.segment.marks.append((function, args, kwargs))


def leave(recorder: Recorder, what: str) -> None:
    """End the call, which only Dynamo captures, if nothing is done of it and it may be handed on."""
    if recorder.hands_on and recorder.unbegun:
        recorder.segment, recorder.broken = None, what
        raise _Broken(what)


def _fake_of(tensor: torch.Tensor, segment: Segment) -> Any:
    return segment.fake_of(tensor)
