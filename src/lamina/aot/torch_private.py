"""Private torch names that tracing, its modes and captured graphs need, as read in torch 2.11 to 2.13."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch._C._dynamo.guards import compute_overlapping_tensors
from torch._decomp.decompositions import upsample_compute_output_size
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.exc import TorchDynamoException, exceptions_allowed_to_be_fallback
from torch._dynamo.utils import (
    numpy_method_wrapper,
    numpy_operator_wrapper,
    numpy_to_tensor_wrapper,
    preserve_rng_state,
)
from torch._functorch._aot_autograd.functional_utils import from_fun, has_data_mutation, has_metadata_mutation, to_fun
from torch._guards import StorageOverlap, TracingContext, detect_fake_mode
from torch._ops import OpOverload
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state
from torch._prims_common import suggest_memory_format as suggested_format
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx
from torch.fx.experimental.symbolic_shapes import (
    ConstraintViolationError,
    ShapeEnv,
    find_symbol_binding_fx_nodes,
)
from torch.utils.checkpoint import CheckpointPolicy

from lamina.aot.engine.torch_private import (
    SET_GRAD,
    autocast_enabled,
    graph_is_kept,
    has_storage,
    is_grad_enabled,
    is_transformed,
    is_zero_tensor,
    never_captured,
    saving_is_hooked,
    transforms_are_active,
    without_autocast,
)
from lamina.base.symbolic.torch_private import is_fake
from lamina.base.torch_private import is_leaf as is_known_leaf
from lamina.base.torch_private import let_go, transforms_kept

__all__ = [
    "ASSERT",
    "ENTER_AUTOCAST",
    "ENTER_INFERENCE",
    "EXIT_AUTOCAST",
    "EXIT_INFERENCE",
    "RUN_AND_SAVE_RNG_STATE",
    "RUN_WITH_RNG_STATE",
    "SET_FORWARD_GRAD",
    "SET_GRAD",
    "STATELESS",
    "STATIC_INPUT",
    "asks_for_another_capture",
    "autocast_enabled",
    "autocast_states",
    "backend_fakes",
    "binding_nodes",
    "calling_state",
    "calls_numpy",
    "detect_fake_mode",
    "dispatch_is_watched",
    "dispatched_in_python",
    "forward_grad_enabled",
    "from_functional",
    "functional_trace",
    "graph_is_kept",
    "guard_overlap",
    "has_changed_metadata",
    "has_storage",
    "is_checkpointed",
    "is_grad_enabled",
    "is_leaf",
    "is_torch_function",
    "is_transformed",
    "is_written_to",
    "is_zero_tensor",
    "keep_for_backward",
    "mode_apart",
    "never_captured",
    "overlapping",
    "plain_dispatch",
    "random_numbers_kept",
    "refuses_history",
    "resampled_size",
    "saving_is_hooked",
    "share_history",
    "suggested_format",
    "switches_state",
    "to_functional",
    "traced_nodes",
    "tracing_state",
    "transforms_are_active",
    "without_autocast",
    "without_function_modes",
]


def asks_for_another_capture(error: Exception) -> bool:
    """Whether Dynamo reads ``error`` as an answer: trace again, break the graph, or refuse as the user asked."""
    answers = (TorchDynamoException, ConstraintViolationError)
    return isinstance(error, (*answers, *exceptions_allowed_to_be_fallback))


def overlapping(tensors: Sequence[torch.Tensor]) -> set[int]:
    """Which of the tensors in one storage may overlap another, as the guard of ``guard_overlap`` tells."""
    return set(compute_overlapping_tensors(list(tensors), symbolic=True))


def guard_overlap(gm: GraphModule, overlapping: Sequence[int], apart: Sequence[int]) -> None:
    """Let Dynamo reuse the graph being compiled only where the inputs at these places overlap in memory, and those not.

    All of them lie in one storage, and that they do is not asked again: the guard looks at places in it. Overlapping is
    what shares an element with any other of them. Nothing happens outside of a capture.
    """
    context = TracingContext.try_get()
    given = [node.meta.get("grapharg") for node in gm.graph.find_nodes(op="placeholder")]
    sources = [getattr(argument, "source", None) for argument in given]
    if context is None or any(sources[i] is None for i in (*overlapping, *apart)):
        return
    guard = StorageOverlap([sources[i] for i in overlapping], [sources[i] for i in apart])  # type: ignore[misc]
    context.guards_context.aotautograd_guards.append(guard)


def is_leaf(tensor: torch.Tensor) -> bool:
    """Whether a tensor that requires a gradient has no history: that of a stale view is its base's.

    Autograd makes the history of a view anew once the base was written to, and refuses to for some of them.
    """
    try:
        return is_known_leaf(tensor)
    except RuntimeError:
        made = torch._C._autograd._get_creation_meta(tensor)
        return bool(made == torch._C._autograd.CreationMeta.NO_GRAD_MODE)


def refuses_history(tensor: torch.Tensor) -> bool:
    """Whether autograd raises where the history of a view is asked for, since it was written to."""
    try:
        _ = tensor.is_leaf
    except RuntimeError:
        return True
    return False


def share_history(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one memory are the same object or views of which autograd knows that."""
    return one is other or any(a is b for a in (one, one._base) for b in (other, other._base) if a is not None)


def binding_nodes(graph: Graph) -> dict[Any, Node]:
    """Symbol to the node of ``graph`` whose value it is."""
    return dict(find_symbol_binding_fx_nodes(graph))


def is_checkpointed(node: Node) -> bool:
    """Whether the user's activation checkpointing has a say on ``node``."""
    return node.meta.get("recompute") is not None


def keep_for_backward(node: Node) -> None:
    """Exempt ``node`` from the user's activation checkpointing: its value is saved."""
    node.meta["recompute"] = CheckpointPolicy.MUST_SAVE


RUN_AND_SAVE_RNG_STATE: Any = run_and_save_rng_state
"""Of an operation that draws and its arguments: the generator's state before it, and its result."""

RUN_WITH_RNG_STATE: Any = run_with_rng_state
"""Of a state, an operation that draws and its arguments: its result when it draws from that state."""

ASSERT = torch._assert_async
"""What an ``assert`` on a tensor is captured as."""

ENTER_AUTOCAST = torch.amp.autocast_mode._enter_autocast
"""The call by which a captured graph enters an autocast region; its fourth argument is whether that is enabled."""

ENTER_INFERENCE = torch.autograd.grad_mode._enter_inference_mode
"""The call by which a captured graph enters inference mode, or with False leaves it; its value is what exits again."""

EXIT_INFERENCE = torch.autograd.grad_mode._exit_inference_mode
"""The call by which a captured graph goes back to the mode in which it entered inference mode."""

EXIT_AUTOCAST: Any = torch.amp.autocast_mode._exit_autocast
"""The call by which a captured graph leaves an autocast region, given what entering it returned."""

SET_FORWARD_GRAD = torch._C._set_fwd_grad_enabled
"""The call by which a captured graph switches forward-mode differentiation."""


def switches_state(target: Any) -> bool:
    """Whether a captured call switches state of the thread or the process: not in pairs, and other than gradients.

    Levels of function transforms come in pairs, which AOTAutograd follows.
    """
    name = getattr(target, "__name__", "")
    if not callable(target) or (getattr(target, "__module__", "") or "").startswith("torch._C._functorch"):
        return False
    return target not in (SET_GRAD, SET_FORWARD_GRAD) and name.startswith(("set_", "_set_", "autocast_"))


def forward_grad_enabled() -> bool:
    """Whether operations compute tangents of dual tensors."""
    return bool(torch._C._is_fwd_grad_enabled())


STATIC_INPUT = "_dynamo_static_input_type"
"""Key of a placeholder's description where Dynamo marks parameters and buffers."""
STATELESS = (EXIT_AUTOCAST, torch._C._log_api_usage_once)
"""Calls of captured graphs that compute nothing."""


def backend_fakes(inputs: Sequence[torch.Tensor]) -> tuple[Any, list[torch.Tensor]]:
    """The FakeTensorMode Dynamo gives backends (None without one) and, of it, a fake of static size for each input."""
    mode = detect_fake_mode(list(inputs))
    if mode is None:
        return None, []
    return mode, [x if is_fake(x) else mode.from_tensor(x, static_shapes=True) for x in inputs]


def mode_apart() -> Any:
    """A FakeTensorMode that shares no symbols with the capture: what runs in it adds no guards there."""
    return FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)


def plain_dispatch() -> bool:
    """Whether operations mean what they mean without modes: no autocast, no function transform, no active mode."""
    return (
        not autocast_enabled()
        and torch._C._functorch.peek_interpreter_stack() is None
        and torch._C._len_torch_dispatch_stack() == 0
    )


@contextlib.contextmanager
def tracing_state(fake_mode: Any) -> Iterator[None]:
    """What tracing needs around it: the fake mode, Python decompositions, and the random generators left alone.

    Hooks of the caller's on saved tensors (``checkpoint`` has some) see the compiled function's, not those of tracing.
    A captured graph that raises within a function transform of its own leaves neither the transform nor what that
    forbids.
    """
    hooked = saving_is_hooked(True) is not None  # transforms refuse hooks, so that there are none but to hide some
    unseen = torch.autograd.graph.saved_tensors_hooks(_itself, _itself) if hooked else contextlib.nullcontext()
    with transforms_kept():
        try:
            with preserve_rng_state(), fake_mode, enable_python_dispatcher(), unseen:
                yield
        except Exception as error:
            let_go(error)
            raise


# The result's sizes from those of the input and either wanted sizes or factors.
resampled_size: Callable[..., Any] = upsample_compute_output_size


@contextlib.contextmanager
def dispatched_in_python(op: Any, changed: Callable[..., Any] | None) -> Iterator[None]:
    """Inside, ``changed(function)`` stands for each function that takes ``op`` apart; None: C++'s kernels do.

    The functions are Python's, or C++'s where there is none of Python's.
    """
    keys = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)
    before = {key: op.py_kernels.pop(key) for key in keys if key in op.py_kernels}
    if changed is not None:
        apart = before or {keys[1]: partial(op._op_dk, keys[1])}
        op.py_kernels.update({key: changed(function) for key, function in apart.items()})
    op._dispatch_cache.clear()
    try:
        yield
    finally:
        for key in keys:
            op.py_kernels.pop(key, None)
        op.py_kernels.update(before)
        op._dispatch_cache.clear()


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


# What every call of a compiled region asks torch, without a function of ours in between: whether autocast is on for any
# device, gradients are recorded, a function transform (``torch.func``) is in progress; whether the backward in progress
# may be run again, since its caller asked to retain the graph; and, given True, the caller's hooks on tensors that are
# saved for a backward, None without.


def without_function_modes() -> contextlib.AbstractContextManager[Any]:
    """Inside, no mode sees the calls of torch functions."""
    disabled: contextlib.AbstractContextManager[Any] = torch._C.DisableTorchFunction()
    return disabled


def random_numbers_kept() -> contextlib.AbstractContextManager[Any]:
    """What draws inside leaves the generators as they were."""
    kept: contextlib.AbstractContextManager[Any] = preserve_rng_state()
    return kept


def dispatch_is_watched() -> bool:
    """Whether operations of this thread go through a dispatch mode or a function transform."""
    transformed = torch._C._functorch.peek_interpreter_stack() is not None
    return transformed or torch._C._len_torch_dispatch_stack() > 0


def calling_state() -> tuple[object, ...]:
    """What decides, besides its arguments, what a call on the CPU gives, or whether it is refused."""
    return (
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


def autocast_states() -> list[dict[str, Any]]:
    """The states of autocast in this thread, as arguments of ``torch.autocast``."""
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    return [
        {"device_type": d, "dtype": torch.get_autocast_dtype(d), "enabled": torch.is_autocast_enabled(d)}
        for d in devices
    ]


_PUBLIC = ("torch", "torch.functional", "torch.nn.functional", "_operator")
_BEHIND_PUBLIC = ("torch._C._nn", "torch._C._special", "torch._C._linalg", "torch._C._fft")


def is_torch_function(target: Any) -> bool:
    """Whether a captured call is of a function of torch's own or of ATen: all it does is read and write tensors."""
    if isinstance(target, OpOverload):
        return bool(target.namespace == "aten")
    return callable(target) and getattr(target, "__module__", None) in _PUBLIC + _BEHIND_PUBLIC


def functional_trace(
    function: Callable[..., Any], primals: Sequence[torch.Tensor], rules: dict[Any, Callable[..., Any]]
) -> Graph:
    """The graph of ``function``, which makes its tensors functional itself, of fake ``primals``."""
    key = torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)

    def run(*primals: torch.Tensor) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(key):
            return function(*primals)

    with FunctionalTensorMode():
        graph: Graph = make_fx(run, decomposition_table=rules)(*primals).graph
    return graph


def to_functional(tensor: torch.Tensor) -> Any:
    """``tensor`` such that writes to it make new values."""
    return to_fun(tensor)


def from_functional(tensor: Any) -> Any:
    """The value a functional tensor has by now."""
    return from_fun(tensor)


def is_written_to(tensor: Any) -> bool:
    """Whether a functional tensor was written to; a plain one is not."""
    return isinstance(tensor, FunctionalTensor) and bool(has_data_mutation(tensor))


def has_changed_metadata(tensor: Any, original: torch.Tensor) -> bool:
    """Whether a functional tensor made from ``original`` now has another shape, storage or layout."""
    return bool(has_metadata_mutation(tensor, original, check_only_storage_mutation=False))


def traced_nodes() -> int:
    """How many nodes the trace in progress has."""
    mode = get_proxy_mode()
    return 0 if mode is None else len(mode.tracer.graph.nodes)


def calls_numpy(target: Any) -> bool:
    """Whether a captured call is NumPy's function, method or operator, as torch computes it."""
    return isinstance(target, (numpy_method_wrapper, numpy_operator_wrapper, numpy_to_tensor_wrapper))
