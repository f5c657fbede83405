"""Where NumPy and torch meet in a traced program; names as read in torch 2.11 to 2.13.

Dynamo computes with NumPy's arrays as with tensors. What it does otherwise ends a graph that need not be the only one:
numbers of ``numpy.random`` would be drawn by torch's generator, whatever was seeded in NumPy, and whatever is drawn
there next; a function of NumPy called with a tensor gives a tensor; ``numpy()`` refuses a tensor that requires a
gradient or is conjugated; and a number of NumPy's (``np.sqrt(2)``) is a number to torch, not a tensor with a dtype.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch._dynamo import utils
from torch._dynamo.exc import unimplemented
from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.variables import misc
from torch._dynamo.variables.lazy import LazyVariableTracker
from torch._dynamo.variables.tensor import NumpyNdarrayVariable, TensorVariable, UnspecializedPythonVariable
from torch.utils import _pytree as pytree

from lamina.capture.trace_corrections.torch_private import compiles_for_lamina

__all__ = ["break_at_arrays"]


def break_at_arrays() -> None:
    """Replace Dynamo's methods, once, for traces of Lamina's."""
    _break_at_functions()
    _break_at_refused_tensors()
    _break_at_numbers()


def _break_at_functions() -> None:
    call_any = misc.NumpyVariable.call_function

    @functools.wraps(call_any)
    def call(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if _may_break(tx):
            if isinstance(getattr(self.value, "__self__", None), np.random.RandomState):
                _break("numpy.random", "Such numbers would be drawn by torch's generator", "draw them by torch.rand")
            if any(map(_is_tensor, (*args, *kwargs.values()))):
                _break("function of NumPy called with a tensor", "NumPy gives a tensor then", "call torch's function")
        return call_any(self, tx, args, kwargs)

    misc.NumpyVariable.call_function = call  # type: ignore[method-assign]


def _break_at_refused_tensors() -> None:
    convert_any = TensorVariable.method_numpy

    @functools.wraps(convert_any)
    def convert(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        tensor = self.as_proxy().node.meta["example_value"]
        if not args and not kwargs and _may_break(tx) and (tensor.requires_grad or tensor.is_conj() or tensor.is_neg()):
            _break("numpy() of a tensor that refuses it", "It requires a gradient or is conjugated", "call detach()")
        return convert_any(self, tx, *args, **kwargs)

    TensorVariable.method_numpy = convert  # type: ignore[method-assign]


def _break_at_numbers() -> None:
    """Break where a number of NumPy's meets a tensor and, captured as a tensor, gives the result another dtype."""
    make_any = NumpyNdarrayVariable.__init__
    create_any = OutputGraph.create_proxy

    @functools.wraps(make_any)
    def make(self: Any, proxy: Any, *args: Any, **kwargs: Any) -> None:
        make_any(self, proxy, *args, **kwargs)
        proxy.node.meta[_ARRAY] = True

    @functools.wraps(create_any)
    def create(self: Any, kind: str, target: Any, args: Any, kwargs: Any, *rest: Any, **more: Any) -> Any:
        if kind in ("call_function", "call_method") and not isinstance(target, _OF_NUMPY):
            nodes = [v.node for v in pytree.tree_leaves((args, kwargs)) if isinstance(v, torch.fx.Proxy)]
            numbers = [n for n in nodes if _is_number(n)]
            if numbers and not self.root_tx.one_graph and compiles_for_lamina(self):
                _break_at_other_dtypes(target, numbers, [n for n in nodes if _ARRAY not in n.meta])
        return create_any(self, kind, target, args, kwargs, *rest, **more)

    NumpyNdarrayVariable.__init__ = make  # type: ignore[method-assign]
    OutputGraph.create_proxy = create  # type: ignore[method-assign]


_ARRAY = "lamina_array"
_OF_NUMPY = (utils.numpy_to_tensor_wrapper, utils.numpy_method_wrapper, utils.numpy_operator_wrapper)


def _is_number(node: Any) -> bool:
    return _ARRAY in node.meta and node.meta["example_value"].dim() == 0


def _break_at_other_dtypes(target: Any, numbers: Iterable[Any], tensors: Iterable[Any]) -> None:
    values = [n.meta.get("example_value") for n in tensors]
    found = [v for v in values if isinstance(v, torch.Tensor)]
    for number in numbers:
        dtype = number.meta["example_value"].dtype
        if any(_with_number(t, dtype) != _with_tensor(t, dtype) for t in found):
            _break("number of NumPy's in a function of torch", "It would be a tensor of a dtype", "use float()")


def _with_number(tensor: torch.Tensor, dtype: torch.dtype) -> torch.dtype:
    """The dtype of a result of ``tensor`` and a number of Python's of the kind of ``dtype``."""
    number = 1j if dtype.is_complex else 1.0 if dtype.is_floating_point else dtype == torch.bool or 1
    return torch.result_type(_like(tensor), number)


def _with_tensor(tensor: torch.Tensor, dtype: torch.dtype) -> torch.dtype:
    return torch.result_type(_like(tensor), torch.empty((), dtype=dtype, device="meta"))


def _like(tensor: torch.Tensor) -> torch.Tensor:
    """One that counts as ``tensor`` does where dtypes meet."""
    return torch.empty((1,) * min(tensor.dim(), 1), dtype=tensor.dtype, device="meta")


def _may_break(tx: Any) -> bool:
    return not tx.one_graph and compiles_for_lamina(tx.output)


def _break(what: str, explanation: str, hint: str) -> None:
    unimplemented(gb_type="array of NumPy", context=what, explanation=explanation, hints=[hint])


def _is_tensor(variable: Any) -> bool:
    """Whether it is a tensor of torch, no array and no number."""
    found = variable.realize() if issubclass(type(variable), LazyVariableTracker) else variable
    kind = type(found)
    return issubclass(kind, TensorVariable) and not issubclass(
        kind, (NumpyNdarrayVariable, UnspecializedPythonVariable)
    )
