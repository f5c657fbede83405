"""Records calls of torch's into a graph, and runs the graph where somebody needs what it computes."""

from __future__ import annotations

import contextlib
import operator
import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.overrides import TorchFunctionMode

from lamina.base.drawing import may_draw
from lamina.base.fx.torch_private import calls_of
from lamina.base.recipes import captured
from lamina.base.torch_private import is_functional
from lamina.capture.own.autocast import Autocast
from lamina.capture.own.fakes import Fakes, NotHeld, look
from lamina.capture.own.frame import Unhandled
from lamina.capture.own.fused_layers import layer_of
from lamina.capture.own.nested import flat, frozen, mapped, tensors
from lamina.capture.own.pending import Pending, lost, pending
from lamina.capture.own.places import by_interpreter
from lamina.capture.own.results import become, computed_before, distinct
from lamina.capture.own.reuse.run import Run
from lamina.capture.own.reuse.values import fits_a_type, is_read
from lamina.capture.own.saved_tensors.torch_private import HookedAs, hooks_on_saved_tensors
from lamina.capture.own.segment import Segment, is_quiet
from lamina.capture.own.sharing.families import Families
from lamina.capture.own.torch_calls import (
    IDENTITY,
    QUERIES,
    cause_of_operands,
    computes_in_floats,
    computes_in_integers,
    dtype_of_number,
    dtype_that_refuses,
    in_place,
    name_of,
    recordable,
    takes_numbers,
    target_of,
)
from lamina.capture.own.torch_private import (
    LAYERS,
    SET_GRAD,
    as_plain_tensors,
    autocast_states,
    cause_of_error,
    compiling,
    is_from_a_hook,
    without_function_modes,
)
from lamina.capture.own.writing import NORMS, Writing, is_elementwise_write, overlaps_itself, written_by

__all__ = ["Recorder", "Regions"]

Backend = Callable[[GraphModule, Sequence[Any]], Callable[..., Any]]

_TORCH = os.path.dirname(torch.__file__) + os.sep
_NO_FILE = os.sep * 2
"""How the name of no file begins."""
_MOST_REGIONS = 256
"""Compiled graphs that one callable keeps; a program whose sizes are all different would keep one for each."""


@dataclass(slots=True)
class Regions:
    """The graphs of one callable that were compiled, by what they compute; ``calls`` counts the calls recorded.

    ``families`` has those that differ in integers only, unless each is to be compiled by itself.
    """

    backend: Backend
    compiled: dict[Any, Callable[..., Any] | None] = field(default_factory=dict)
    calls: int = 0
    native: int = 0
    of_thread: Any = field(default_factory=threading.local)
    families: Families | None = None

    def fakes(self) -> Fakes:
        """Those of the thread: a mode is entered by one thread at a time."""
        found: Fakes | None = getattr(self.of_thread, "fakes", None)
        if found is None or len(found.made) > _MOST_REGIONS:
            found = self.of_thread.fakes = Fakes()
        return found

    def keep(self, key: Any, compiled: Callable[..., Any] | None) -> None:
        """Keep the compiled form of a graph, or that it computes nothing that anybody may see."""
        if len(self.compiled) >= _MOST_REGIONS:
            del self.compiled[next(iter(self.compiled))]
        self.compiled[key] = compiled


_OF_ONE_ELEMENT = frozenset(("item", "__bool__", "__int__", "__float__", "is_nonzero"))
"""Questions for values that raise for tensors of more elements than one."""


class _Broken(Unhandled):
    """Ends a call whose graph would end before it does."""


class Recorder(TorchFunctionMode):
    """A function mode: what is called under it becomes nodes of a graph, whose results are pending tensors.

    ``place`` gives the user's line, as a stack trace of it, for each node. ``handled`` is asked where a call may raise
    for what is in its operands: whether the program may catch that. ``left``: the program has entered modes of its own,
    so that nothing is recorded. With ``whole`` what cannot be recorded ends the call: ``broken`` says what it is.
    ``unhandled`` is the class of what has ended a graph, and is to end the call even if native code handles it.
    ``trace`` is told of graphs that run and of calls that do not go into one, ``told`` of what ends a graph; ``seen``
    counts the calls that came here.
    """

    cause = ""
    """Why the last call could not be recorded, where more than its name tells (``reasons.OWN_CAUSES``)."""

    def __init__(
        self, regions: Regions, place: Callable[[], str], handled: Callable[[], bool], whole: bool = False
    ) -> None:
        super().__init__()
        self.regions, self.place, self.handled, self.whole = regions, place, handled, whole
        self.hooks = hooks_on_saved_tensors()
        self.broken = ""
        self.unhandled: type[Unhandled] | None = None
        self.segment: Segment | None = None
        self.left = False
        self.trace: Any = None
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
        if name in QUERIES:
            self._pin(args, kwargs)
            if name == "stride" and any(type(t) is Pending and min(t.shape, default=2) < 2 for t in args):
                self.flush()  # strides of such dimensions are what the computation makes of them
            found = func(*mapped(args, _looks), **mapped(kwargs, _looks))
            return self._told(name, args, kwargs, found, sys._getframe(1))
        if self.trace is not None and self.trace.learning.values:
            func, args, kwargs = self._with_numbers(func, args, kwargs)
        self.cause = ""
        if recordable(func, args, kwargs, Pending) and by_interpreter(sys._getframe(1), _TORCH):
            layer = layer_of(func, args, mapped(args, _looks)) if func in LAYERS and not kwargs else None
            found = self._recorded(func, args, kwargs) if layer is None else self._by_calls(layer)
            if found is not None:
                return found[0]
        self.end(name or str(func), always=True, cause=self.cause or cause_of_operands(flat((args, kwargs))))
        self.regions.native += 1
        self._pin(args, kwargs)
        if name not in _OF_ONE_ELEMENT:
            self._pin_sizes()
        if self.trace is not None and is_read(func, args, kwargs):
            found = func(*args)
            self.trace.learning.learn(func, args, found)
            return found
        self.escaped(name)
        return func(*args, **kwargs)

    def _told(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], found: Any, frame: FrameType) -> Any:
        """What a question about a tensor is answered, whose answer in this call is ``found``."""
        if self.trace is None or self.trace.sizes is None:
            return found
        if kwargs or not args or not by_interpreter(frame, _NO_FILE):
            self._pin_sizes()
            return found
        return self.trace.sizes.told(name, args, found, self.segment)

    def _pin_sizes(self) -> None:
        """What the call does rests on all sizes that vary."""
        if self.trace is not None and self.trace.sizes is not None:
            self.trace.sizes.close()

    def _by_calls(self, layer: Callable[[Callable[..., Any]], Any]) -> tuple[Any] | None:
        """What a layer gives whose calls the graph holds; None if it cannot hold one of them."""
        self._pin_sizes()

        def call(func: Any, *args: Any) -> Any:
            found = self._recorded(func, args, {})
            if found is None:
                raise NotHeld(self.cause)
            return found[0]

        try:
            return (layer(call),)
        except NotHeld:
            return None

    def _pin(self, *values: Any) -> None:
        """What the call does rests on the numbers among ``values`` that it has learnt."""
        if self.trace is not None:
            self.trace.learning.pin(*values)

    def _with_numbers(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """A call as a graph holds it for all of the numbers that were learnt; they are pinned if none can."""
        learning = self.trace.learning
        number = args[0] if func is torch.tensor and len(args) == 1 else None
        if learning.is_learnt(number) and not _is_size(number, self.trace):
            dtype = dtype_of_number(args[0], kwargs)
            made = None if dtype is None else learning.as_tensor(args[0])
            if made is not None:
                return torch.Tensor.to, (made, dtype), {"copy": True}
        if not takes_numbers(func, args, kwargs):
            learning.pin(args, kwargs, but=partial(_is_size, trace=self.trace))
        else:
            learnt = learning.learnt_in((*args, *kwargs.values()))
            integers = [value for value in learnt if type(value) is int and not _is_size(value, self.trace)]
            looks = mapped((*args, *kwargs.values()), _looks)
            if integers and computes_in_integers(func, *looks):
                tensors = {id(value): learning.as_tensor(value) for value in integers}
                args = tuple(arg if tensors.get(id(arg)) is None else tensors[id(arg)] for arg in args)
            elif integers and not computes_in_floats(*looks):
                learning.pin(*integers)
            refusing = dtype_that_refuses(func, *mapped((args, kwargs), _looks))
            types = refusing or ()
            for number in learning.learnt_in((*args, *kwargs.values())) if types else ():
                operands = (number, *types)
                if None in types or not learning.compute(fits_a_type, operands, fits_a_type(*operands)):
                    learning.pin(number)
        return func, args, kwargs

    def escaped(self, name: str) -> None:
        """What ``name`` says uses tensors outside of graphs, or may do whatever it likes."""
        if self.trace is not None:
            self.trace.end(f"{name} runs between graphs")

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
        if self.whole and (always or self.segment is not None):
            self.broken = self.broken or f"{what} ({self.place().strip()})"
            raise _Broken(self.broken)
        if self.told is not None and (always or computes or tensors or self.segment is not None):
            self.told(what, cause or cause_of_operands(tensors))
        self.flush()

    def _set_grad(self, args: tuple[bool]) -> None:
        """Switch the grad mode: within a graph if there is one."""
        if self.segment is not None and args[0] != torch.is_grad_enabled():
            self._node("call_function", SET_GRAD, tuple(args), {})
            self.segment.switches = True
        SET_GRAD(*args)

    def _recorded(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any] | None:
        """The pending result of a call that the graph holds now; None if it cannot hold it."""
        if torch.is_inference_mode_enabled() or kwargs.get("requires_grad") or hooks_on_saved_tensors() != self.hooks:
            return None
        if self.segment is not None and self.segment.state[1] != autocast_states():
            self.flush()
        segment = self.segment or Segment(self.regions.fakes())
        fake_args, fake_kwargs = mapped(args, tensors(segment.fake_of)), mapped(kwargs, tensors(segment.fake_of))
        written = written_by(func, args, kwargs)
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
            if any(segment.meets(_fake_of(target, segment), operands, elementwise) for target in written):
                return None  # as above, or what depends on the order of elements, unless the memory's parts are apart
        found = self._looked_ahead(segment, func, fake_args, fake_kwargs)
        if found is None:
            return None
        self.segment = segment
        if self.trace is not None:
            segment.forget_pinned(self.trace.learning.is_learnt)
            for number in self.trace.learning.learnt_in((*args, *kwargs.values())):
                if _is_size(number, self.trace):
                    continue
                made = None if id(number) in segment.learnt else self.trace.learning.as_tensor(number, of_floats=True)
                if made is not None:
                    segment.learns(number, made)
        op, target = target_of(func)
        if target is getattr:
            fake_args = (fake_args[0], name_of(func))
        node = self._node(op, target, fake_args, fake_kwargs)
        # What an operator of the program's does beside computing would be done twice as draws would.
        segment.draws = segment.draws or may_draw(name_of(func)) or is_functional(func)
        if written:
            segment.note_writes(written, records)
            segment.trials.written[node] = tuple(segment.nodes[id(_fake_of(target, segment))] for target in written)
        self.regions.calls += 1
        if not segment.watched and not is_quiet(node):
            segment.watched = self.handled()
        if in_place(func):
            return (None if name_of(func) == "__setitem__" else args[0],)
        return (self._results(found, node, {id(_fake_of(t, segment)): t for t in flat((args, kwargs))}),)

    def _looked_ahead(self, segment: Segment, func: Any, args: Any, kwargs: Any) -> Any:
        """Fake results of a call; None if a graph cannot hold it."""
        compute = partial(func, *args, **kwargs)
        operands = list({id(fake): fake for fake in flat((args, kwargs))}.values())
        key: Any = object()
        if not segment.records and not in_place(func) and func.__class__.__name__ != "method-wrapper":
            numbers = {id(fake): place for place, fake in enumerate(operands)}
            with contextlib.suppress(RuntimeError):  # another view of it was written to: nobody can ask for its history
                looks = tuple(look(fake) for fake in operands)
                given = frozen(args, numbers), frozen(kwargs, numbers)
                key = (func, torch.is_grad_enabled(), segment.state, looks, given)
        place = segment.uses[key]
        segment.uses[key] += 1
        if name_of(func) == "__setitem__":
            compute = partial(_set_item, *args)
        try:
            return segment.stand_ins.result(key, compute, operands, place)
        except Exception as error:
            self.cause = error.cause if isinstance(error, NotHeld) else cause_of_error(error)
            return None  # eager says what is wrong, or computes what depends on values

    def _node(self, op: str, target: Any, args: Any, kwargs: Any) -> Node:
        segment = self.segment
        assert segment is not None
        nodes = segment.node_of
        node = segment.graph.create_node(op, target, mapped(args, nodes), mapped(kwargs, nodes))
        node.meta["stack_trace"] = self.place()
        segment.numbers[node] = len(segment.numbers)
        segment.key.append((op, target, frozen(node.args, segment.numbers), frozen(node.kwargs, segment.numbers)))
        return node

    def _results(self, found: Any, node: Node, given: dict[int, torch.Tensor]) -> Any:
        """Pending tensors for what a node computes; an operand that it gives back is the operand."""
        segment = self.segment
        assert segment is not None
        if isinstance(found, torch.Tensor):
            if id(found) in given:
                return given[id(found)]
            node.meta["example_value"] = found
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
            inner.meta["stack_trace"] = node.meta["stack_trace"]
            segment.numbers[inner] = len(segment.numbers)
            segment.key.append(("item", segment.numbers[node], place))
            parts.append(self._results(part, inner, given))
        if type(found) in (tuple, list):
            return type(found)(parts)
        return type(found)(parts)  # a named tuple of torch's takes a sequence

    def flush(self) -> None:
        """Run what is recorded; the tensors that anybody still holds become ordinary ones.

        So they do where an interrupt of the program ends this, if that is possible.
        """
        segment = self.segment
        if segment is None:
            return
        grad, waiting, made = torch.is_grad_enabled(), segment.pending, None
        alive: list[Pending] = []
        outputs: list[Node] = []
        try:
            self.segment, segment.pending = None, []
            if segment.records:
                self.regions.of_thread.fakes = None  # a write may have given a history to what stands for inputs
            while waiting:
                made = waiting.pop()
                if sys.getrefcount(made) > 2:  # this variable and the argument of getrefcount
                    alive.append(made)
            alive.reverse()
            outputs += [segment.nodes[id(one._fake)] for one in alive]
            key = (tuple(segment.key), tuple(segment.looks), segment.state, tuple(segment.numbers[n] for n in outputs))
            self._fill(segment, key, alive, outputs)
            for function, args, kwargs in segment.marks:
                function(*args, **kwargs)
        except BaseException as error:
            SET_GRAD(grad)
            self.unhandled = type(error) if isinstance(error, Unhandled) else self.unhandled
            nodes = dict(zip(map(id, alive), outputs, strict=False))
            left = {id(one): one for one in (*alive, *waiting, made) if type(one) is Pending}
            self._rescue(segment, [*left.values()], nodes, error)
            raise

    def _rescue(self, segment: Segment, left: list[Pending], nodes: dict[int, Node], error: BaseException) -> None:
        """Compute the tensors that were ``left`` by an exception, call by call, unless that would write twice."""
        self.segment = None
        self.escaped("an interrupted graph")
        if segment.failed or (segment.started and segment.writes):
            return
        outputs = [nodes.get(id(made)) or segment.nodes[id(made._fake)] for made in left]
        grad = torch.is_grad_enabled()
        with without_function_modes(), Autocast(segment.state[1]), HookedAs(self.hooks):
            try:
                SET_GRAD(segment.state[0])
                computed_before(error, segment.graph, segment.inputs, left, outputs)
            finally:
                SET_GRAD(grad)

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
        if self.segment is None or id(args[0]._fake) not in self.segment.nodes:
            raise lost(args[0])
        self.segment.marks.append((function, args, kwargs))

    def _fill(self, segment: Segment, key: Any, alive: list[Pending], outputs: list[Node]) -> None:
        """Compile a graph, unless it is compiled, run it, and put its results in place."""
        grad, failed, aliased = torch.is_grad_enabled(), None, False
        with without_function_modes(), Autocast(segment.state[1]), HookedAs(self.hooks):
            try:
                SET_GRAD(segment.state[0])
                run = self._compiled(segment, key, outputs)
                if run is None:
                    return
                segment.started = True
                computed = run(*segment.inputs)
                before = [*map(id, computed)]
                results = distinct(computed, segment.inputs)
                aliased = before != [*map(id, results)]
                del computed
            except Exception as error:
                self.escaped("a graph that raises")
                if segment.draws or segment.writes or is_from_a_hook(error):
                    raise
                SET_GRAD(segment.state[0])
                failed = computed_before(error, segment.graph, segment.inputs, alive, outputs)
                segment.failed = True
            finally:
                SET_GRAD(grad)
            if failed is not None:
                failed.__context__ = None
                raise failed
            del results[len(alive) :]  # the others are there so that their errors are
            results.reverse()  # so that nothing else holds a result that takes the place of a pending tensor
            for made in alive:
                become(made, results)
        if self.trace is not None and run is not None:
            self._tell(segment, run, alive, aliased)

    def _tell(self, segment: Segment, run: Callable[..., Any], alive: list[Pending], aliased: bool) -> None:
        """Tell the trace of a graph that has run."""
        numbers: tuple[int, ...] = ()
        if self.trace.sizes is not None:
            if aliased:
                self._pin_sizes()
            with without_function_modes():
                run, numbers = self.trace.sizes.step(run, segment)
        self.trace.learning.ran(
            Run(
                run,
                tuple(segment.inputs),
                tuple(alive),
                grad=segment.state[0],
                switches=segment.switches,
                autocast=segment.state[1],
                draws=segment.draws,
                writes=segment.writes,
                aliased=aliased,
                numbers=numbers,
            )
        )

    def _compiled(self, segment: Segment, key: Any, outputs: list[Node]) -> Callable[..., Any] | None:
        """A graph as a function of its inputs; None if nobody would see that it ran."""
        if key in self.regions.compiled:
            return self.regions.compiled[key]
        outputs = [*outputs, *segment.unread(outputs)]
        if not outputs and not (segment.draws or segment.writes):
            self.regions.keep(key, None)
            return None
        segment.graph.output(tuple(outputs))
        calls = calls_of(GraphModule(torch.nn.Module(), segment.graph)) if segment.writes else None
        families, compiled = self.regions.families, None
        if families is not None:
            compiled = families.compiled(segment, outputs, self.regions.backend)
        fixed = False
        if compiled is None:
            try:
                gm, fakes, mode = segment.module()
            except Exception:
                if not segment.learnt:
                    raise
                fixed = True  # what stands for a number tells too little of it
                self._pin(*segment.with_constants())
                gm, fakes, mode = segment.module()
            with compiling(mode):
                compiled = self.regions.backend(gm, fakes)
            captured(compiled, gm, fakes)
        if calls is not None:
            compiled = Writing(compiled, calls, segment.written(), tuple(segment.pairs), segment.apart_by_place())
        SET_GRAD(segment.state[0])
        if not fixed:
            self.regions.keep(key, compiled)
        return compiled


def _set_item(tensor: torch.Tensor, *given: Any) -> torch.Tensor:
    """``tensor``, of which a part is set."""
    tensor.__setitem__(*given)
    return tensor


def _is_size(value: Any, trace: Any) -> bool:
    """Whether a graph holds an integer, which is made of sizes that vary, as it holds those."""
    return trace.sizes is not None and bool(trace.sizes.is_one(value))


def _looks(value: Any) -> Any:
    return value._fake if type(value) is Pending else value


def _fake_of(tensor: torch.Tensor, segment: Segment) -> Any:
    return segment.fake_of(tensor)
