"""Where NumPy and torch meet in a traced program; names as read in torch 2.11 to 2.13.

Dynamo computes with NumPy's arrays as with tensors. What it does otherwise ends a graph that need not be the only one:
numbers of ``numpy.random`` would be drawn by torch's generator, whatever was seeded in NumPy, and whatever is drawn
there next; a function of NumPy called with a tensor gives a tensor; and ``numpy()`` refuses a tensor that requires a
gradient or is conjugated.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from torch._dynamo.exc import unimplemented
from torch._dynamo.variables import misc
from torch._dynamo.variables.lazy import LazyVariableTracker
from torch._dynamo.variables.tensor import NumpyNdarrayVariable, TensorVariable, UnspecializedPythonVariable

from lamina.capture.trace_corrections.torch_private import compiles_for_lamina

__all__ = ["break_at_arrays"]


def break_at_arrays() -> None:
    """Replace Dynamo's methods, once, for traces of Lamina's."""
    _break_at_functions()
    _break_at_refused_tensors()


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
