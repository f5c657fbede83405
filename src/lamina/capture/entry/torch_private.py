"""Every private torch name on the way into a compiled function, with the versions it was read in (2.11 to 2.13)."""

from __future__ import annotations

import functools
import hashlib
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import getsource
from types import CellType, CodeType, FunctionType
from typing import Any

import torch
from torch import _guards
from torch._C._dynamo.eval_frame import set_code_exec_strategy
from torch._dynamo import config, eval_frame, external_utils
from torch._dynamo.convert_frame import CatchErrorsWrapper, compile_lock
from torch._dynamo.exc import (
    ShortenTraceback,
    UncapturedHigherOrderOpError,
    Unsupported,
    UserError,
)
from torch._dynamo.mutation_guard import GenerationTracker, install_generation_tagging_init
from torch._dynamo.utils import warn_once
from torch.autograd import forward_ad
from torch.fx import _symbolic_trace
from torch.nn.parameter import is_lazy
from torch.utils import _config_module

from lamina.base.modes import autocast_kept
from lamina.base.user_frames import shortened
from lamina.capture.events.torch_private import refused_recompile
from lamina.capture.frame_hook.torch_private import take_off_hook
from lamina.capture.frames.torch_private import SKIPPED, callback_within
from lamina.capture.log import CaptureLog
from lamina.errors import LaminaError

__all__ = ["compiling_alone", "improve_entry"]

_dynamo: Any = eval_frame  # its stubs lack names that it takes from C, and those of other versions


def improve_entry(compiled: Any, log: CaptureLog, strict: bool = False, by_torch: bool = False) -> Any:
    """``compiled``, which ``torch.compile`` made of a function, module or class, with another way in from Python.

    A call takes fewer steps, see ``_entry``. And it is no longer refused while another thread compiles: FX says in one
    flag for all threads that a trace is going on, and Dynamo's wrapper refuses to be called then. A function whose
    capture fails is run by Python, see ``callback_within``, and ``log`` is told; with ``strict``, only if its inputs
    may be to blame. Called as they are: wrappers of unchecked source (see ``_READ_SOURCES``), and all ``by_torch``.
    """
    if isinstance(compiled, torch.nn.Module):
        for name in ("forward", "_forward"):
            if isinstance(vars(compiled).get(name), FunctionType):
                object.__setattr__(compiled, name, improve_entry(vars(compiled)[name], log, strict, by_torch))
        return compiled
    if isinstance(compiled, type):
        for name in ("__call__", "_call_impl"):
            if isinstance(vars(compiled).get(name), FunctionType):
                setattr(compiled, name, improve_entry(vars(compiled)[name], log, strict, by_torch))
        return compiled
    code, closure = getattr(compiled, "__code__", None), getattr(compiled, "__closure__", None) or ()
    cells: dict[str, CellType] = dict(zip(getattr(code, "co_freevars", ()), closure, strict=False))
    if cells.keys() != _READ_VARIABLES:
        return compiled
    cells["is_fx_symbolic_tracing"].cell_contents = _traced_by_this_thread
    _compile_apart(cells["fn"].cell_contents)
    if by_torch or not _can_be_entered(compiled, cells):
        return compiled
    return _entry(compiled, cells, log, strict)


_SHARED_FRAME = external_utils.wrap_inline(lambda: None).__code__
_frames: weakref.WeakValueDictionary[object, CodeType] = weakref.WeakValueDictionary()
"""The code of frames around modules of torch's own classes, by what modules that share it have in common."""


def _compile_apart(function: Any) -> None:
    """Give the frame that Dynamo puts around a module of torch's own code that only modules like it share.

    Dynamo keeps what it compiled, and how often, by code: all modules of torch's own classes in a process would share
    the eight times that one function is compiled.
    """
    if getattr(function, "__code__", None) is not _SHARED_FRAME:
        return
    wrapped = function.__wrapped__
    module = getattr(wrapped, "__self__", wrapped)
    if isinstance(module, torch.nn.Module):
        kind = _kind_of(module)
        code = _frames.get(kind)
        if code is None:
            code = _frames[kind] = _SHARED_FRAME.replace(co_varnames=_SHARED_FRAME.co_varnames)
        function.__code__ = code


def _kind_of(module: torch.nn.Module) -> object:
    """Classes of the module's parts and what its parameters and buffers look like, all by name."""
    parts = tuple((name, type(part)) for name, part in module.named_modules())
    tensors = (*module.named_parameters(), *module.named_buffers())
    looks = tuple((name, None if is_lazy(t) else t.shape, t.dtype, t.device) for name, t in tensors)
    return parts, looks


@contextmanager
def compiling_alone() -> Iterator[None]:
    """Inside, no other thread captures or compiles; it may be entered again. Others that enter it wait.

    FX keeps what a trace has patched in one place for all threads: of two traces at once, the first that ends would
    undo the other's patches.
    """
    with compile_lock:
        yield


def _traced_by_this_thread() -> bool:
    if not _symbolic_trace.is_fx_symbolic_tracing():
        return False
    if not compile_lock.acquire(blocking=False):
        return False
    try:
        # Nobody else compiles now; the flag may have been that of a compilation that just ended.
        return bool(_symbolic_trace.is_fx_symbolic_tracing())
    finally:
        compile_lock.release()


_READ_VARIABLES = frozenset({"callback", "fn", "is_fx_symbolic_tracing", "is_jit_tracing", "self"})

_READ_SOURCES = frozenset(("ea4c4245499bb2ee", "804863209419e9e5", "0dfb1c01dcc3cda2"))
"""Digests of the sources of torch's wrapper that ``_entry`` was checked against: those of torch 2.11, 2.12 and 2.13."""


@functools.lru_cache(maxsize=64)
def _source_digest(code: CodeType) -> str:
    """What tells the source of a function from others, but for blank lines and comments; "" if it is not to be had."""
    try:
        lines = [line.strip() for line in getsource(code).splitlines()]
    except (OSError, TypeError):
        return ""
    return hashlib.sha256("\n".join(line for line in lines if line and line[0] != "#").encode()).hexdigest()[:16]


def _can_be_entered(wrapper: Any, cells: dict[str, CellType]) -> bool:
    """Whether ``_entry`` knows all that ``wrapper`` does."""
    context = cells["self"].cell_contents
    return (
        _source_digest(wrapper.__code__) in _READ_SOURCES
        and type(context) is _dynamo.OptimizeContext
        and type(cells["callback"].cell_contents) is CatchErrorsWrapper
        and context.error_on_graph_break is None
        and not context.export
        # A setting for dynamic sizes and the count of generations, not the contexts that some backends ask for.
        and len(context.enter_exit_hooks) == (1 if context._dynamic is None else 2)
        and _dynamo._maybe_set_eval_frame is _dynamo.set_eval_frame
        and _STRICT.default is False
    )


# Whether compiling a frame that a whole-graph function calls is an error: the setting, what a user set (_UNSET if
# nothing), and how Dynamo is told that it is none.
_STRICT = getattr(config, "_config")["error_on_dynamo_callback_in_fullgraph_compiled_code"]  # noqa: B009
_UNSET = _config_module._UNSET_SENTINEL
_set_strict: Any
if hasattr(_dynamo, "set_fullgraph_error_on_nested_compile"):
    _strict: Callable[[], Any] = _STRICT.user_override.get
    _set_strict, _NOT_STRICT = _dynamo.set_fullgraph_error_on_nested_compile, False
else:
    _strict = functools.partial(getattr, _STRICT, "user_override")
    _set_strict, _NOT_STRICT = _dynamo.set_eval_frame_override, _dynamo._EvalFrameOverride.SKIP
_set_count: Any = getattr(_dynamo, "set_fullgraph_compiled_frame_count", None)
_set_isolation: Any = getattr(_dynamo, "set_eval_frame_isolate_recompiles_id", None)


def _entry(wrapper: Any, cells: dict[str, CellType], log: CaptureLog, strict: bool) -> Any:  # noqa: C901
    """A function that does what torch's ``wrapper`` does, and calls it whenever that is more than the usual.

    The usual is: no stance, no trace in progress (``torch.export``'s is one). What is set back after the call is the
    same; questions to torch's settings, which are Python functions, are asked when a frame is compiled.
    Within a level of forward-mode differentiation the function runs uncompiled: kernels know no tangents, and Dynamo
    does not ask whether there are any.
    """
    context, function = cells["self"].cell_contents, cells["fn"].cell_contents
    fullgraph, isolation = context.fullgraph, getattr(context, "_isolate_recompiles_id", -1)
    callback = cells["callback"].cell_contents = callback_within(cells["callback"].cell_contents, context, log, strict)
    install_generation_tagging_init()

    thread, reasons = _guards._TLS, _dynamo.dynamo_tls
    is_jit_tracing, other_way = cells["is_jit_tracing"].cell_contents, _with_our_errors(wrapper)
    set_callback, set_unsafe = _dynamo.set_eval_frame, _dynamo.set_skip_guard_eval_unsafe
    set_strict, set_count, set_isolation, is_strict = _set_strict, _set_count, _set_isolation, _strict
    depth_of_transforms = torch._C._functorch.get_dynamic_layer_stack_depth
    leave_transforms = torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth
    uncompiled: Callable[..., Any] = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
    names = wrapper.__code__.co_names
    keep_keys: Any = torch._C._PreserveDispatchKeyGuard if "_ForceDispatchKeyGuard" in names else None
    fails_uncompiled = "_stance" in names
    within_autocast: Any = torch._C._is_any_autocast_enabled

    # Calls nothing but C until it calls the function: other frames would be seen by the callback of a caller.
    def entry(*args: Any, **kwargs: Any) -> Any:  # noqa: C901
        if forward_ad._current_level >= 0:
            return uncompiled(*args, **kwargs)
        stance = _dynamo._stance
        if (
            stance.stance != "default"
            or stance.backend is not None
            or stance.skip_guard_eval_unsafe
            or thread.__dict__.get("tracing_context") is not None
            or _symbolic_trace._is_fx_tracing_flag
            or is_jit_tracing()
            or (fullgraph and is_strict() not in (_UNSET, False))
        ):
            return other_way(*args, **kwargs)
        counts, asks, left, autocast, ended = False, False, False, within_autocast(), True
        GenerationTracker.generation += 1
        unsafe, depth = set_unsafe(False), depth_of_transforms()
        if set_isolation is not None:
            isolated = set_isolation(isolation)
        if keep_keys is not None:
            keys = keep_keys()
            keys.__enter__()
        if fullgraph:
            was_strict = set_strict(_NOT_STRICT)
            if set_count is not None and set_count(0) < 0:
                counts, asks, reasons.skip_reasons = True, True, []
        prior = set_callback(None)  # one callback that takes the place of another counts as one more (2.13)
        set_callback(callback)
        try:
            result = function(*args, **kwargs)
            frames = set_count(-1) if counts else None
            counts = False  # it is one count for all threads, and now another's to end
            if frames == 0:
                ended = set_callback(None)
                _nothing_compiled(fails_uncompiled)
            if callback.unsettled:
                ended = set_callback(None)
                callback.finished()
            left = within_autocast() != autocast  # is a dispatch key, and the function's own to leave switched
            return result
        except (Unsupported, UncapturedHigherOrderOpError, UserError) as error:
            ended = set_callback(None)
            if config.verbose:
                raise
            raise error.with_traceback(None) from _without_traceback(error.__cause__)
        except ShortenTraceback as error:
            ended = set_callback(None)
            raise (shortened(error) if isinstance(error, LaminaError) else error.remove_dynamo_frames()) from None
        finally:
            if (set_callback(None) if ended is True else ended) is None:  # an error in the callback has taken it away
                take_off_hook()
            set_back = autocast_kept() if left or callback.switches else None
            if fullgraph:
                set_strict(was_strict)
                if counts:
                    set_count(-1)
                if asks:
                    reasons.skip_reasons = None
            try:
                leave_transforms(depth)
            finally:
                if keep_keys is not None:
                    keys.__exit__(None, None, None)
                if set_back is not None:
                    set_back()
                if set_isolation is not None:
                    set_isolation(isolated)
                set_unsafe(unsafe)
                set_callback(prior)

    callback.entry = entry.__code__
    set_code_exec_strategy(entry.__code__, SKIPPED)  # left alone where a function that runs uncompiled calls it
    vars(functools.update_wrapper(entry, wrapper)).update(vars(wrapper), _torchdynamo_wrapper_id=id(entry))
    return entry


def _without_traceback(error: BaseException | None) -> BaseException | None:
    """``error``, it and what caused it without their tracebacks."""
    cause = error
    while cause is not None:
        cause = cause.with_traceback(None).__cause__
    return error


def _with_our_errors(wrapper: Any) -> Any:
    """``wrapper``, with the error of the stance that forbids to compile anything again in our words."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return wrapper(*args, **kwargs)
        except RuntimeError as error:
            if _dynamo._stance.stance != "fail_on_recompile":
                raise
            raise refused_recompile(error) from error.__cause__

    set_code_exec_strategy(call.__code__, SKIPPED)
    return call


def _nothing_compiled(fails: bool) -> None:
    """Say that a function that is to be one graph ran without one."""
    skipped = [f"  - {reason}" for reason in _dynamo.dynamo_tls.skip_reasons]
    message = "torch.compile with fullgraph=True found no compiled frames."
    if not fails:
        warn_once(f"{message} The frame was skipped, as under a dispatch mode or with Dynamo disabled.")
    elif _dynamo._stance.stance == "default":
        raise RuntimeError(
            "\n".join([f"{message} Skipped frames:", *skipped]) if skipped else f"{message} None was tried."
        )


def _free_compile_lock() -> None:
    """In a forked child: a lock that another thread held is held by nobody, for that thread is not there."""
    if not compile_lock._is_owned():  # type: ignore[attr-defined]
        compile_lock._at_fork_reinit()  # type: ignore[attr-defined]
        _symbolic_trace._is_fx_tracing_flag = False  # that of the whole process, set by that thread


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_compile_lock)
