"""The private torch names that programs, and observing them, take (2.11 to 2.13)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch._dynamo.config
from torch import Tensor
from torch._decomp import get_decompositions
from torch._higher_order_ops.map import map as each
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch._ops import HigherOrderOperator
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = [
    "NORMS_APART",
    "SUMS_APART",
    "PerturbedMode",
    "autocast_depth",
    "each",
    "scan",
    "state_of_thread",
    "unbacked",
    "while_loop",
]

_aten = torch.ops.aten


def autocast_depth() -> int:
    """In how many autocast regions this thread is; as long as it is in one, casts of weights are kept."""
    torch.autocast_increment_nesting()
    return int(torch.autocast_decrement_nesting())


def state_of_thread() -> dict[str, object]:
    """What a call might leave behind in this thread beside what torch has functions for: transforms, modes, hooks."""
    return {
        "function transforms": torch._C._functorch.get_dynamic_layer_stack_depth(),
        "function modes": torch._C._len_torch_function_stack(),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "hooks on saved tensors": torch._C._autograd._top_saved_tensors_default_hooks(True) is not None,
        "why no hooks on saved tensors": torch._C._autograd._saved_tensors_hooks_get_disabled_error_message(),
        "forward mode": forward_ad._current_level,
        "gradients in forward mode": torch._C._is_fwd_grad_enabled(),
        "multithreading": torch._C._is_multithreading_enabled(),
        "view replay": torch._C._is_view_replay_enabled(),
        "keys excluded": str(torch._C._dispatch_tls_local_exclude_set()),
        "keys included": str(torch._C._dispatch_tls_local_include_set()),
        "functions of subclasses": torch._C._is_torch_function_enabled(),
    }


_COMPOSED = torch._C.DispatchKey.CompositeImplicitAutograd

_NORMS = [
    _aten.native_batch_norm,
    _aten.native_batch_norm_backward,
    _aten.native_layer_norm,
    _aten.native_layer_norm_backward,
    _aten.native_group_norm,
    _aten.native_group_norm_backward,
]

NORMS_APART: Any = get_decompositions(_NORMS)
"""Operation that normalises, or its gradient, to a function that computes the same by smaller operations."""


def _group_norm_backward(
    gradient: Tensor, x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor | None, *sizes: Any
) -> tuple[Any, ...]:
    """That of a group norm, whose input's gradient is the one that a layer norm of each group has."""
    samples, channels, _, groups, mask = sizes
    found = NORMS_APART[_aten.native_group_norm_backward.default](gradient, x, mean, scale, weight, *sizes)
    if not mask[0]:
        return tuple(found)
    if weight is not None:
        gradient = gradient * weight.reshape(channels, *[1] * (x.ndim - 2))
    rows, given = (t.reshape(samples * groups, -1) for t in (gradient, x))
    means, scales = (t.reshape(-1, 1) for t in (mean, scale))
    apart = NORMS_APART[_aten.native_layer_norm_backward.default]
    made = apart(rows, given, rows.shape[1:], means, scales, None, None, [True, False, False])
    return made[0].reshape(x.shape), *found[1:]


SUMS_APART: Any = {
    **get_decompositions([*_NORMS, _aten._softmax_backward_data, _aten._log_softmax_backward_data]),
    _aten.native_group_norm_backward.default: _group_norm_backward,
}
"""The same for all operations that add up within one kernel and go on with the sum."""


def _taken_apart(func: Any, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
    """The results of an operation by others; ``NotImplemented`` for one that has a kernel."""
    if not isinstance(func, HigherOrderOperator):
        composed = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), _COMPOSED)
        return func.decompose(*args, **given) if composed else NotImplemented
    plain = func.py_kernels.get(torch._C.DispatchKey.CompositeExplicitAutograd)
    return NotImplemented if plain is None else plain(*args, **given)


class PerturbedMode(TorchDispatchMode):
    """A mode that sees the operations within control flow and attention with functions, too."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()  # type: ignore[no-untyped-call]

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Whether what runs inside may be captured: attention with functions is, by eager itself."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        with self:
            made = _taken_apart(func, args, given)
        return self.perturbed(func, args, given) if made is NotImplemented else made

    def perturbed(self, func: Any, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        """The results of one operation."""
        raise NotImplementedError


def unbacked() -> Any:
    """A context in which numbers and sizes that the data decides do not break graphs."""
    return torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True)
