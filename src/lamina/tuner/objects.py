"""Objects of the user's opened up: the tensors that they hold, however deep, and all else that can be compared."""

from __future__ import annotations

import copyreg
import dataclasses
import functools
import io
import itertools
from collections.abc import ItemsView, Iterator, KeysView, Mapping, Sequence, Set, ValuesView
from types import BuiltinFunctionType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from lamina.artefacts.code import code_digest
from lamina.base.accuracy import tensors
from lamina.base.class_flags import MADE_BY_PYTHON

__all__ = ["ITERATOR", "Unseen", "has_iterators", "opened", "shown", "tensors_in"]

ITERATOR = "what an iterator gives"
"""Key under which ``shown`` has the items of an iterator."""

_MOST = 1 << 16
"""Items that are taken of an iterator; more, and it may have no end."""
_NAMED = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_LEAVES = (Tensor, bool, int, float, complex, str, bytes, type(None), *_NAMED)
_CONTAINERS = (object, tuple, list, dict, set, frozenset, *map(type, ({}.keys(), {}.values(), {}.items())))
_CONTAINERS += (MappingProxyType,)
_VIEWS = (Sequence, Set, KeysView, ValuesView, ItemsView)


class Unseen(Exception):
    """A value holds something of which nobody can tell whether it is what eager gives: its class."""


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors that ``value`` holds, in objects as well, in order."""
    return tensors([opened(value)])


def opened(value: Any) -> Any:
    """``value`` with objects that hold tensors as mappings of what they hold; others stay as they are."""
    return _open(value, (), False)


def shown(value: Any) -> Any:
    """``value`` as tensors, numbers and texts in mappings and lists, so that all of it is compared.

    Iterators are run to their end; a function is its code and what it closes over; of objects of other classes there is
    what pickle would store. Raises ``Unseen`` for what has no such form: open files, locks, iterators without end.
    """
    return _open(value, (), True)


def has_iterators(value: Any) -> bool:
    """Whether what ``shown`` gave was in part the work of iterators."""
    if isinstance(value, dict):
        return ITERATOR in value or any(map(has_iterators, value.values()))
    return isinstance(value, (list, tuple)) and any(map(has_iterators, value))


def _open(value: Any, within: tuple[int, ...], whole: bool) -> Any:
    if isinstance(value, _LEAVES) or (isinstance(value, nn.Module) and not whole):
        return value
    if id(value) in within:
        return "itself"
    within = (*within, id(value))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_open(item, within, whole) for item in value))
    if type(value) in (tuple, list):
        return type(value)(_open(item, within, whole) for item in value)
    if type(value) is dict:
        return {key: _open(item, within, whole) for key, item in value.items()}
    held = _all_of(value) if whole else _held(value)
    if held is None:
        return value
    return {"class": type(value).__qualname__, **{key: _open(item, within, whole) for key, item in held.items()}}


def _held(value: Any) -> dict[Any, Any] | None:
    """What an object holds, by name; None if nothing can be told."""
    if callable(value) and not isinstance(value, (Mapping, Sequence, Set)):
        return None
    return _items(value) | _attributes(value) or None


def _all_of(value: Any) -> dict[Any, Any]:
    """All that an object is made of. Raises ``Unseen``."""
    if isinstance(value, Iterator) and not isinstance(value, io.IOBase):
        items = list(itertools.islice(value, _MOST + 1))
        if len(items) > _MOST:
            raise Unseen(f"an iterator of more than {_MOST} items")
        return {ITERATOR: items}
    if isinstance(value, nn.Module):
        state = {**dict(value.named_parameters()), **dict(value.named_buffers())}
        return {"state": state, "training": value.training, "made of": repr(value)}
    if isinstance(value, (type, ModuleType, FunctionType, MethodType, BuiltinFunctionType, functools.partial)):
        return _of_function(value)
    array = _of_array(value)
    if array is not None:
        return {"array": array}
    found = _items(value) | _attributes(value)
    if any(_is_native(kind) for kind in type(value).__mro__):
        found["stored"] = _stored(value)
    return found


def _of_function(value: Any) -> dict[str, Any]:
    if isinstance(value, functools.partial):
        return {"function": value.func, "args": value.args, "kwargs": value.keywords}
    if isinstance(value, MethodType):
        return {"function": value.__func__, "of": value.__self__}
    name = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value.__name__)}"
    if isinstance(value, BuiltinFunctionType):
        owner = value.__self__
        return {"name": name, "of": None if isinstance(owner, ModuleType) else owner}
    if not isinstance(value, FunctionType):
        return {"name": name}
    cells = []
    for cell in value.__closure__ or ():
        try:
            cells.append(cell.cell_contents)
        except ValueError:
            cells.append("not assigned yet")
    defaults = (value.__defaults__, value.__kwdefaults__)
    return {"name": name, "code": code_digest(value.__code__), "closes over": cells, "defaults": defaults}


def _of_array(value: Any) -> Any:
    """An array or number of numpy's, as a tensor or number; None for anything else."""
    if type(value).__module__ != "numpy" or not hasattr(value, "dtype") or not hasattr(value, "item"):
        return None
    try:
        return torch.as_tensor(value.copy()) if getattr(value, "ndim", 0) else value.item()
    except TypeError:  # of texts, objects, or numbers that torch does not have
        return [str(value.dtype), value.tolist()]


def _items(value: Any) -> dict[Any, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Set):
        return dict(enumerate(sorted(value, key=repr)))
    return dict(enumerate(value)) if isinstance(value, _VIEWS) else {}


def _attributes(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found.update({f.name: getattr(value, f.name, None) for f in dataclasses.fields(value)})
    for kind in type(value).__mro__:
        for name in _texts(getattr(kind, "__dict__", {}).get("__slots__", ())):
            hidden = name.startswith("__") and not name.endswith("__")
            there = f"_{kind.__name__.lstrip('_')}{name}" if hidden else name
            if hasattr(value, there) and name not in ("__dict__", "__weakref__"):
                found[name] = getattr(value, there)
    found.update(getattr(value, "__dict__", {}))
    return found


def _is_native(kind: type) -> bool:
    """Whether a class may hold what no attribute tells."""
    immutable = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE, which classes made by Python are not
    return kind not in _CONTAINERS and kind.__flags__ & (MADE_BY_PYTHON | immutable) != MADE_BY_PYTHON


def _stored(value: Any) -> Any:
    """What pickle would store of a value that is written in C. Raises ``Unseen``."""
    try:
        registered = copyreg.dispatch_table.get(type(value))
        told: Any = value.__reduce_ex__(4) if registered is None else registered(value)
        made, args, *rest = told
    except Exception as error:
        raise Unseen(f"an object of the class {type(value).__module__}.{type(value).__qualname__}") from error
    # An iterator is what a list or mapping has besides its state; objects name the function that makes them again.
    return [getattr(made, "__qualname__", str(made)), [a for a in args if a is not type(value)], rest]


def _texts(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)
