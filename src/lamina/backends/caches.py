"""The on-disk cache, the C++ compiler and the guard machine that options name."""

from __future__ import annotations

from functools import cache

from lamina.base.user_warnings import warn_user
from lamina.capture.own.guards.library import Library, machine_of, machine_source
from lamina.options import Options, compiler_variables
from lamina.runtime.cache import Cache, cache_root
from lamina.runtime.compilation import Running
from lamina.runtime.source import load_source
from lamina.runtime.toolchain import Compiler, NoCompiler, look_for_compiler

__all__ = ["chosen_compiler", "guard_machine", "open_cache", "warn_once"]


def open_cache(options: Options) -> Cache:
    """The on-disk cache that the options name, or one that lasts as long as the process."""
    return _cache(options.cache_dir, options.cache, options.cache_limit << 20)


@cache  # values of three options
def _cache(folder: str, enabled: bool, limit: int) -> Cache:
    return Cache(cache_root(folder), limit) if enabled else Cache(None)


def chosen_compiler(cxx: str, cache: Cache, running: Running | None = None) -> Compiler | NoCompiler:
    """The compiler to build with. One that the user named and that cannot be used is told, even if nothing is built."""
    found = look_for_compiler(cxx, cache, running, compiler_variables())
    if cxx and isinstance(found, NoCompiler):
        warn_once(f"lamina cannot use the C++ compiler of the option cxx: {found.what}")
    return found


def guard_machine(settings: Options) -> Library | None:
    """What asks the facts of calls in machine code; None without a C++ compiler, or where it would not work."""
    kept = open_cache(settings)
    found = chosen_compiler(settings.cxx, kept)
    return _machine_by(found, kept) if isinstance(found, Compiler) else None


@cache  # as many as the process has compilers and caches
def _machine_by(compiler: Compiler, kept: Cache) -> Library | None:
    handle = load_source("guard machine", machine_source(), compiler, kept)
    return None if handle is None else machine_of(handle)


_warned: set[str] = set()
"""Kinds of messages, of which there are few."""


def warn_once(message: str) -> None:
    """Warn, once in this process for all messages that are equal up to the first colon."""
    kind = message.partition(":")[0]
    if kind not in _warned:
        _warned.add(kind)
        warn_user(message)
