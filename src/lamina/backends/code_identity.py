"""What the code of a backend is, as text: what is saved by other code must not be loaded."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from lamina.base.devices import kind_of
from lamina.runtime.cache import digest

__all__ = ["code_identity", "content_of"]

_PLAIN = (int, float, complex, str, bytes, type(None), types.EllipsisType)
_KNOWN = frozenset({*sys.stdlib_module_names, "torch"})
"""Packages whose versions are part of each key: their functions count by name."""


def code_identity(*values: Any) -> str:
    """A hash of functions as they were loaded, with all that they reach, and of plain values.

    Counted are the byte code, defaults, closures and the globals that are named, in other modules too, of functions and
    methods; numbers, texts, containers and tensors; classes and the fields of objects. Of anything else the type
    counts. The byte code, not the source, which may have been edited since it was loaded.
    """
    return digest(sys.version, torch.__version__, *_Walk().facts(values))


def content_of(tensor: torch.Tensor) -> bytes:
    """The values of a tensor as bytes; nothing of one that has no memory."""
    if tensor.layout is not torch.strided or not kind_of(tensor).stored or tensor.is_quantized:
        return repr(tensor).encode()
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return bytes(plain.flatten().view(torch.uint8).numpy().tobytes())


class _Walk:
    """One walk over what is reachable, each object once."""

    def __init__(self) -> None:
        self.met: dict[int, int] = {}
        self.held: list[Any] = []  # so that no number comes back

    def facts(self, value: Any) -> Iterator[str | bytes]:
        """Texts that are equal for equal code in any process."""
        if isinstance(value, _PLAIN):
            yield f"{type(value).__name__} {value!r}"
            return
        if id(value) in self.met:
            yield f"again {self.met[id(value)]}"
            return
        self.met[id(value)] = len(self.met)
        self.held.append(value)
        yield _name(value)
        if isinstance(value, torch.Tensor):
            yield f"{value.dtype} {tuple(value.shape)} {tuple(value.stride())} {value.device}"
            yield content_of(value)
        elif isinstance(value, (set, frozenset)):
            yield repr(sorted(map(repr, value)))
        elif isinstance(value, Mapping):
            for key, held in value.items():
                yield from self.facts(key)
                yield from self.facts(held)
        elif isinstance(value, (tuple, list)):
            for held in value:
                yield from self.facts(held)
        elif not _is_known(value):
            yield from self._code(value)

    def _code(self, value: Any) -> Iterator[str | bytes]:
        if isinstance(value, types.FunctionType):
            yield from self._compiled(value.__code__)
            yield from self.facts(tuple(map(_contents, value.__closure__ or ())))
            yield from self.facts((value.__defaults__, value.__kwdefaults__))
            for name, named in _globals(value):
                yield name
                yield from self.facts(named)
        elif isinstance(value, types.MethodType):
            yield from self.facts((value.__func__, value.__self__))
        elif isinstance(value, functools.partial):
            yield from self.facts((value.func, value.args, dict(value.keywords)))
        elif isinstance(value, (staticmethod, classmethod)):
            yield from self.facts(value.__func__)
        elif isinstance(value, property):
            yield from self.facts((value.fget, value.fset))
        elif isinstance(value, type):
            yield from self.facts([base for base in value.__bases__ if base is not object])
            for name, member in sorted(vars(value).items()):
                if not name.startswith("__") or isinstance(member, types.FunctionType):
                    yield name
                    yield from self.facts(member)
        elif not isinstance(value, (types.ModuleType, types.BuiltinFunctionType)):
            yield from self.facts(type(value))
            for name, held in sorted(_fields(value).items()):
                yield name
                yield from self.facts(held)

    def _compiled(self, code: types.CodeType) -> Iterator[str | bytes]:
        yield code.co_code
        yield repr((code.co_names, code.co_varnames, code.co_freevars, code.co_argcount, code.co_flags))
        for const in code.co_consts:
            if isinstance(const, types.CodeType):
                yield from self._compiled(const)
            else:
                yield from self.facts(const)


def _name(value: Any) -> str:
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{getattr(named, '__module__', '')}.{named.__qualname__}"


def _is_known(value: Any) -> bool:
    module = value if isinstance(value, types.ModuleType) else value if hasattr(value, "__qualname__") else type(value)
    name = module.__name__ if isinstance(module, types.ModuleType) else getattr(module, "__module__", None) or ""
    return name.partition(".")[0] in _KNOWN and not isinstance(value, (functools.partial, types.MethodType))


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _fields(value: Any) -> dict[str, Any]:
    found = dict(vars(value)) if hasattr(value, "__dict__") else {}
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, slot):
                found[slot] = getattr(value, slot)
    return found


def _globals(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """The globals that a function, or one written inside of it, names, and what it names of modules."""
    names: set[str] = set()
    waiting = [function.__code__]
    while waiting:
        code = waiting.pop()
        names.update(code.co_names)
        waiting += [const for const in code.co_consts if isinstance(const, types.CodeType)]
    for name in sorted(names & function.__globals__.keys()):
        value = function.__globals__[name]
        yield name, value
        if isinstance(value, types.ModuleType) and not _is_known(value):
            for member in sorted(names & vars(value).keys()):
                yield f"{name}.{member}", vars(value)[member]
