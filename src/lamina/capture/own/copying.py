"""``copy.deepcopy`` as the interpreter runs it: without identities as keys, which are others in each process."""

from __future__ import annotations

import copy
import copyreg
from typing import Any

import torch

from lamina.base.class_flags import MADE_BY_PYTHON
from lamina.capture.own.own_methods import is_own_method
from lamina.capture.own.torch_calls import MOST_COPIED

__all__ = ["copies_plainly", "copyable", "deep_copy", "is_deepcopy"]

IS_A_PROGRAM = True
"""``deep_copy`` is interpreted as the user's functions are."""
_OF_TORCH = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_ATOMS = (str, int, type(None), bool, float, complex, bytes, range, type(...), *_OF_TORCH)
"""Classes whose objects are copied as themselves."""
_USUAL: dict[type, Any] = {
    kind: vars(copy)["_deepcopy_dispatch"].get(kind) for kind in (*_ATOMS, list, tuple, dict) if kind not in _OF_TORCH
}
_OF_OBJECT = ("__new__", "__reduce_ex__", "__reduce__", "__getstate__")
_OWN = ("__deepcopy__", "__setstate__", "__getnewargs__", "__getnewargs_ex__", "__slots__")
_NEW = object.__new__
_DEEPCOPY, _CODE = copy.deepcopy, copy.deepcopy.__code__


def deep_copy(value: Any) -> Any:
    """``copy.deepcopy`` of what is ``copyable``."""
    others: Any = []
    copied = _copied(value, [], others)
    return _DEEPCOPY(value, None) if others else copied


def _copied(value: Any, made: Any, others: Any) -> Any:
    """A copy; ``made`` are pairs of what was copied already and its copies, ``others`` what says how it is copied."""
    kind = type(value)
    for atom in _ATOMS:
        if kind is atom:
            return value
    for original, copied in made:
        if original is value:
            return copied
    if kind is list:
        result: Any = []
        made.append((value, result))
        for part in value:
            result.append(_copied(part, made, others))
        return result
    if kind is dict:
        result = {}
        made.append((value, result))
        for key, part in value.items():
            result[_copied(key, made, others)] = _copied(part, made, others)
        return result
    if kind is tuple:
        copied = _tuple_copied(value, made, others)
        return value if copied is None else copied
    return _object_copied(value, kind, made, others)


def _tuple_copied(value: Any, made: Any, others: Any) -> Any:
    """A copy of a tuple; None if all its parts are copied as themselves."""
    for original, copied in made:
        if original is value:
            return copied
    parts, changed = [], False
    for part in value:
        kind = type(part)
        atomic = False
        for atom in _ATOMS:
            atomic = atomic or kind is atom
        copy_part = _tuple_copied if kind is tuple else _copied
        copied = None if atomic else copy_part(part, made, others)
        changed = changed or copied is not None
        parts.append(part if copied is None else copied)
    if not changed:
        return None
    for original, copied in made:  # a part that leads back to it has copied it
        if original is value:
            return copied
    result = tuple(parts)
    made.append((value, result))
    return result


def _object_copied(value: Any, kind: Any, made: Any, others: Any) -> Any:
    if not _is_usual(value):
        others.append(value)
        return value
    result = _NEW(kind)
    made.append((value, result))
    state = super(kind.__mro__[-2], value).__getattribute__("__dict__")  # as C asks for it: by no code of the class
    if state:
        copied = _copied(state, made, others)
        if hasattr(result, "__setstate__"):
            others.append(value)
            return value
        result.__dict__.update(copied)
    return result


def _is_usual(value: Any) -> bool:
    """Whether what Python asks an object about its copies, for which its class may have code, has the usual answers."""
    if getattr(value, "__deepcopy__", None) is not None:
        return False
    for name in ("__reduce_ex__", "__reduce__", "__getstate__"):
        if not is_own_method(getattr(value, name, None), value, name):
            return False
    return True


def is_deepcopy(function: Any) -> bool:
    """Whether a function is that of Python's library, with its code."""
    return function is _DEEPCOPY and function.__code__ is _CODE and _is_of_copy(function)


def _is_of_copy(function: Any) -> bool:
    code = getattr(function, "__code__", None)
    return code is not None and code.co_filename == copy.__file__ and function.__globals__ is vars(copy)


def copies_plainly(kind: type) -> bool:
    """Whether objects of a class are copied as those of other classes: no table says how, and no method does."""
    table: dict[type, Any] = vars(copy)["_deepcopy_dispatch"]
    if kind in _USUAL:
        return _is_of_copy(_USUAL[kind]) and table.get(kind) is _USUAL[kind]
    if kind in table or kind in copyreg.dispatch_table:
        return False
    if kind in _OF_TORCH:
        return True
    if type(kind) is not type or not all(base.__flags__ & MADE_BY_PYTHON for base in kind.__mro__[:-1]):
        return False
    if not all(_looked_up(kind, name) is vars(object)[name] for name in _OF_OBJECT):
        return False
    return kind.__dictoffset__ != 0 and all(_looked_up(kind, name) is None for name in _OWN)


def _looked_up(kind: type, name: str) -> Any:
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)


def copyable(value: Any) -> set[type] | None:
    """The classes of what ``deep_copy`` would copy; None if it would not be what ``copy.deepcopy`` makes."""
    waiting, seen, kinds = [value], dict[int, Any](), set[type]()
    while waiting:
        one = waiting.pop()
        kind = type(one)
        if kind not in kinds and not copies_plainly(kind):
            return None
        kinds.add(kind)
        if kind in _ATOMS or id(one) in seen:
            continue
        seen[id(one)] = one
        if len(seen) > MOST_COPIED:  # which of them are the same are facts of each two
            return None
        if kind is dict:
            waiting += [*one.keys(), *one.values()]
        elif kind is list or kind is tuple:
            waiting += one
        else:
            waiting.append(object.__getattribute__(one, "__dict__"))
    return kinds
