"""From Triton text to machine code: looked up in the cache kernel by kernel, compiled side by side where missing."""

from __future__ import annotations

import ast
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from lamina.runtime.cache import Cache, Entry, Miss, digest
from lamina.runtime.pool import Pool
from lamina.runtime.triton_pool import CompilerPool, TritonError
from lamina.runtime.triton_worker import Request

__all__ = ["Cubin", "TritonBuild", "TritonUnit", "build_triton", "unit_key"]

_ABI = "2"
_OBJECT = "kernel.cubin"


@dataclass(frozen=True, slots=True)
class TritonUnit:
    """The source of one compiled variant of a kernel.

    ``text`` is a module that defines the jitted function ``function``; ``types`` are the Triton types of its
    ``parameters``, ``aligned`` the positions of those that are multiples of 16 in every call. With ``asserts`` the
    kernel's ``device_assert`` are compiled in. Each program gets ``scratch`` bytes for the kernel's descriptors.
    ``name`` is what the caller calls the unit, no part of its identity.
    """

    name: str
    function: str
    text: str
    parameters: tuple[str, ...]
    types: tuple[str, ...]
    aligned: tuple[int, ...]
    warps: int
    stages: int
    asserts: bool = False
    scratch: int = 0

    def request(self, capability: int, folder: Path) -> Request:
        """What a compiler is asked for: machine code for a GPU (its capability times ten), written to ``folder``."""
        return Request(
            name=self.function,
            text=self.text,
            parameters=list(self.parameters),
            types=list(self.types),
            aligned=list(self.aligned),
            warps=self.warps,
            stages=self.stages,
            asserts=self.asserts,
            scratch=self.scratch,
            capability=capability,
            folder=str(folder),
        )


@dataclass(frozen=True, slots=True)
class Cubin:
    """A compiled kernel: machine code for one compute capability, and what its launch needs.

    ``function`` is the symbol, ``shared`` counts bytes, ``threads`` those of a program, ``hidden`` pointers that follow
    the arguments, all null but the first, which is the scratch memory's if ``scratch``. ``key`` identifies the code.
    It is ``fresh`` if this process compiled it, and did not find it on disk.
    """

    key: str
    function: str
    code: bytes
    types: tuple[str, ...]
    shared: int
    threads: int
    hidden: int
    scratch: bool = False
    fresh: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class TritonBuild:
    """What became of the units of one call: machine code or an error by unit name; bad cache entries met."""

    cubins: Mapping[str, Cubin]
    errors: Mapping[str, TritonError]
    reused: int
    compiled: int
    seconds: float
    damages: tuple[Miss, ...] = ()


def build_triton(
    units: Sequence[TritonUnit],
    *,
    capability: int,
    cache: Cache,
    pool: Callable[[], CompilerPool],
    on_progress: Callable[[int, int, float], None] | None = None,
    patience: float | None = None,
) -> TritonBuild:
    """The machine code of all units, compiled for ``capability`` (90 for sm_90) where the cache has none.

    ``pool`` gives the compilers and is called only if one is needed. ``on_progress(finished, missing, seconds)`` is
    called after each kernel. A kernel that cannot be compiled has an error in the result and does not harm the
    others; so has one that is not ready after ``patience`` seconds, where that is given.
    """
    started = time.monotonic()
    met = len(cache.damages)
    keys = {unit.name: unit_key(unit, capability) for unit in units}
    distinct = {keys[unit.name]: unit for unit in units}
    found: dict[str, Cubin] = {}
    errors: dict[str, TritonError] = {}
    for key, unit in distinct.items():
        cubin = _known(key, unit, cache)
        if cubin is not None:
            found[key] = cubin
    missing = [key for key in distinct if key not in found]
    if missing:
        compiled = _compile_all({key: distinct[key] for key in missing}, capability, cache, pool())
        for finished, (key, result) in enumerate(_results(compiled, patience), 1):
            if isinstance(result, TritonError):
                errors[key] = result
            else:
                found[key] = result
            if on_progress is not None:
                on_progress(finished, len(missing), time.monotonic() - started)
    by_name = {name: found[key] for name, key in keys.items() if key in found}
    failed = {name: errors[key] for name, key in keys.items() if key in errors}
    made = sum(key in found for key in missing)
    seconds = time.monotonic() - started
    return TritonBuild(by_name, failed, len(found) - made, made, seconds, tuple(cache.damages)[met:])


_HELPER_MODULES = ("triton_math", "triton_fast", "triton_quotients")
"""Modules of this package whose functions kernels call."""


def unit_key(unit: TritonUnit, capability: int) -> str:
    """The identity of a unit's machine code: comments, layout and names of functions do not count."""
    options = (str(unit.aligned), str(unit.warps), str(unit.stages), str(unit.asserts), str(capability))
    scratch = (f"scratch {unit.scratch}",) if unit.scratch else ()
    called = [_text_of(name) for name in _HELPER_MODULES if f"lamina.runtime.{name} " in unit.text]
    return digest("triton", _ABI, _triton_version(), *options, *scratch, *unit.types, *called, _meaning(unit))


@lru_cache
def _text_of(module: str) -> str:
    """A mark of what kernels import from a module of this package: stored kernels do not outlive a change of it."""
    return digest((Path(__file__).parent / f"{module}.py").read_bytes())


def _meaning(unit: TritonUnit) -> str:
    """The text without what changes nothing: comments, layout, the names of the function and of its parts."""
    try:
        tree = ast.parse(unit.text)
    except SyntaxError:
        return unit.text  # the compiler says what is wrong with it
    defined = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    parts = [name for name in defined if name.startswith(unit.function)]
    plain = {name: "kernel" + name.removeprefix(unit.function) for name in parts}
    if set(plain.values()) & set(defined):
        return ast.unparse(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.name = plain.get(node.name, node.name)
        elif isinstance(node, ast.Name):
            node.id = plain.get(node.id, node.id)
    return ast.unparse(tree)


def _triton_version() -> str:
    try:
        return version("triton")
    except PackageNotFoundError:
        return "none"


_KNOWN: dict[str, Cubin] = {}
"""Machine code of this process's kernels by key, loaded again for another GPU and for regions that share kernels."""
_WAITING: dict[str, Future[Cubin]] = {}
"""Kernels that are being compiled now."""
_GUARD = threading.Lock()
_PUBLISHERS = Pool(32, "lamina-cubin")


def _known(key: str, unit: TritonUnit, cache: Cache) -> Cubin | None:
    cubin = _KNOWN.get(key)
    if cubin is not None:
        return cubin
    entry = cache.get(key)
    if isinstance(entry, Miss):
        return None
    try:
        cubin = _cubin(entry, unit)
    except (OSError, KeyError, TypeError, ValueError) as error:
        cache.report(Miss(key, f"the kernel cannot be used: {error}", damaged=True))
        return None
    _KNOWN[key] = cubin
    return cubin


def _cubin(entry: Entry, unit: TritonUnit) -> Cubin:
    about = entry.fields
    if list(about["types"]) != list(unit.types):
        raise ValueError("it takes other arguments")
    numbers = (int(about["shared"]), int(about["threads"]), int(about["hidden"]))
    return Cubin(entry.key, str(about["function"]), entry.read(_OBJECT), unit.types, *numbers, unit.scratch > 0)


def _compile_all(
    units: Mapping[str, TritonUnit], capability: int, cache: Cache, pool: CompilerPool
) -> dict[Future[Cubin], list[str]]:
    """Futures of the kernels; one that another region is compiling already is waited for, not compiled again."""
    futures: dict[Future[Cubin], list[str]] = {}
    with _GUARD:
        for key, unit in units.items():
            future = _WAITING.get(key)
            if future is None:
                future = _WAITING[key] = _PUBLISHERS.submit(_compile, key, unit, capability, cache, pool)
                future.add_done_callback(lambda _, key=key: _WAITING.pop(key, None))  # type: ignore[misc]
            futures.setdefault(future, []).append(key)
    return futures


def _results(futures: Mapping[Future[Cubin], list[str]], patience: float | None) -> Any:
    waiting = dict(futures)
    try:
        for future in as_completed(futures, patience):
            for key in waiting.pop(future):
                try:
                    yield key, future.result()
                except TritonError as error:
                    yield key, error
                except OSError as error:
                    remedy = "free space in the cache folder"
                    yield key, TritonError(f"the kernel cannot be kept: {error}", remedy=remedy)
    except TimeoutError:
        for keys in waiting.values():
            yield from ((key, TritonError(f"not compiled within {patience:g} s")) for key in keys)


def _compile(key: str, unit: TritonUnit, capability: int, cache: Cache, pool: CompilerPool) -> Cubin:
    """Compile and publish one kernel, unless another process has done it meanwhile."""
    fresh = False

    def build(folder: Path) -> Mapping[str, Any]:
        nonlocal fresh
        fresh = True
        about = pool.compile(unit.request(capability, folder)).result()
        (folder / f"{unit.function}.py").write_text(unit.text, encoding="utf-8")
        options = {"aligned": list(unit.aligned), "warps": unit.warps, "stages": unit.stages}
        return {"kind": "triton", "capability": capability, "types": list(unit.types), **options, **about}

    entry = cache.get_or_build(key, build)
    cubin = _KNOWN[key] = replace(_cubin(entry, unit), fresh=fresh)
    return cubin
