"""One fixed C++ source as a library of this process: compiled once per compiler, kept in the cache."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from lamina.runtime.cache import Cache, digest
from lamina.runtime.compilation import Command, Limit, run_command
from lamina.runtime.loading import load_library
from lamina.runtime.toolchain import Compiler, NoCompiler, compile_flags, link_flags
from lamina.runtime.workspace import Workspace, in_workspace

__all__ = ["load_source"]

_SECONDS = 60.0
"""Seconds after which the compiler is given up."""


def load_source(name: str, source: str, compiler: Compiler, cache: Cache) -> ctypes.CDLL | None:
    """The library ``name`` made of ``source``; None if it cannot be compiled or loaded."""
    flags = compile_flags("plain")
    key = digest(name, compiler.identity, *flags, source)

    def compile(space: Workspace) -> bytes:
        (space.path / "source.cpp").write_text(source)
        (space.path / "stub.so").write_bytes(compiler.stub)
        words = (*flags, "source.cpp", *link_flags("stub.so"), "-o", "library.so")
        outcome = run_command(Command((compiler.path, *words), space, Limit(_SECONDS)))
        if not outcome.ok:
            raise NoCompiler(outcome.message)
        return (space.path / "library.so").read_bytes()

    def build(folder: Path) -> dict[str, Any]:
        (folder / "source.cpp").write_text(source)
        (folder / "library.so").write_bytes(in_workspace(lambda: folder.parent, compile))
        return {"kind": name, "compiler": compiler.identity}

    try:
        with cache.get_or_build(key, build).opened("library.so") as descriptor:
            return load_library(descriptor)
    except OSError as error:
        cache.evict(key, f"the {name} cannot be loaded: {error}")  # somebody may build a better one
        return None
    except NoCompiler:
        return None
