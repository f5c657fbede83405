"""The interpreter: runs functions of the user's instruction by instruction on the user's own objects."""

from __future__ import annotations

import sys
from abc import ABCMeta
from collections.abc import Callable, Generator
from copy import deepcopy
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR, CO_ITERABLE_COROUTINE
from types import CodeType, FunctionType, GeneratorType, MethodType
from typing import Any

from lamina.base.class_flags import MADE_BY_PYTHON
from lamina.capture.own.contexts import put_context, put_first_context, while_handling
from lamina.capture.own.control import CONTROL_STEPS, DELEGATED, RETURNED, YIELDED
from lamina.capture.own.copying import deep_copy
from lamina.capture.own.frame import MISSING, MOST_KEPT, Frame, Step, bound_arguments
from lamina.capture.own.frame_questions import OF_FRAMES, of_frame
from lamina.capture.own.instructions import Handler, Program, UnknownInstruction, decode
from lamina.capture.own.module_init.torch_private import replaces_module_init
from lamina.capture.own.places import Places
from lamina.capture.own.steps import DATA_STEPS
from lamina.capture.own.world import World

__all__ = ["Machine", "goes_on", "is_generator_of_machine", "is_interpretable"]

_METACLASSES = (type, ABCMeta)
"""Classes of classes that make an object by ``__new__`` and ``__init__`` of its class, and do no more."""
_INIT = vars(object)["__init__"]
_DEEPEST = 100
"""Calls within calls that are interpreted: each takes a few frames of Python's, of which there are 1,000 by default."""

_STEPS: dict[str, Step] = {**DATA_STEPS, **CONTROL_STEPS}
_STORES = frozenset(_STEPS[name] for name in ("STORE_FAST", "DELETE_FAST", "LOAD_FAST_AND_CLEAR"))
"""Steps that change a variable that is no cell; those of cells and of others settle as all changes do."""

_LOOKS_AT_FRAMES = frozenset(("_getframe", "currentframe", "getouterframes", "settrace", "setprofile"))
"""Names in functions that look at frames: Python runs those, so that there is one."""
_OF_INSPECT = frozenset(("stack", "trace"))
"""Names in functions that do so where ``inspect`` is one, too."""

_ASYNCHRONOUS = CO_ASYNC_GENERATOR | CO_COROUTINE | CO_ITERABLE_COROUTINE


class _Key:
    """A code object by identity: equal ones may be of different places."""

    __slots__ = ("code",)

    def __init__(self, code: CodeType) -> None:
        self.code = code

    def __hash__(self) -> int:
        return id(self.code)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.code is other.code


_prepared: dict[_Key, tuple[Program, tuple[tuple[Step, Any], ...]] | None] = {}
"""Decoded code, None for what Python is to run: that of the functions interpreted last, as programs make them anew."""


def _prepare(code: CodeType) -> tuple[Program, tuple[tuple[Step, Any], ...]] | None:
    """The program of ``code`` with its steps; None if Python is to run it."""
    if code.co_flags & _ASYNCHRONOUS or _looks_at_frames(frozenset(code.co_names)):
        return None
    try:
        program = decode(code)
    except UnknownInstruction:
        return None
    return program, tuple((_STEPS[name], arg) for name, arg in program.steps)


def _looks_at_frames(names: frozenset[str]) -> bool:
    """Whether code with these names may look at frames."""
    return not _LOOKS_AT_FRAMES.isdisjoint(names) or ("inspect" in names and not _OF_INSPECT.isdisjoint(names))


def _program_of(code: CodeType) -> tuple[Program, tuple[tuple[Step, Any], ...]] | None:
    key = _Key(code)
    if key in _prepared:
        return _prepared[key]
    found = _prepare(code)
    if len(_prepared) >= MOST_KEPT:
        _prepared.pop(next(iter(_prepared)), None)
    _prepared[key] = found
    return found


def is_interpretable(function: FunctionType) -> bool:
    """Whether every instruction of ``function`` is known, which is decided before it is entered."""
    return _program_of(function.__code__) is not None


def _is_entered(world: World, function: Any) -> bool:
    return type(function) is FunctionType and world.enters(function) and is_interpretable(function)


def _is_of_torch(leave: Any) -> bool:
    """Whether the ``__exit__`` of a manager is that of a class of torch's, none of which ends an exception."""
    return type(getattr(leave, "__self__", None)).__module__.partition(".")[0] == "torch"


def _may_go_on(frame: Frame) -> bool:
    """Whether what handles an exception of the instruction in progress may go on in ``frame``.

    Managers of torch's do their part and let it pass.
    """
    row = frame.program.handler(frame.place - 1)
    while row is not None:
        names = [name for name, _ in frame.program.steps[row.target : row.target + 2]]
        within = names == ["PUSH_EXC_INFO", "WITH_EXCEPT_START"]
        if names[0] != "COPY" and not (within and _is_of_torch(frame.stack[row.depth - 1])):
            return True
        row = frame.program.handler(row.target)
    return False


class Machine:
    """Runs functions in a ``World``.

    ``handled`` is the exception that the innermost ``except`` block of all frames handles, ``outside`` the one that
    Python handles where it resumes a generator of the interpreter's. ``frames`` are those in progress. ``watched`` is a
    frame with those of its instructions whose exceptions it handles: before it leaves them, the world settles what may
    raise. ``copies`` says whether ``deep_copy`` is to make the deep copy of a value, ``caught`` is told of exceptions
    that come to a frame.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.handled: BaseException | None = None
        self.outside: BaseException | None = None
        self.frames: list[Frame] = []
        self.places = Places()
        self.watched: tuple[Frame, Handler] | None = None
        self.generators = 0
        self.copies: Callable[[Any], bool] = lambda value: False
        self.caught: Callable[[BaseException], None] = lambda error: None

    def run(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call ``function``, with what it calls interpreted as well where that is possible."""
        return self._called(None, function, args, kwargs)

    def call(self, frame: Frame, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call that ``frame`` makes."""
        if not kwargs and id(function) in OF_FRAMES:
            found = of_frame(self.world, self.handled, frame, function, args)
            if found is not MISSING:
                if function is not super:
                    self.world.frame_asked(function)
                return found
        return self._called(frame, function, args, kwargs)

    def _called(self, frame: Frame | None, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        inner, given = self._unwrapped(function, args)
        if inner is deepcopy and len(given) == 1 and not kwargs and self.copies(*given):
            inner = deep_copy
        if type(inner) is FunctionType and len(self.frames) < _DEEPEST and self.world.enters(inner):
            entered = self._enter(inner, given, kwargs)
            if entered is not None:
                return self._result_of(entered)
        caller = _caller if frame is None else self.caller(frame)
        if type(function) in _METACLASSES:
            made = self._made(frame, function, args, kwargs)
            if made is not MISSING:
                return made
        return self.world.call(caller, function, args, kwargs)

    def _unwrapped(self, function: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        """The function behind a method, or behind an object of a class with a ``__call__``."""
        kind = type(function)
        if kind is MethodType:
            inner = self.world.attribute(function, "__func__")
            if type(inner) is FunctionType:
                return inner, (self.world.attribute(function, "__self__"), *args)
        elif kind.__flags__ & MADE_BY_PYTHON and kind is not FunctionType and not issubclass(kind, type):
            call = self.world.looked_up(kind, "__call__")
            if type(call) is FunctionType:
                return call, (function, *args)
        return function, args

    def _made(self, frame: Frame | None, kind: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An object of a class whose ``__new__`` or ``__init__`` is interpreted; ``MISSING`` if Python makes it."""
        new, init = self.world.looked_up(kind, "__new__"), self.world.looked_up(kind, "__init__")
        caller = _caller if frame is None else self.caller(frame)
        if new is object.__new__ and init is _INIT and kind.__flags__ & MADE_BY_PYTHON:
            return self.world.made(caller(kind, args, kwargs))
        if (new is object.__new__ or new is dict.__new__) and (
            _is_entered(self.world, init) or replaces_module_init(init)
        ):
            made = self.world.made(caller(new, (kind,), {}))
        elif type(new) is staticmethod and _is_entered(self.world, inner := self.world.attribute(new, "__func__")):
            made = self._called(frame, inner, (kind, *args), kwargs)
            init = self.world.looked_up(type(made), "__init__")
            if not type.__subclasscheck__(kind, type(made)) or type(init) is not FunctionType:
                return made
        else:
            return MISSING
        if (result := self._called(frame, init, (made, *args), kwargs)) is not None:
            raise TypeError(f"__init__() should return None, not '{type(result).__name__}'")
        return made

    def caller(self, frame: Frame) -> Callable[..., Any]:
        """What calls natively from where ``frame`` stands; within an ``except`` block, with its exception."""
        from_there = self.places.caller(frame)
        handled = self.handled
        if handled is None:
            return from_there
        return lambda function, args, kwargs: while_handling(handled, from_there, function, args, kwargs)

    def _enter(self, function: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Frame | None:
        """A frame for a call; None if Python is to make the call, or to raise what is wrong with its arguments."""
        prepared = _program_of(function.__code__)
        if prepared is None:
            return None
        variables = bound_arguments(function, args, kwargs)
        if variables is None:
            return None
        program, steps = prepared
        free = function.__closure__ or ()
        variables.extend([MISSING] * (len(program.places) - len(variables) - len(free)))
        variables.extend(free)
        return Frame(function, program, steps, variables)

    def _result_of(self, frame: Frame) -> Any:
        if frame.code.co_flags & CO_GENERATOR:
            made: Any = _generator(self, frame)
            self.generators += 1
            made.__name__, made.__qualname__ = frame.function.__name__, frame.function.__qualname__
            return made
        outer = frame.outer = self.handled
        self.frames.append(frame)
        try:
            self.resume(frame)
            return frame.result
        finally:
            self.frames.pop()
            self.handled = outer
            frame.clear()

    def resume(self, frame: Frame) -> str:
        """Run ``frame`` until it returns, yields or delegates; ``frame.result`` is what."""
        while True:
            try:
                return self._loop(frame)
            except BaseException as error:
                if self.watched is not None:
                    self._caught_when_settled(frame, error)
                elif not self._caught(frame, error):
                    raise

    def _loop(self, frame: Frame) -> str:
        steps = frame.steps
        while True:
            place = frame.place
            step, arg = steps[place]
            frame.place = place + 1
            if self.watched is not None and self.watched[0] is frame and step in _STORES and _may_go_on(frame):
                self.world.settle()  # what handles an exception finds the variables as they are
            signal: str | None = step(self, frame, arg)
            if self.watched is not None and self.watched[0] is frame:
                self._settle_before_leaving(frame, place, signal)
            if signal is not None:
                return signal

    def watch(self) -> bool:
        """Whether a frame handles what an instruction in progress raises; ``watched`` is the innermost then."""
        for frame in reversed(self.frames):
            row = frame.program.handler(frame.place - 1)
            if row is not None:
                self.watched = frame, row
                return True
        return False

    def _caught_when_settled(self, frame: Frame, error: BaseException) -> None:
        found = self._settled(error)
        if not self._caught(frame, found):
            raise found

    def _settled(self, error: BaseException) -> BaseException:
        """What is raised where ``error`` was, if a call that was only recorded has to raise before it."""
        self.watched = None
        if isinstance(error, Exception):
            try:
                self.world.settle()
            except Exception as earlier:
                earlier.__context__ = None
                return earlier
        return error

    def _settle_before_leaving(self, frame: Frame, place: int, signal: str | None) -> None:
        """After the instruction at ``place``: if what is watched ends here, what may raise there does so now."""
        assert self.watched is not None
        row, following = self.watched[1], frame.place
        if signal is None and row.start <= following < row.end:
            return
        self.watched = None
        frame.place = place + 1
        self.world.settle()
        frame.place = following

    def _caught(self, frame: Frame, error: BaseException, thrown: bool = False) -> bool:
        """Go on in the handler of ``frame`` for ``error``, with the traceback that CPython would give it."""
        self.caught(error)
        direct = self.places.note(frame, error)
        if direct and not thrown and self.handled is not None:
            put_first_context(error, self.handled, self.outside)
        place = frame.place - 1
        row = frame.program.handler(place)
        if row is None:
            return False
        del frame.stack[row.depth :]
        if row.keeps_place:
            frame.stack.append(place)
        frame.stack.append(error)
        frame.place = row.target
        frame.keywords = ()
        return True

    def raise_new(self, frame: Frame, error: BaseException) -> None:
        """``raise error``."""
        if self.handled is not None:
            put_context(error, self.handled)
        raise error

    def reraise(self, frame: Frame, error: BaseException) -> None:
        """Raise ``error`` once more, of which its traceback says nothing new of ``frame``."""
        self.places.again = (error, error.__context__)
        raise error

    def resumed(self, frame: Frame, sent: Any) -> str:
        """Run the frame of a generator, which was ``sent`` a value or has caught what was thrown into it."""
        outer, outside = self._entered(frame), self.outside
        self.outside = sys.exception()
        try:
            if sent is not _CAUGHT and frame.place:
                frame.stack.append(sent)
                frame.place = frame.place if frame.leads_to is None else frame.leads_to
            frame.leads_to = None
            return self.resume(frame)
        finally:
            self.frames.pop()
            self.handled, self.outside = outer, outside

    def thrown_into(self, frame: Frame, error: BaseException) -> bool:
        """Whether the frame of a generator catches what is thrown into it; it then stands in the handler."""
        outer = self._entered(frame)
        caught = self._caught(frame, error, thrown=True)
        self.frames.pop()
        self.handled = outer
        return caught

    def _entered(self, frame: Frame) -> BaseException | None:
        """Handle what the frame of a generator handles; gives what was handled before."""
        outer = frame.outer = self.handled
        if frame.handled is not None:
            self.handled = frame.handled
        self.frames.append(frame)
        return outer


def _caller(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return function(*args, **kwargs)


_CAUGHT = object()
"""Sent into a frame that goes on in a handler."""


def _generator(machine: Machine, frame: Frame) -> Generator[Any, Any, Any]:
    """A generator of Python's that runs ``frame``."""
    sent: Any = None
    while True:
        signal = machine.resumed(frame, sent)
        if signal is RETURNED:
            return frame.result
        try:
            if signal is DELEGATED:
                sent = yield from frame.result
            elif signal is YIELDED:
                sent = yield frame.result
        except BaseException as error:
            if not machine.thrown_into(frame, error):
                raise
            sent = _CAUGHT


def is_generator_of_machine(generator: GeneratorType[Any, Any, Any]) -> bool:
    """Whether a generator runs a frame of the interpreter's."""
    return generator.gi_code is _generator.__code__


def goes_on(machine: Machine) -> bool:
    """Whether the program may go on after an exception of an instruction in progress."""
    return any(map(_may_go_on, machine.frames))
