"""What torch's environments of symbolic sizes are asked and guard, watched under its private names (2.11 to 2.13)."""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sympy
import torch
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.symbolic_shapes import ShapeEnv, free_symbols
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._sympy import solve

from lamina.base.devices import kind_of

__all__ = [
    "AskedTooLate",
    "LaterGuards",
    "OpenShapes",
    "QuestionsLimit",
    "SizesTakeTooLong",
    "answers_settled",
    "is_settled",
    "questions_limited",
    "questions_unlimited",
]


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


def is_settled(condition: bool | torch.SymBool) -> bool:
    """Whether no guard can be added for a condition here."""
    return isinstance(condition, torch.SymBool) and any(env is condition.node.shape_env for env in _thread.settled)


def _watch_solutions() -> None:
    """Solutions by a division are taken only where the divisor cannot be zero.

    Torch solves ``n * q - 3 * q == 0`` for ``n == 3``, which ``q == 0`` need not give, and then takes n's range to be
    that: for a call with another n it raises, or compiles again for each.
    """
    isolate = solve._try_isolate_lhs

    @functools.wraps(isolate)
    def try_isolate_lhs(relation: Any, symbol: Any, *arguments: Any, **keywords: Any) -> Any:
        if isinstance(relation, sympy.Rel) and not _divisor(relation, symbol).is_nonzero:
            return relation
        return isolate(relation, symbol, *arguments, **keywords)

    solve._try_isolate_lhs = try_isolate_lhs  # type: ignore[assignment]


def _divisor(relation: Any, symbol: Any) -> Any:
    """What both sides of a relation are divided by for a symbol of its left side."""
    terms = [term for term in sympy.Add.make_args(relation.lhs) if term.has(symbol)]
    factors = sympy.Mul.make_args(terms[0]) if len(terms) == 1 else ()
    return sympy.Mul(*[factor for factor in factors if not factor.has(symbol)])


_watch_solutions()


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
    def select_conv_backend(input: Any, weight: Any, *arguments: Any, **keywords: Any) -> Any:  # torch 2.11 names both
        env = _env_of(input)
        if isinstance(env, OpenShapes) and _convolved_densely(input, weight):
            with _guarding_nothing(env):
                return select(input, weight, *arguments, **keywords)
        return select(input, weight, *arguments, **keywords)

    torch._C._select_conv_backend = select_conv_backend


def _convolved_densely(image: Any, weight: Any) -> bool:
    """Whether a convolution gives rows of pixels whichever of a CPU's algorithms it takes.

    Fake tensors ask for the algorithm to know the result's layout, and those of a CPU that decide by sizes, oneDNN's
    by 16 images in a batch, differ in that for operands with the channels innermost only.
    """
    if not (kind_of(image).host and kind_of(weight).host):
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
