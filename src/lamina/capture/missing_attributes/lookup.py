"""Whether a value has an attribute, found out without calling anything of the user's."""

from __future__ import annotations

from types import MemberDescriptorType, ModuleType
from typing import Any

import torch

from lamina.base.torch_names.torch_private import REGISTRIES

__all__ = ["keys_of", "lacks", "may_make_up"]


def lacks(value: Any, name: str) -> bool:
    """Whether nothing is stored as ``name``: in ``value``, its class or its bases."""
    if name in getattr(value, "__dict__", ()):
        return False
    if isinstance(value, type):
        return not any(name in vars(base) for kind in (value, type(value)) for base in kind.__mro__)
    for base in type(value).__mro__:
        if name in base.__dict__:
            return type(base.__dict__[name]) is MemberDescriptorType and not hasattr(value, name)
    return not (isinstance(value, torch.nn.Module) and any(name in vars(value).get(kind, ()) for kind in REGISTRIES))


def keys_of(value: Any) -> frozenset[str]:
    """Names of the attributes that are stored in ``value`` itself."""
    try:
        return frozenset(vars(value))
    except TypeError:
        return frozenset()


def may_make_up(value: Any) -> bool:
    """Whether the class of ``value`` has code that answers for attributes that are not there."""
    if isinstance(value, ModuleType):
        return "__getattr__" in vars(value)
    for base in type(value).__mro__:
        if base is torch.nn.Module:
            return False
        if "__getattr__" in vars(base):
            return True
    return False
