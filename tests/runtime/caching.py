"""Kernels, entries and compilers that the tests of the cache share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lamina.runtime.build import BuildResult, build_kernels
from lamina.runtime.cache import Cache, digest
from lamina.runtime.kernel import KernelUnit

__all__ = ["CONTENT", "KEY", "Forget", "MakeUnit", "build", "fill", "script"]

MakeUnit = Callable[..., KernelUnit]
Forget = Callable[[], None]
KEY = digest("an entry")
CONTENT = b"content" * 1000


def build(units: list[KernelUnit], compiler: Any, cache: Cache, **more: Any) -> BuildResult:
    """Build kernels for the plain instruction set."""
    return build_kernels(units, compiler=compiler, isa="plain", cache=cache, **more)


def script(folder: Path, name: str, text: str) -> Path:
    """A program of ``folder`` that the shell runs."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def fill(folder: Path) -> Mapping[str, Any]:
    """An entry of one file."""
    (folder / "a.bin").write_bytes(CONTENT)
    return {}
