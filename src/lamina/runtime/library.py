"""Shared objects of kernels: finding the one that holds a kernel, and loading each once per process."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lamina.runtime.cache import Cache, Miss
from lamina.runtime.kernel import KernelUnit, symbol
from lamina.runtime.loading import load_library
from lamina.runtime.toolchain import Compiler

__all__ = ["OBJECT", "Functions", "Library", "functions_in", "functions_of", "object_of", "recall", "remember"]

OBJECT = "kernels.so"
Functions = tuple[Callable[[bytes], int], ...]  # in the order of the unit's functions


@dataclass(frozen=True, slots=True)
class Library:
    """A loaded shared object: the key of its cache entry, and the kernels that it holds."""

    key: str
    kernels: frozenset[str]
    handle: ctypes.CDLL


# Kernels stay loaded until the process ends: nothing can tell when the last caller of a function is gone.
_LOADED: dict[str, Functions] = {}
"""Kernels by name. A loaded library stays in the process: its functions may be running."""
_OBJECTS: dict[int, str] = {}
"""The keys of the cache entries that hold the loaded functions, by the identities of those, which stay."""
_LIBRARIES: dict[str, Library] = {}
"""Loaded libraries by what is in them; they stay, as said above."""


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


def remember(
    found: Mapping[str, Functions],
    library: Library,
    units: Mapping[str, KernelUnit],
    compiler: Compiler,
    cache: Cache,
) -> None:
    """Note kernels that were just built, loaded and published, for this process and for those to come."""
    _LIBRARIES[library.key] = library
    for identity, functions in found.items():
        name = _note(identity, compiler)
        _LOADED[name] = functions
        _OBJECTS.update(dict.fromkeys(map(id, functions), library.key))
        cache.write_note(name, {"object": library.key, "kernel": units[identity].name})


def functions_of(unit: KernelUnit, identity: str, handle: ctypes.CDLL) -> Functions:
    """The functions of a kernel in a loaded object. Raises ``OSError`` if it does not have them."""
    return functions_in(handle, [symbol(index, identity) for index in range(len(unit.functions))])


def functions_in(handle: ctypes.CDLL, symbols: Sequence[str]) -> Functions:
    """The functions of these names in a loaded object. Raises ``OSError`` if it does not have them."""
    functions: list[Callable[[bytes], int]] = []
    for name in symbols:
        try:
            found = getattr(handle, name)
        except AttributeError:
            raise OSError(f"the object lacks the symbol {name}") from None
        found.argtypes, found.restype = (ctypes.c_void_p,), ctypes.c_longlong
        functions.append(found)
    return tuple(functions)


def object_of(function: Callable[[bytes], int]) -> str | None:
    """The key of the cache entry that holds a function of a kernel; None if none does."""
    return _OBJECTS.get(id(function))


def _note(identity: str, compiler: Compiler) -> str:
    return f"{identity}.{compiler.identity}"


def _open(unit: KernelUnit, identity: str, name: str, cache: Cache) -> Functions | None:
    note = cache.note(name)
    if note is None:
        return None
    key = str(note.get("object"))
    library = _LIBRARIES.get(key) or _loaded(key, cache)
    if library is None:
        return None
    if identity not in library.kernels:
        cache.report(Miss(name, "the note names an object without this kernel", damaged=True))
        return None
    try:
        functions = functions_of(unit, identity, library.handle)
        _OBJECTS.update(dict.fromkeys(map(id, functions), key))
        return functions
    except OSError as error:
        _LIBRARIES.pop(key, None)
        cache.evict(key, str(error))
        return None


def _loaded(key: str, cache: Cache) -> Library | None:
    """The shared object that the cache has under ``key``; one that cannot be loaded is removed from it."""
    entry = cache.get(key)
    if isinstance(entry, Miss):
        return None
    kernels = entry.fields.get("kernels")
    if OBJECT not in entry.files or not isinstance(kernels, dict):
        cache.evict(key, "the entry holds no kernels")
        return None
    try:
        with entry.opened(OBJECT) as descriptor:
            handle = load_library(descriptor)
    except FileNotFoundError:
        return None  # evicted meanwhile
    except OSError as error:
        cache.evict(key, f"{OBJECT} cannot be loaded: {error}")
        return None
    return _LIBRARIES.setdefault(key, Library(key, frozenset(kernels), handle))
