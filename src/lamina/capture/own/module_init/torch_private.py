"""Private torch names of modules that are made within a call, after TorchDynamo has compiled something."""

from __future__ import annotations

from types import FunctionType, MethodType
from typing import Any

__all__ = ["module_to_initialise", "replaces_module_init"]


def module_to_initialise(function: Any, args: tuple[Any, ...]) -> Any:
    """The module of a call of what TorchDynamo puts in place of ``nn.Module.__init__``; None for other calls.

    None as well where that runs an ``__init__`` of the user's.
    """
    if type(function) is MethodType:
        function, args = function.__func__, (function.__self__, *args)
    if len(args) != 1 or not replaces_module_init(function):
        return None
    return None if getattr(args[0], "call_super_init", True) else args[0]


def replaces_module_init(function: Any) -> bool:
    """Whether TorchDynamo has put a function in place of ``nn.Module.__init__``, which that runs as well."""
    if type(function) is not FunctionType or function.__name__ != "patched_init":
        return False
    return function.__module__ == "torch._dynamo.mutation_guard"
