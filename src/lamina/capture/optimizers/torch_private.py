"""What Dynamo's traces of optimizers compute otherwise than eager; names as read in torch 2.11 to 2.13."""

from __future__ import annotations

import functools
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch._dynamo.guards import GuardBuilder, get_verbose_code_parts
from torch._dynamo.source import GradSource
from torch._dynamo.utils import get_static_address_type
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.functions import UserFunctionVariable
from torch._dynamo.variables.optimizer import OptimizerVariable
from torch._dynamo.variables.tensor import TensorVariable
from torch.optim.optimizer import _get_value

from lamina.base.devices import kind_of
from lamina.capture.trace_corrections.torch_private import compiles_for_lamina

__all__ = ["correct_optimizers"]

_OF_ONE_TENSOR = (torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.Adamax)
"""Optimizers with a way for parameters on a CPU that a trace can follow, besides the one for CUDA graphs."""


def correct_optimizers() -> None:
    """Replace Dynamo's methods, once, for traces of Lamina's."""
    _take_the_way_of_eager()
    _count_steps_in_double_precision()
    _guard_parameters()


def _take_the_way_of_eager() -> None:
    """Let steps on a CPU compute what they do in eager.

    Dynamo traces all of them as if they were to be CUDA graphs (``capturable=True``). Adam's divides by the learning
    rate then: where that is zero and no gradient has come yet, parameters become NaN.
    """
    set_any = OptimizerVariable._set_capturable

    @functools.wraps(set_any)
    def set_capturable(self: Any, tx: Any) -> None:
        set_any(self, tx)
        if not isinstance(self.value, _OF_ONE_TENSOR) or not compiles_for_lamina(tx.output):
            return
        groups = tx.output.side_effects[self.value.param_groups]
        for group, variable in zip(self.value.param_groups, groups.items, strict=True):
            if not group["capturable"] and not group.get("foreach") and all(kind_of(p).host for p in group["params"]):
                for key in variable.items:
                    if key.vt.is_python_constant() and key.vt.as_python_constant() == "capturable":
                        variable.items[key] = ConstantVariable.create(False)

    OptimizerVariable._set_capturable = set_capturable  # type: ignore[method-assign]


def _count_steps_in_double_precision() -> None:
    """Let powers of what an optimizer counts be of double precision, as those of Python's numbers are.

    Eager takes the count of steps out of its tensor. ``1 - 0.999 ** step`` of a tensor of single precision has but
    four digits at the first steps.
    """
    call_any, add_any = UserFunctionVariable.call_function, getattr(TensorVariable, "method_addcdiv_", None)

    @functools.wraps(call_any)
    def call(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        found = call_any(self, tx, args, kwargs)
        if self.fn is _get_value and _is_single(found) and compiles_for_lamina(tx.output):
            return _to(tx, found, torch.float64)
        return found

    UserFunctionVariable.call_function = call  # type: ignore[method-assign]
    if add_any is None:
        return

    @functools.wraps(add_any)
    def add(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        value = kwargs.get("value")
        double = isinstance(value, TensorVariable) and value.dtype == torch.float64 != self.dtype
        if double and compiles_for_lamina(tx.output):
            kwargs["value"] = _to(tx, value, torch.float32)
        return add_any(self, tx, *args, **kwargs)

    TensorVariable.method_addcdiv_ = add  # type: ignore[method-assign]


def _guard_parameters() -> None:
    """Let graphs that read the parameters of a compiled optimizer be for these as they are, not for the objects alone.

    Dynamo guards which objects they are from then on, in other functions too, and of their gradients that they are
    there. What was compiled while a parameter was frozen would run when it no longer is, and give it no gradient; a
    step for one dtype, shape or layout would run on others' memory.
    """
    match_any, there_any = GuardBuilder.ID_MATCH, GuardBuilder.NOT_NONE_MATCH

    @functools.wraps(match_any)
    def match(self: Any, guard: Any, *args: Any, **kwargs: Any) -> Any:
        match_any(self, guard, *args, **kwargs)
        value: Any = self.get(guard)
        if get_static_address_type(value) == "guarded" and not _is_state(value, self.f_code):
            _as_it_was(self, guard, value)

    @functools.wraps(there_any)
    def there(self: Any, guard: Any, *args: Any, **kwargs: Any) -> Any:
        there_any(self, guard, *args, **kwargs)
        if isinstance(guard.originating_source, GradSource):
            _as_it_was(self, guard, self.get(guard))

    GuardBuilder.ID_MATCH = match  # type: ignore[method-assign]
    GuardBuilder.NOT_NONE_MATCH = there  # type: ignore[method-assign]


def _is_state(value: Any, code: CodeType) -> bool:
    """Whether a step that is traced by itself reads ``value`` of its state, which is laid out as the parameter was."""
    of_optimizer = code.co_filename.startswith(_OPTIMIZERS)
    return of_optimizer and not value.requires_grad and type(value) is not torch.nn.Parameter


_OPTIMIZERS = str(Path(torch.optim.__file__).parent)


def _as_it_was(builder: GuardBuilder, guard: Any, value: Any) -> None:
    """Guard that the tensor at the guard's source has the type, dtype, layout and requires_grad that it has."""
    output: Any = builder.check_fn_manager.output_graph
    plain = type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout == torch.strided
    if not plain or output is None or not compiles_for_lamina(output):
        return
    what = f"{guard.name} has the shape, strides, dtype and requires_grad that it had"
    builder.get_guard_manager(guard).add_tensor_match_guard(
        value,
        [*value.shape],
        [*value.stride()],
        builder.arg_ref(guard),
        get_verbose_code_parts(what, guard),
        guard.user_stack,
        type(value),
        torch._C._dispatch_keys(value),
    )


def _is_single(variable: Any) -> bool:
    """Whether it is a number of single precision on a CPU."""
    if not isinstance(variable, TensorVariable):
        return False
    return (
        variable.dtype == torch.float32
        and variable.device is not None
        and kind_of(variable.device).host
        and variable.ndim == 0
    )


def _to(tx: Any, tensor: Any, dtype: torch.dtype) -> VariableTracker:
    found: VariableTracker = tensor.call_method(tx, "to", [ConstantVariable.create(dtype)], {})
    return found
