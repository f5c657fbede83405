"""Writes of a traced program that it reads under another name; names as read in torch 2.11 to 2.13.

A global variable is an attribute of its module and an entry of the dictionary that ``globals()`` gives, an attribute of
a class is one of its instances and of the classes derived from it. Dynamo keeps what a trace writes by the name that it
was written under, and reads the other one as it was before the call.
"""

from __future__ import annotations

import functools
from collections.abc import MutableMapping
from types import ModuleType
from typing import Any

from torch._dynamo.exc import unimplemented
from torch._dynamo.side_effects import SideEffects
from torch._dynamo.source import GlobalSource, SkipGuardSource
from torch._dynamo.symbolic_convert import InliningInstructionTranslator, InstructionTranslatorBase
from torch._dynamo.variables.builder import VariableBuilder
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.dicts import ConstDictVariable
from torch._dynamo.variables.misc import NewGlobalVariable, PythonModuleVariable
from torch._dynamo.variables.tensor import SymNodeVariable, TensorVariable
from torch._dynamo.variables.user_defined import UserDefinedClassVariable

from lamina.capture.trace_corrections.torch_private import compiles_for_lamina

__all__ = ["follow_second_names"]

_UNNAMED = "___unnamed_scope"
_STATE = (MutableMapping, list, set, str, bytes, int, float)
"""Classes of what a module may change, the environment of the process among it."""
_DATA = (ConstantVariable, TensorVariable, SymNodeVariable)
"""What an instance has as its class does: nothing is bound."""


def follow_second_names() -> None:
    """Have such writes read, or the graph ended where that cannot be, in traces for Lamina."""
    _load_globals_of_modules()
    _read_globals_of_modules()
    _end_at_two_writes()
    _read_attributes_of_classes()
    _end_at_items_that_are_attributes()
    _end_at_scopes()
    _guard_state_of_the_library()


def _load_globals_of_modules() -> None:
    load_any = InstructionTranslatorBase._load_global

    @functools.wraps(load_any)
    def load(self: Any, inst: Any) -> None:
        effects = self.output.side_effects
        if effects.store_attr_mutations and compiles_for_lamina(self.output):
            module = _written_module(effects, inst.argval, self.f_globals)
            if module is not None:
                self.push(effects.load_attr(module, inst.argval))
                return
        load_any(self, inst)

    InstructionTranslatorBase._load_global = load  # type: ignore[method-assign]


def _read_globals_of_modules() -> None:
    read_any = PythonModuleVariable.var_getattr

    @functools.wraps(read_any)
    def read(self: Any, tx: Any, name: str) -> Any:
        effects = tx.output.side_effects
        if effects.store_attr_mutations and vars(self.value) is tx.output.global_scope:
            written = _written_global(effects, name)
            if written is not None and compiles_for_lamina(tx.output):
                return effects.load_global(written, name)
        return read_any(self, tx, name)

    PythonModuleVariable.var_getattr = read  # type: ignore[method-assign]


def _end_at_two_writes() -> None:
    store_any = SideEffects.store_attr

    @functools.wraps(store_any)
    def store(self: Any, item: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        output = self.output_graph_weakref()
        if output is not None and compiles_for_lamina(output):
            if isinstance(item, NewGlobalVariable):
                twice = _written_module(self, name, output.global_scope) is not None
            else:
                module = _module(item)
                twice = module is not None and vars(module) is output.global_scope
                twice = twice and _written_global(self, name) is not None
            if twice:
                _end(name, "It is written both as a global variable and as an attribute of its module.")
            if _is_its_attributes(item):
                _end(name, _ATTRIBUTES)
        return store_any(self, item, name, *args, **kwargs)

    SideEffects.store_attr = store  # type: ignore[method-assign]


def _end_at_items_that_are_attributes() -> None:
    note_any = SideEffects.mutation

    @functools.wraps(note_any)
    def note(self: Any, variable: Any) -> Any:
        for item in self.id_to_variable.values() if isinstance(variable, ConstDictVariable) else ():
            held = any(vars(item).get(name) is variable for name in _HELD) and _is_its_attributes(item)
            if held and compiles_for_lamina(self.output_graph_weakref()):
                _end("an item", _ATTRIBUTES)
        return note_any(self, variable)

    SideEffects.mutation = note  # type: ignore[method-assign, assignment]


_HELD = ("_base_vt", "_dict_vt")
"""Where a variable of a dictionary's class has the dictionary: torch 2.12 on, and 2.11."""
_ATTRIBUTES = "A dictionary whose items are its attributes (self.__dict__ = self) is written to."


def _is_its_attributes(item: Any) -> bool:
    value = vars(item).get("value")
    return isinstance(value, dict) and getattr(value, "__dict__", None) is value


def _read_attributes_of_classes() -> None:
    asks_any, load_any = SideEffects.has_pending_mutation_of_attr, SideEffects.load_attr

    @functools.wraps(asks_any)
    def asks(self: Any, item: Any, name: str, *args: Any, **kwargs: Any) -> bool:
        found = asks_any(self, item, name, *args, **kwargs)
        written = None if found or not self.store_attr_mutations else _of_class(self, item, name)
        if written is None or not compiles_for_lamina(self.output_graph_weakref()):
            return found
        if not isinstance(written, _DATA):
            _end(name, "It was written to a class, and is read of an instance or a class derived from it.")
        return True

    @functools.wraps(load_any)
    def load(self: Any, item: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        if name not in self.store_attr_mutations.get(item, ()):
            written = _of_class(self, item, name)
            if written is not None:
                return written
        return load_any(self, item, name, *args, **kwargs)

    SideEffects.has_pending_mutation_of_attr = asks  # type: ignore[method-assign]
    SideEffects.load_attr = load  # type: ignore[method-assign]


def _end_at_scopes() -> None:
    build_any = VariableBuilder.__call__

    @functools.wraps(build_any)
    def build(self: Any, value: Any) -> Any:
        if type(value) is dict and "__builtins__" in value and compiles_for_lamina(self.tx.output):
            source = self.source
            if not (isinstance(source, GlobalSource) and source.global_name.startswith(_UNNAMED)):
                _end("globals()", "The variables of a module are used as a dictionary.")
        return build_any(self, value)

    VariableBuilder.__call__ = build  # type: ignore[method-assign]


def _guard_state_of_the_library() -> None:
    """Guard what functions of the standard library read of their modules and may change, as ``os.getenv`` does."""
    find_any = InliningInstructionTranslator.get_globals_source_and_value

    @functools.wraps(find_any)
    def find(self: Any, name: str) -> Any:
        found: tuple[Any, Any, Any] = find_any(self, name)
        value, variable, source = found
        unguarded = isinstance(source, SkipGuardSource) and isinstance(self.f_globals.get(name), _STATE)
        if unguarded and compiles_for_lamina(self.output):
            source = source.base
        return value, variable, source

    InliningInstructionTranslator.get_globals_source_and_value = find  # type: ignore[method-assign]


def _module(item: Any) -> ModuleType | None:
    value = vars(item).get("value") if isinstance(item, PythonModuleVariable) else None
    return value if isinstance(value, ModuleType) else None


def _written_module(effects: Any, name: str, scope: dict[str, Any]) -> Any:
    """The variable of the module with this scope, if the trace has written an attribute of this name to it."""
    for item, written in effects.store_attr_mutations.items():
        module = _module(item) if name in written else None
        if module is not None and vars(module) is scope:
            return item
    return None


def _written_global(effects: Any, name: str) -> Any:
    """The global variable of this name of the traced function's, if the trace has written to it."""
    for item, written in effects.store_attr_mutations.items():
        if name in written and isinstance(item, NewGlobalVariable):
            return item
    return None


def _of_class(effects: Any, item: Any, name: str) -> Any:
    """What the trace has written to a class that ``item``, an instance or a class, has this attribute from."""
    value = vars(item).get("value")
    if value is None or (not isinstance(value, type) and name in getattr(value, "__dict__", ())):
        return None
    pending = {
        id(other.value): written[name]
        for other, written in effects.store_attr_mutations.items()
        if name in written and isinstance(other, UserDefinedClassVariable)
    }
    if pending:
        for kind in value.__mro__ if isinstance(value, type) else type(value).__mro__:
            if id(kind) in pending:
                return pending[id(kind)]
            if name in vars(kind):
                break
    return None


def _end(what: str, explanation: str) -> None:
    unimplemented(
        gb_type="name of something that was written under another name",
        context=what,
        explanation=explanation,
        hints=["Write and read it under one name"],
    )
