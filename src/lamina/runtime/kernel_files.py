"""Kernels for CPUs as C++ files that compile alone, read back and loaded: what a dumped host program runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from lamina.errors import BadArgument
from lamina.runtime.build import build_kernels
from lamina.runtime.cache import Cache
from lamina.runtime.kernel import ABOUT, Kernel, KernelFunction, KernelUnit
from lamina.runtime.toolchain import find_compiler, host_isa

__all__ = ["built_kernel", "load_kernels", "read_kernel", "read_kernels"]


def read_kernel(path: Path) -> KernelUnit:
    """The kernel that a file of ``KernelUnit.files`` holds. Raises ``BadArgument`` for another file."""
    first, _, rest = path.read_text(encoding="utf-8").partition("\n")
    if not first.startswith(ABOUT):
        raise BadArgument(f"{path} holds no kernel of Lamina's", remedy=f"its first line has to begin with {ABOUT!r}")
    about = json.loads(first.removeprefix(ABOUT))
    _, _, included = rest.partition('#include "')
    header, _, source = included.partition('"\n')
    prelude = (path.parent / header).read_text(encoding="utf-8") if header else ""
    functions = tuple(KernelFunction(*function) for function in about["functions"])
    return KernelUnit(about["name"], source, functions, prelude, tuple(about["flags"]), tuple(about["arguments"]))


def read_kernels(folder: Path) -> list[KernelUnit]:
    """The kernels of a folder of a region's stages, or of one of kernels."""
    paths = sorted(folder.glob("*.cpp")) or sorted(folder.glob("*_codegen/*.cpp"))
    return [read_kernel(path) for path in paths]


def load_kernels(folder: Path, compile_with: str = "") -> Mapping[str, Kernel]:
    """Those kernels by name, built for this machine by ``compile_with`` or the first C++ compiler found.

    Raises ``KernelError`` for one that cannot be built.
    """
    return _built(read_kernels(folder), compile_with)


def built_kernel(unit: KernelUnit, compile_with: str = "") -> Kernel:
    """One kernel, likewise."""
    return _built([unit], compile_with)[unit.name]


def _built(units: Sequence[KernelUnit], compile_with: str) -> Mapping[str, Kernel]:
    cache = Cache(None)
    built = build_kernels(units, compiler=find_compiler(compile_with, cache), isa=host_isa(), cache=cache)
    for error in built.errors.values():
        raise error
    return built.kernels
