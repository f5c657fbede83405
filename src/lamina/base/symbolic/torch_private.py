"""Questions about symbolic numbers, conditions on them and fake tensors, under torch's private names (2.11 to 2.13)."""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental import _config, proxy_tensor
from torch.fx.experimental.symbolic_shapes import (
    GuardOnDataDependentSymNode,
    ShapeEnv,
    free_symbols,
    free_unbacked_symbols,
    guard_or_false,
    guard_or_true,
    statically_known_true,
)
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._sympy.functions import FloorDiv, IntTrueDiv

__all__ = [
    "AskedTooLate",
    "DataDependentGuard",
    "LaterGuards",
    "OpenShapes",
    "QuestionsLimit",
    "SizesTakeTooLong",
    "answers_settled",
    "contiguous",
    "depends_on_data",
    "from_arguments",
    "has_symbols",
    "hint",
    "is_constant",
    "is_fake",
    "is_guarded",
    "is_positive",
    "is_quotient",
    "is_sure",
    "is_true",
    "is_zero",
    "questions_limited",
    "questions_unlimited",
    "symbols_of",
]


DataDependentGuard = GuardOnDataDependentSymNode
"""Raised where tracing must know a number that only a run tells."""


class SizesTakeTooLong(RuntimeError):
    """What is asked of symbolic sizes has taken longer than it may."""


class QuestionsLimit:
    """How long questions about symbolic sizes may take together in one thread; see ``questions_limited``.

    ``exceeded``: a question was refused. ``exceeded_within``: one was under a limit that was set inside of this one.
    """

    def __init__(self, seconds: float, lifted: Callable[[], bool], outer: QuestionsLimit | None) -> None:
        self.seconds, self.lifted, self.outer = seconds, lifted, outer
        self.spent, self.asked = 0.0, False
        self.exceeded = self.exceeded_within = False

    def answered(self, answer: Callable[[], Any]) -> Any:
        """What ``answer`` gives, its time counted. Raises ``SizesTakeTooLong`` where the time is up."""
        if self.asked:  # a question that another one leads to
            return answer()
        if self.spent > self.seconds and not self.lifted():
            self._exceed()
            raise SizesTakeTooLong(f"questions about symbolic sizes took {self.spent:.0f} s")
        before, self.asked = time.perf_counter(), True
        try:
            return answer()
        finally:
            self.spent, self.asked = self.spent + time.perf_counter() - before, False

    def _exceed(self) -> None:
        self.exceeded, outer = True, self.outer
        while outer is not None:
            outer.exceeded_within, outer = True, outer.outer


class _Thread(threading.local):
    limit: QuestionsLimit | None = None
    settled: tuple[ShapeEnv, ...] = ()
    needs_no_guard = False


_thread = _Thread()
_NEVER = math.inf


@contextlib.contextmanager
def questions_limited(seconds: float, lifted: Callable[[], bool] = lambda: False) -> Iterator[QuestionsLimit]:
    """Inside, questions of this thread about symbolic sizes may take so many seconds together, and one more.

    The next one then raises ``SizesTakeTooLong``, unless ``lifted`` says that none need end any more: terms of views of
    views can grow with each question. A limit that is set inside holds there instead of this one.
    """
    outer = _thread.limit
    _thread.limit = limit = QuestionsLimit(seconds, lifted, outer)
    try:
        yield limit
    finally:
        _thread.limit = outer


def questions_unlimited() -> contextlib.AbstractContextManager[QuestionsLimit]:
    """Inside, a limit from outside does not hold."""
    return questions_limited(_NEVER)


def _watch_questions() -> None:
    evaluate = ShapeEnv.evaluate_expr

    @functools.wraps(evaluate)
    def evaluate_expr(self: ShapeEnv, *arguments: Any, **keywords: Any) -> Any:
        limit = _thread.limit
        if limit is None:
            return evaluate(self, *arguments, **keywords)
        return limit.answered(lambda: evaluate(self, *arguments, **keywords))

    ShapeEnv.evaluate_expr = evaluate_expr  # type: ignore[method-assign]


_watch_questions()


class AskedTooLate(RuntimeError):
    """A question about symbolic sizes of a program whose guards are settled: no call would check the answer."""


def _watch_answers() -> None:
    check = ShapeEnv._check_frozen

    @functools.wraps(check)
    def check_frozen(self: ShapeEnv, question: Any, answer: Any) -> None:
        if _thread.needs_no_guard:
            return
        if any(env is self for env in _thread.settled):
            raise AskedTooLate(f"{question} was to be {answer}, after the guards were settled")
        check(self, question, answer)

    ShapeEnv._check_frozen = check_frozen  # type: ignore[method-assign, assignment]


_watch_answers()


@contextlib.contextmanager
def answers_settled(values: Sequence[Any]) -> Iterator[None]:
    """Inside, a question of this thread about sizes of the fake tensors and numbers ``values`` that no guard tells is
    refused; whether something is sure, contiguous or positive is then not known.

    So it is where their program is in use: torch would answer for the sizes that it was traced with, and guard nothing.
    Before, nothing is refused. Raises ``AskedTooLate``.
    """
    found = (v.node.shape_env if isinstance(v, torch.SymInt) else _env_of(v) for v in values)
    env = next((env for env in found if env is not None), None)
    before = _thread.settled
    if env is not None and env.frozen:
        _thread.settled = (*before, env)
    try:
        yield
    finally:
        _thread.settled = before


class OpenShapes(ShapeEnv):
    """Symbols of sizes for which nothing is guarded that decides nothing about what is computed."""


@contextlib.contextmanager
def _guarding_nothing(env: OpenShapes) -> Iterator[None]:
    before, _thread.needs_no_guard = _thread.needs_no_guard, True
    try:
        with env.suppress_guards():
            yield
    finally:
        _thread.needs_no_guard = before


def _watch_convolutions() -> None:
    select = torch._C._select_conv_backend

    @functools.wraps(select)
    def select_conv_backend(image: Any, weight: Any, *arguments: Any, **keywords: Any) -> Any:
        env = _env_of(image)
        if isinstance(env, OpenShapes) and _convolved_densely(image, weight):
            with _guarding_nothing(env):
                return select(image, weight, *arguments, **keywords)
        return select(image, weight, *arguments, **keywords)

    torch._C._select_conv_backend = select_conv_backend


def _convolved_densely(image: Any, weight: Any) -> bool:
    """Whether a convolution gives rows of pixels whichever of a CPU's algorithms it takes.

    Fake tensors ask for the algorithm to know the result's layout, and those of a CPU that decide by sizes, oneDNN's
    by 16 images in a batch, differ in that for operands with the channels innermost only.
    """
    if image.device.type != "cpu" or weight.device.type != "cpu":
        return False
    if image.dim() == 3:  # which is taken for an image of one row
        image, weight = image.contiguous().unsqueeze(2), weight.unsqueeze(2)
    algorithms: Any = torch._C._ConvBackend  # type: ignore[attr-defined]
    deciding = algorithms.Mkldnn, algorithms.Slow2d
    layouts = (torch._C._conv_determine_backend_memory_format(image, weight, one) for one in deciding)
    return all(layout is torch.contiguous_format for layout in layouts)


_watch_convolutions()


def _watch_notes() -> None:
    """What tracing notes beside a node's fake tensor nobody reads; it names the layout, which is asked for."""
    note = proxy_tensor._extract_tensor_metadata  # type: ignore[attr-defined]

    @functools.wraps(note)
    def extract_tensor_metadata(result: Any, *arguments: Any, **keywords: Any) -> Any:
        env = _env_of(result)
        if isinstance(env, OpenShapes):
            with _guarding_nothing(env):
                return note(result, *arguments, **keywords)
        return note(result, *arguments, **keywords)

    proxy_tensor._extract_tensor_metadata = extract_tensor_metadata  # type: ignore[attr-defined]


_watch_notes()


def _env_of(value: Any) -> Any:
    return value.fake_mode.shape_env if isinstance(value, FakeTensor) else None


class LaterGuards:
    """Guards on sizes that are added to the current capture from now on."""

    def __init__(self) -> None:
        context = TracingContext.try_get()
        mode = context.fake_mode if context is not None else None
        self._env = mode.shape_env if mode is not None else None
        self._before = len(self._env.guards) if self._env is not None else 0
        self._given = self._symbols_given()  # a guard may fix them, and they are gone from sizes then

    def unreadable(self) -> str:
        """A symbol among them that no input has, so that capture could not check the guard; "" if there is none.

        AOTAutograd makes symbols of its own for what an input is a view of, which is no input.
        """
        if self._env is None or not self._env.tracked_fakes:
            return ""
        added = {s for guard in self._env.guards[self._before :] for s in guard.expr.free_symbols}
        if not added:
            return ""
        read = self._given | self._symbols_given()
        return next((str(s) for s in sorted(added - read, key=str) if s in self._env.var_to_range), "")

    def _symbols_given(self) -> set[Any]:
        tracked = [] if self._env is None else self._env.tracked_fakes or []
        return {symbol for one in tracked for symbol in _symbols_within(one.fake)}

    def drop(self) -> None:
        """Take them back: the program that they were for is not used."""
        if self._env is not None:
            del self._env.guards[self._before :]


def _symbols_within(value: Any) -> list[Any]:
    if is_traceable_wrapper_subclass(value):
        names, _ = value.__tensor_flatten__()
        return [*free_symbols(value), *(s for name in names for s in _symbols_within(getattr(value, name)))]
    return list(free_symbols(value))


def contiguous(tensor: torch.Tensor, memory_format: torch.memory_format = torch.contiguous_format) -> bool:
    """Whether a tensor is laid out so; run-time sizes are then guarded to be so or not; false where only data tells."""
    try:
        return bool(tensor.is_contiguous(memory_format=memory_format))
    except (DataDependentGuard, AskedTooLate):
        return False


def is_fake(value: object) -> bool:
    """Whether ``value`` is a fake tensor: it knows its shape and has no numbers."""
    return isinstance(value, FakeTensor)


def hint(size: int | torch.SymInt, unknown: int = 4096) -> int:
    """A likely value of ``size``, with no guard added; ``unknown`` for a size nobody knows."""
    if not isinstance(size, torch.SymInt):
        return int(size)
    value = size.node._hint
    return unknown if value is None else int(value)


def symbols_of(value: Any) -> list[Any]:
    """The symbols in the sizes, strides and offset of ``value``, in name order."""
    return sorted(free_symbols(value), key=lambda s: str(s.name))


def from_arguments(
    integers: Sequence[int | torch.SymInt], fakes: Sequence[Any]
) -> Callable[[Sequence[Any]], tuple[int, ...]] | None:
    """A function of arguments like ``fakes`` that gives the ``integers``; None where they hang on more than that tells.

    Symbols are read from integers among the arguments and from the sizes of tensors.
    """
    expressions = [n.node.expr if isinstance(n, torch.SymInt) else n for n in integers]
    symbols = sorted({s for n in integers for s in free_symbols(n)}, key=str)
    if not symbols:
        constant = tuple(map(int, expressions))
        return lambda given: constant
    places: dict[Any, tuple[int, int | None]] = {}
    for i, fake in enumerate(fakes):
        sizes = enumerate(fake.shape) if isinstance(fake, torch.Tensor) else [(None, fake)]
        for axis, n in sizes:
            if isinstance(n, torch.SymInt) and n.node.expr.is_symbol:
                places.setdefault(n.node.expr, (i, axis))
    if not places.keys() >= set(symbols):
        return None
    reads = [places[s] for s in symbols]

    @functools.lru_cache
    def evaluated(*values: int) -> tuple[int, ...]:
        known = dict(zip(symbols, values, strict=True))
        return tuple([e if isinstance(e, int) else int(e.xreplace(known)) for e in expressions])

    def read(given: Sequence[Any]) -> tuple[int, ...]:
        return evaluated(*[int(given[i] if axis is None else given[i].shape[axis]) for i, axis in reads])

    return read


def has_symbols(tensor: torch.Tensor) -> bool:
    """Whether a fake tensor's sizes, strides or offset are known only at run time."""
    numbers = (*tensor.shape, *tensor.stride(), tensor.storage_offset())
    return any(isinstance(n, torch.SymInt) and not isinstance(n.node.maybe_as_int(), int) for n in numbers)


def depends_on_data(value: int | torch.SymInt) -> bool:
    """Whether an integer has symbols that only the data of a call tells."""
    return bool(free_unbacked_symbols(value))


def is_true(condition: bool | torch.SymBool) -> bool:
    """Whether a condition on symbols is known to hold. Adds no guard."""
    return statically_known_true(condition)


def is_sure(condition: bool | torch.SymBool) -> bool:
    """Whether a condition on symbols is known to hold, or holds and is then guarded; false where only data tells."""
    return statically_known_true(condition) or (not _is_settled(condition) and guard_or_false(condition))


def _is_settled(condition: bool | torch.SymBool) -> bool:
    """Whether no guard can be added for a condition here."""
    return isinstance(condition, torch.SymBool) and any(env is condition.node.shape_env for env in _thread.settled)


def is_guarded(condition: bool | torch.SymBool) -> bool:
    """Whether a condition on symbols holds, which is then guarded; true as well where only data tells."""
    with _hints_asked():
        return guard_or_true(condition)


def is_zero(step: int | torch.SymInt) -> bool:
    """Whether a stride is zero. One that may be is then guarded to be so or not; only data's are taken not to be."""
    with _hints_asked():
        return guard_or_false(step == 0)


def _hints_asked() -> contextlib.AbstractContextManager[Any]:
    """Inside, a question about symbols that have values is answered by these and guarded, whatever torch is set to."""
    if not _config.backed_size_oblivious:
        return contextlib.nullcontext()
    found: contextlib.AbstractContextManager[Any] = _config.patch(backed_size_oblivious=False)  # type: ignore[attr-defined]
    return found


def is_positive(size: int | torch.SymInt) -> bool:
    """Whether a size is at least one. A symbolic one is then guarded to be so; without a hint it is not known to be."""
    return is_sure(size > 0)


def is_constant(value: Any) -> bool:
    """Whether a number or truth value of tracing is known, whatever symbols it came from."""
    return isinstance(value, (bool, int)) or (
        isinstance(value, (torch.SymBool, torch.SymInt)) and not value.node.expr.free_symbols
    )


def is_quotient(value: Any, float_too: bool) -> bool:
    """Whether ``value`` is a symbol's floor division; with ``float_too``, a symbolic float in which integers divide."""
    if float_too:
        return isinstance(value, torch.SymFloat) and value.node.expr.has(IntTrueDiv)
    return isinstance(value, torch.SymInt) and isinstance(value.node.expr, FloorDiv)
