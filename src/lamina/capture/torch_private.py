"""Every private torch name that capture uses, with the versions it was read in (2.11 to 2.13)."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from importlib.metadata import EntryPoint
from typing import Any

import torch
from torch._dynamo import config
from torch._dynamo.backends.registry import _BACKENDS
from torch._dynamo.callback import callback_handler
from torch._dynamo.exc import ShortenTraceback, SkipFrame
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.source import GlobalStateSource
from torch._dynamo.variables.builder import VariableBuilder
from torch._dynamo.variables.builtin import BuiltinVariable
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.tensor import TensorVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable
from torch._guards import Guard, TracingContext
from torch.autograd import forward_ad
from torch.fx.node import has_side_effect

from lamina.base.collector import hold_collector, release_collector
from lamina.base.fx.torch_private import write_powers
from lamina.base.user_frames import shortened
from lamina.capture.arrays.torch_private import break_at_arrays
from lamina.capture.cached_functions.torch_private import keep_cached_results
from lamina.capture.comparisons.torch_private import break_at_comparisons
from lamina.capture.copies.torch_private import break_at_copies
from lamina.capture.deques.torch_private import keep_bounds_of_deques
from lamina.capture.finalizers.torch_private import leave_finalizers_to_python
from lamina.capture.frame_hook.torch_private import take_off_lost_hook
from lamina.capture.guards.torch_private import invalidate_isolated
from lamina.capture.metaclasses.torch_private import break_at_metaclasses
from lamina.capture.missing_attributes.torch_private import note_missing_attributes
from lamina.capture.optimizers.torch_private import correct_optimizers
from lamina.capture.python_numbers.torch_private import correct_numbers
from lamina.capture.python_ranges.torch_private import correct_ranges
from lamina.capture.recurrent_layers.torch_private import correct_recurrent_layers
from lamina.capture.torch_functions.torch_private import correct_functions
from lamina.capture.trace_corrections.torch_private import compiles_for_lamina, correct_traces
from lamina.capture.trace_notes.torch_private import take_notes
from lamina.capture.two_names.torch_private import follow_second_names
from lamina.errors import LaminaError

__all__ = [
    "guard_empty_hooks",
    "leave_to_python",
    "name_backend",
    "passed_through",
    "seconds_since_compile_started",
    "serve_any_hooks",
    "serve_without_tangents",
    "watch_compile_start",
]

_started = threading.local()

# Torch removes calls without a result as dead code where it does not know them to matter: an assertion without a
# message, a print, and in 2.11 the check of a factorisation. An inverse of a singular matrix would pass in silence.
# Graphs of any compiler keep them from here on.
for _call in ("_linalg_check_errors", "_assert_async", "_print"):
    has_side_effect(getattr(torch.ops.aten, _call).default)


def passed_through(error: Exception) -> Exception:
    """``error`` as one that Dynamo hands to the caller as it is, where it would wrap any other of a backend.

    It arrives there with the user's frames alone.
    """
    kind: Any = type(error)
    mixed = _passed_through(kind)
    found: Exception = mixed.__new__(mixed, *error.args)
    found.__dict__.update(error.__dict__, first_useful_frame=None)
    return found.with_traceback(error.__traceback__)


@functools.cache  # Lamina's classes of errors
def _passed_through(kind: type[Exception]) -> type[Exception]:
    """``kind`` under its own name as one of those that Dynamo knows."""
    names = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        "remove_dynamo_frames": _shortened,  # what torch's wrapper asks of such an error
    }
    return type(kind.__name__, (kind, ShortenTraceback), names)


def _shortened(error: Any) -> LaminaError:
    take_off_lost_hook()
    return shortened(error)


def leave_to_python(why: str) -> SkipFrame:
    """What a backend raises so that Dynamo lets Python run the function whose graph it was given."""
    return SkipFrame(why)


def name_backend(name: str, place: str) -> None:
    """Let ``torch.compile`` know the backend at ``place`` ("module:function") by ``name``, once it is imported.

    An installed package has an entry point for that; one that is only on the path has none.
    """
    _BACKENDS.setdefault(name, EntryPoint(name, place, "torch_dynamo_backends"))


def guard_empty_hooks() -> int:
    """Make the graph being compiled depend on the hooks its modules do not have yet.

    Dynamo traces a module's hook dictionaries but by default installs no guard on the empty ones, so that a hook
    registered after the first call never fires. Those placeholders sit in the guard set of the current trace, each
    naming its dictionary; giving them the ordinary length guard closes the hole for this graph alone, with no
    global setting touched and nothing to do per call. Returns how many guards were strengthened.
    """
    context = TracingContext.try_get()
    if context is None:
        return 0
    found = 0
    for guard in context.guards_context.dynamo_guards:
        if guard.create_fn is GuardBuilder.EMPTY_NN_MODULE_HOOKS_DICT:
            guard.create_fn = GuardBuilder.SEQUENCE_LENGTH
            found += 1
    return found


def serve_any_hooks() -> None:
    """Let the graph being compiled serve under whatever hooks on saved tensors there are when it is called.

    Dynamo guards on hooks that are graphs themselves, which AOTAutograd writes into the graph if they are there when it
    is compiled: a Python function to be asked at each call. All other hooks are called by compiled functions as they
    find them, and so are those, if there are none now.
    """
    context = TracingContext.try_get()
    if context is not None and torch._C._autograd._top_saved_tensors_default_hooks(True) is None:
        guards = context.guards_context.dynamo_guards
        for guard in [g for g in guards if g.create_fn is GuardBuilder.AUTOGRAD_SAVED_TENSORS_HOOKS]:
            guards.inner.discard(guard)


def serve_without_tangents() -> bool:
    """Let the graph being compiled serve only at the level of forward-mode differentiation that there is now.

    Dynamo does not ask for it, and kernels drop tangents. Whether the graph may be compiled: not within a level.
    """
    context = TracingContext.try_get()
    if context is not None:
        guard = Guard(GlobalStateSource(), GuardBuilder.DUAL_LEVEL)
        context.guards_context.dynamo_guards.add(guard, collect_debug_stack=False)
    return forward_ad._current_level < 0


def _keep_signs_of_zeros() -> None:
    """Let Dynamo treat a float that is zero as a constant where Lamina compiles.

    As a symbol it becomes a number of SymPy's wherever a graph needs its value, and that has no negative zero. Dynamo's
    guard on constants takes both zeros for one, which ``guard_unguarded`` mends.
    """
    wrap_any = VariableBuilder.wrap_symfloat

    @functools.wraps(wrap_any)
    def wrap(self: VariableBuilder, value: float) -> Any:
        if value != 0.0 or not compiles_for_lamina(self.tx.output):
            return wrap_any(self, value)
        with config.patch(specialize_float=True):
            return wrap_any(self, value)

    VariableBuilder.wrap_symfloat = wrap  # type: ignore[method-assign]


def _keep_scaled_additions() -> None:
    """Let Dynamo capture ``addcdiv``, ``addcdiv_`` and ``addcmul_`` with a number as they are where Lamina compiles.

    It writes them in parts, so that a tensor may take the number's place: the parts are rounded, overflow and turn
    zeros into NaN elsewhere than the whole.
    """

    def keeping(written: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(written)
        def call(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(kwargs.get("value"), ConstantVariable) and compiles_for_lamina(tx.output):
                return None
            return written(self, tx, *args, **kwargs)

        return call

    for name in ("method_addcdiv_", "method_addcmul_"):
        if hasattr(TensorVariable, name):
            setattr(TensorVariable, name, keeping(getattr(TensorVariable, name)))
    handlers = TorchInGraphFunctionVariable._get_handlers()
    handlers[torch.addcdiv] = keeping(handlers[torch.addcdiv])


def _look_methods_up_again() -> None:
    """Have Dynamo forget which of its methods it found for which values, since some are replaced.

    It keeps them in tables. Where a function was compiled by another backend first, those would name what was there
    before.
    """
    for kind in (VariableBuilder, BuiltinVariable):
        for item in vars(kind).values():
            forget = getattr(getattr(item, "__func__", item), "cache_clear", None)
            if forget is not None:
                forget()
    BuiltinVariable.call_function_handler_cache.clear()


write_powers()
_keep_signs_of_zeros()
_keep_scaled_additions()
correct_traces()
take_notes()
follow_second_names()
break_at_copies()
keep_bounds_of_deques()
break_at_arrays()
break_at_comparisons()
correct_numbers()
correct_ranges()
correct_functions()
correct_optimizers()
correct_recurrent_layers()
break_at_metaclasses()
keep_cached_results()
invalidate_isolated()
leave_finalizers_to_python()
note_missing_attributes()
_look_methods_up_again()


def watch_compile_start() -> None:
    """Note, per thread, when Dynamo starts on a frame, from now to the next ``torch.compiler.reset()``.

    Garbage collection waits until it is through with it: nearly all that is built meanwhile lives on.
    """
    if _note_start not in callback_handler.start_callbacks:
        callback_handler.register_start_callback(_note_start)
        callback_handler.register_end_callback(_note_end)


def _note_start(*_: Any) -> None:
    _started.at = time.perf_counter()
    hold_collector("capture")


def _note_end(*_: Any) -> None:
    release_collector("capture")


def seconds_since_compile_started() -> float:
    """Seconds since Dynamo started on the frame being compiled in this thread; 0 when that was not seen."""
    at: float | None = getattr(_started, "at", None)
    return 0.0 if at is None else time.perf_counter() - at
