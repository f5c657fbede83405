"""Functions of torch that give something else where Dynamo traces them: names as read in torch 2.11 to 2.13."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch._dynamo.exc import unimplemented
from torch._dynamo.variables.builder import VariableBuilder
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.lazy import LazyVariableTracker
from torch._dynamo.variables.lists import BaseListVariable, SizeVariable
from torch._dynamo.variables.tensor import NumpyNdarrayVariable, SymNodeVariable, TensorVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable
from torch._dynamo.variables.user_defined import UserDefinedClassVariable

from lamina.capture.trace_corrections.torch_private import compiles_for_lamina

__all__ = ["correct_functions"]


def correct_functions() -> None:
    """Replace Dynamo's handlers of them, once, for traces of Lamina's."""
    _give_inputs_of_dropouts()
    _fill_with_dtypes_of_tensors()
    _break_at_numbers_out_of_range()
    _make_tensors_of_sizes()
    _look_at_tensors_unseen()
    _break_at_attributes_that_modes_see()


def _look_at_tensors_unseen() -> None:
    """Let Dynamo ask a tensor for its size and the like where no ``__torch_function__`` of its class is called."""
    wrap_any = VariableBuilder.wrap_tensor

    @functools.wraps(wrap_any)
    def wrap(self: Any, value: torch.Tensor) -> Any:
        if not compiles_for_lamina(self.tx.output):
            return wrap_any(self, value)
        with torch._C.DisableTorchFunctionSubclass():
            return wrap_any(self, value)

    VariableBuilder.wrap_tensor = wrap  # type: ignore[method-assign]


def _break_at_attributes_that_modes_see() -> None:
    """End a graph where the program asks a tensor for an attribute within a mode that sees functions of torch.

    Eager gives these to the mode, as calls of ``__get__``; Dynamo shows it calls of functions and methods alone.
    """
    get_any = TensorVariable.var_getattr

    @functools.wraps(get_any)
    def get(self: Any, tx: Any, name: str) -> Any:
        seeing = [mode for mode in tx.symbolic_torch_function_state.mode_stack if _is_users(mode)]
        described = inspect.isdatadescriptor(inspect.getattr_static(torch.Tensor, name, None))
        if seeing and described and compiles_for_lamina(tx.output):
            unimplemented(
                gb_type="attribute of a tensor within a mode",
                context=f"{name} within a TorchFunctionMode",
                explanation="The mode is not shown that the program asks for it",
                hints=["Ask for it by a method, such as size(), dim() and stride()"],
            )
        return get_any(self, tx, name)

    TensorVariable.var_getattr = get  # type: ignore[method-assign]


def _is_users(mode: Any) -> bool:
    return not str(getattr(mode.python_type(), "__module__", "")).startswith("torch.")


def _make_tensors_of_sizes() -> None:
    """Let ``torch.Tensor(size)`` make a tensor of that size: in a graph a size is a tuple, which stands for values."""
    call_any = UserDefinedClassVariable.call_function
    kinds = UserDefinedClassVariable._in_graph_classes()

    @functools.wraps(call_any)
    def call(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if len(args) == 1 and self.value in kinds and compiles_for_lamina(tx.output):
            size = args[0].realize() if issubclass(type(args[0]), LazyVariableTracker) else args[0]
            if isinstance(size, SizeVariable) and size.items:
                args = list(size.items)
        return call_any(self, tx, args, kwargs)

    UserDefinedClassVariable.call_function = call  # type: ignore[method-assign]


def _give_inputs_of_dropouts() -> None:
    """Let a dropout that drops nothing give its argument, which is the same object in eager; fake tensors copy it."""
    handlers = TorchInGraphFunctionVariable._get_handlers()
    parameters = inspect.signature(F.dropout)
    native = inspect.signature(lambda input, p, train: None)

    def give(signature: inspect.Signature) -> Callable[..., Any]:
        def handle(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                given = list(signature.bind(*args, **kwargs).arguments.values())
            except TypeError:  # eager refuses them as well
                return None
            return given[0] if compiles_for_lamina(tx.output) and _drops_nothing(*given[:3]) else None

        return handle

    handlers.setdefault(F.dropout, give(parameters))
    for function in (torch.dropout, torch.ops.aten.dropout, torch.ops.aten.dropout.default):
        handlers.setdefault(function, give(native))


def _drops_nothing(tensor: Any, p: Any = None, training: Any = None) -> bool:
    share, trains = (v.as_python_constant() if v is not None and v.is_python_constant() else v for v in (p, training))
    share = 0.5 if p is None else share
    if not tensor.is_tensor() or not (isinstance(share, (int, float)) and 0 <= share <= 1):
        return False
    shape = tensor.as_proxy().node.meta["example_value"].shape
    return share == 0 or trains is False or any(type(size) is int and size == 0 for size in shape)


def _fill_with_dtypes_of_tensors() -> None:
    """Let ``torch.full`` with a tensor for its number have the dtype that numbers give; Dynamo has the default."""
    handlers = TorchInGraphFunctionVariable._get_handlers()
    fill_any = handlers.get(torch.full)
    if fill_any is None:  # a release that asks for the number while it traces
        return

    @functools.wraps(fill_any)
    def fill(self: Any, tx: Any, size: Any, fill_value: Any, **kwargs: Any) -> Any:
        if fill_value.is_tensor() and compiles_for_lamina(tx.output):
            number = fill_value.as_proxy().node.meta["example_value"]
            if (number.requires_grad or isinstance(fill_value, NumpyNdarrayVariable)) and not tx.one_graph:
                unimplemented(
                    gb_type="torch.full with a tensor or an array for its number",
                    context="fill_value",
                    explanation="It takes no tensor with a gradient, and numbers of NumPy by their class",
                    hints=["Call detach(), float() or int()"],
                )
            if not {"dtype", "out"} & kwargs.keys():
                kwargs["dtype"] = ConstantVariable.create(_of_numbers(number.dtype))
        return fill_any(self, tx, size, fill_value, **kwargs)

    handlers[torch.full] = fill


def _of_numbers(dtype: torch.dtype) -> torch.dtype:
    """The dtype that a tensor made of a number of this kind has."""
    if dtype.is_floating_point or dtype.is_complex:
        default = torch.get_default_dtype()
        return default if dtype.is_floating_point else torch.promote_types(default, torch.complex32)
    return torch.bool if dtype == torch.bool else torch.int64


def _break_at_numbers_out_of_range() -> None:
    """Break where a number that may vary does not fit the integers that a tensor is made of: eager refuses it."""
    handlers = TorchInGraphFunctionVariable._get_handlers()

    def checking(make_any: Any) -> Callable[..., Any]:
        @functools.wraps(make_any or torch.tensor)
        def make(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
            if compiles_for_lamina(tx.output):
                _check_ranges(args[:1] or kwargs.get("data"), kwargs.get("dtype"))
            return None if make_any is None else make_any(self, tx, *args, **kwargs)

        return make

    for function in (torch.tensor, torch.as_tensor, torch.asarray, torch.scalar_tensor):
        handlers[function] = checking(handlers.get(function))
    call_any = TensorVariable.call_method

    @functools.wraps(call_any)
    def call(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name == "new_tensor" and compiles_for_lamina(tx.output):
            _check_ranges(args[:1] or kwargs.get("data"), kwargs.get("dtype"))
        return call_any(self, tx, name, args, kwargs)

    TensorVariable.call_method = call  # type: ignore[method-assign]


def _varying(data: Any) -> list[Any]:
    """Numbers that may vary in what a tensor is made of: a number, or lists and tuples of numbers."""
    if isinstance(data, (list, tuple)):
        return [number for item in data for number in _varying(item)]
    found = data.realize() if issubclass(type(data), LazyVariableTracker) else data
    if issubclass(type(found), SymNodeVariable):
        return [found]
    return _varying(vars(found).get("items", ())) if issubclass(type(found), BaseListVariable) else []


def _check_ranges(data: Any, asked: Any) -> None:
    """Guard on numbers that a tensor is made of to be within the dtype that is asked for, or break."""
    numbers = _varying(data)
    dtype = asked.as_python_constant() if numbers and asked is not None and asked.is_python_constant() else None
    if not isinstance(dtype, torch.dtype) or dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
        return
    limits = torch.iinfo(dtype)
    least, most = limits.min or -limits.max, limits.max
    if dtype == torch.uint64:  # eager takes no negative number; a trace writes 32 bits of those in lists
        least, most = 0, torch.iinfo(torch.int32).max
    if all(number.sym_num >= least and number.sym_num <= most for number in numbers):
        return
    unimplemented(
        gb_type="a number out of the range of a tensor's integers",
        context=f"{dtype}",
        explanation=f"A number does not fit {dtype}, which eager refuses or a trace writes otherwise",
        hints=["Use a wider dtype"],
    )
