"""What classes of users' classes, and of their modules, do in Python; names as read in torch 2.11 to 2.13.

Dynamo makes an object without the metaclass's ``__call__``, asks ``isinstance`` of the class alone or runs the
metaclass's check once, and reads a module's attributes from its dictionary, whatever the module's class.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from types import FunctionType, ModuleType, UnionType
from typing import Any

from torch._dynamo import variables
from torch._dynamo.exc import unimplemented
from torch._dynamo.variables.builtin import BuiltinVariable
from torch._dynamo.variables.misc import PythonModuleVariable
from torch._dynamo.variables.user_defined import UserDefinedClassVariable

from lamina.base.class_flags import MADE_BY_PYTHON
from lamina.capture.trace_corrections.torch_private import compiles_for_lamina

__all__ = ["break_at_metaclasses"]


def break_at_metaclasses() -> None:
    """Replace Dynamo's functions, once, for traces of Lamina's; look up what classes can do in each trace anew."""
    _break_at_calls()
    _break_at_instance_checks()
    _break_at_attributes_of_modules()
    _forget_slots()


def _method_of_users(kind: type, name: str) -> bool:
    """Whether the method ``name`` that ``kind`` has is a function, and not of torch or Python's own library."""
    method = getattr(kind, name, None)
    if not isinstance(method, FunctionType):
        return False
    root = str(method.__module__).split(".")[0]
    return root != "torch" and root not in sys.stdlib_module_names - {"__main__"}


def _break_at_calls() -> None:
    call_any = UserDefinedClassVariable.call_function

    @functools.wraps(call_any)
    def call(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if _method_of_users(type(self.value), "__call__") and compiles_for_lamina(tx.output):
            _break(f"a class whose metaclass {type(self.value).__qualname__} has a __call__ of its own is called")
        return call_any(self, tx, args, kwargs)

    UserDefinedClassVariable.call_function = call  # type: ignore[method-assign]


def _break_at_instance_checks() -> None:
    ask_any = BuiltinVariable.call_isinstance

    @functools.wraps(ask_any)
    def ask(self: Any, tx: Any, arg: Any, isinstance_type_var: Any) -> Any:
        if not tx.one_graph and compiles_for_lamina(tx.output):
            asked = isinstance_type_var.as_python_constant()
            for kind in _classes(asked):
                if _method_of_users(type(kind), "__instancecheck__"):
                    _break(f"isinstance asks the metaclass {type(kind).__qualname__}")
        return ask_any(self, tx, arg, isinstance_type_var)

    BuiltinVariable.call_isinstance = ask  # type: ignore[method-assign]


def _classes(asked: Any) -> Iterator[Any]:
    """The classes that the second argument of ``isinstance`` names."""
    if isinstance(asked, tuple | UnionType):
        for one in asked if isinstance(asked, tuple) else asked.__args__:
            yield from _classes(one)
    else:
        yield asked


def _break_at_attributes_of_modules() -> None:
    get_any = PythonModuleVariable.var_getattr

    @functools.wraps(get_any)
    def var_getattr(self: Any, tx: Any, name: str) -> Any:
        kind = type(self.value)
        if kind is not ModuleType and compiles_for_lamina(tx.output) and _computes(kind, name):
            _break(f"module {self.value.__name__} is of a class that computes its attributes")
        return get_any(self, tx, name)

    PythonModuleVariable.var_getattr = var_getattr  # type: ignore[method-assign]


def _computes(kind: type, name: str) -> bool:
    """Whether a class of modules finds its attribute ``name`` before their dictionaries do."""
    if _method_of_users(kind, "__getattribute__"):
        return True
    found = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)
    return hasattr(type(found), "__set__") and kind.__module__.split(".")[0] != "torch"


def _forget_slots() -> None:
    """Ask each class anew what it can do, where Python code may have changed it: Dynamo (2.13) remembers the first."""
    object_protocol: Any = getattr(variables, "object_protocol", None)  # torch 2.11 has no such module
    ask_any: Any = getattr(object_protocol, "_get_cached_slots", None)
    ask_anew: Any = getattr(object_protocol, "get_type_slots", None)
    if ask_any is None or ask_anew is None:  # a release that does not remember it
        return

    @functools.wraps(ask_anew)
    def slots(kind: type) -> Any:
        return (ask_anew if kind.__flags__ & MADE_BY_PYTHON else ask_any)(kind)

    object_protocol._get_cached_slots = slots


def _break(what: str) -> None:
    unimplemented(
        gb_type="Python code of a metaclass or of a class of modules",
        context=what,
        explanation=f"{what[0].upper()}{what[1:]}, which a trace leaves out",
        hints=["Move it out of the compiled function"],
    )
