"""What ``object.__reduce_ex__`` gives, which Dynamo takes for the ``__dict__`` of an object; as read in 2.13."""

from __future__ import annotations

import copyreg
import functools
from typing import Any

from torch._dynamo.exc import unimplemented
from torch._dynamo.variables.functions import PolyfilledFunctionVariable
from torch._dynamo.variables.user_defined import UserDefinedObjectVariable

from lamina.capture.trace_corrections.torch_private import compiles_for_lamina

__all__ = ["break_at_copies"]

_HOOKS = ("__reduce__", "__getstate__")
_ARGUMENTS = ("__getnewargs__", "__getnewargs_ex__")


def break_at_copies() -> None:
    """End a graph where ``copy`` takes an object apart that is more than its ``__dict__``.

    Dynamo (2.13) takes an object of any class to be copied by its attributes: it asks neither ``__getstate__`` nor
    ``__reduce__``, and knows of no slots and no items of a list or a dictionary.
    """
    call_any, reduce_any = UserDefinedObjectVariable.call_method, PolyfilledFunctionVariable.call_function

    @functools.wraps(call_any)
    def call(self: Any, tx: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        if name == object.__reduce_ex__.__name__:
            _break_at_more(tx, self)
        return call_any(self, tx, name, *args, **kwargs)

    @functools.wraps(reduce_any)
    def reduce(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if self.fn is object.__reduce_ex__ and args:
            _break_at_more(tx, args[0])
        return reduce_any(self, tx, args, kwargs)

    UserDefinedObjectVariable.call_method = call  # type: ignore[method-assign]
    PolyfilledFunctionVariable.call_function = reduce  # type: ignore[method-assign]


def _break_at_more(tx: Any, variable: Any) -> None:
    kind = variable.python_type()
    if kind.__reduce_ex__ is not object.__reduce_ex__ or not compiles_for_lamina(tx.output):
        return
    if held := _beyond_attributes(tx, variable):
        unimplemented(
            gb_type="copy of an object",
            context=f"copy of an instance of {kind.__qualname__}",
            explanation=f"A copy of it is made with its {held}, which is not traced",
            hints=["Give its class a method __copy__ or __deepcopy__ that is written in Python"],
        )


def _beyond_attributes(tx: Any, variable: Any) -> str:
    """What ``object.__reduce_ex__`` asks of this object beside its ``__dict__``, "" if nothing."""
    kind = variable.python_type()
    for name in _HOOKS:
        if getattr(kind, name, None) is not getattr(object, name, None):
            return name
    if issubclass(kind, (list, dict)):
        return "items"
    if names := _slots(kind):
        return f"slot {names[0]}"
    found = [name for name in _ARGUMENTS if hasattr(kind, name)]
    found += [name for name in _HOOKS[1:] if _has_attribute(tx, variable, name)]
    return next(iter(found), "")


def _slots(kind: type) -> list[str]:
    names: list[str] = copyreg._slotnames(kind)  # type: ignore[attr-defined]
    return names


def _has_attribute(tx: Any, variable: Any, name: str) -> bool:
    """Whether the instance itself has the attribute, from before or from the traced program."""
    known = getattr(getattr(variable, "value", None), "__dict__", {})
    return name in known or tx.output.side_effects.has_pending_mutation_of_attr(variable, name)
