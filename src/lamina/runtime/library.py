"""Shared objects of kernels: finding the one that holds a kernel, and loading each once per process."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

from lamina.runtime.cache import Cache, Entry, Miss
from lamina.runtime.kernel import KernelUnit, symbol
from lamina.runtime.toolchain import Compiler, load_library

__all__ = ["OBJECT", "Functions", "Library", "recall", "remember"]

OBJECT = "kernels.so"
Functions = tuple[Callable[[bytes], int], ...]  # in the order of the unit's functions


@dataclass(frozen=True, slots=True)
class Library:
    """A loaded shared object and the cache entry it came from."""

    entry: Entry
    handle: ctypes.CDLL


# Kernels stay loaded until the process ends: nothing can tell when the last caller of a function is gone.
_LOADED: dict[str, Functions] = {}
_LIBRARIES: dict[str, Library] = {}


def recall(unit: KernelUnit, identity: str, compiler: Compiler | None, cache: Cache) -> Functions | None:
    """The functions of the kernel with this hash, if this process or the cache has it.

    With a compiler given, only code of that compiler counts; without, code of any compiler will do.
    """
    names = (_note(identity, compiler),) if compiler is not None else cache.notes_of(f"{identity}.")
    for name in names:
        functions = _LOADED.get(name) or _open(unit, identity, name, cache)
        if functions is not None:
            _LOADED[name] = functions
            return functions
    return None


def remember(unit: KernelUnit, identity: str, compiler: Compiler, cache: Cache, library: Library) -> Functions:
    """The functions of a kernel that was just built, noted for this process and for those to come."""
    name = _note(identity, compiler)
    _LIBRARIES[library.entry.key] = library
    cache.write_note(name, {"object": library.entry.key, "kernel": unit.name})
    functions = _LOADED[name] = _functions(unit, identity, library)
    return functions


def _note(identity: str, compiler: Compiler) -> str:
    return f"{identity}.{compiler.identity}"


def _open(unit: KernelUnit, identity: str, name: str, cache: Cache) -> Functions | None:
    note = cache.note(name)
    if note is None:
        return None
    key = str(note.get("object"))
    library = _LIBRARIES.get(key)
    if library is None:
        entry = cache.get(key)
        if isinstance(entry, Miss):
            return None
        try:
            library = Library(entry, load_library(entry.path / OBJECT))
        except OSError as error:
            cache.report(Miss(key, f"{OBJECT} cannot be loaded: {error}", damaged=True))
            return None
        library = _LIBRARIES.setdefault(key, library)
    if identity not in library.entry.fields.get("kernels", ()):
        cache.report(Miss(name, "the note names an object without this kernel", damaged=True))
        return None
    return _functions(unit, identity, library)


def _functions(unit: KernelUnit, identity: str, library: Library) -> Functions:
    functions: list[Callable[[bytes], int]] = []
    for index in range(len(unit.functions)):
        found = getattr(library.handle, symbol(index, identity))
        found.argtypes, found.restype = (ctypes.c_void_p,), ctypes.c_longlong
        functions.append(found)
    return tuple(functions)
