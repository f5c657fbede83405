"""What decides beside the program and the options whether a stored program is right, and fast, in a process."""

from __future__ import annotations

import functools
import os
import platform
import sys
from pathlib import Path

import torch

from lamina.base.lowering import lowerings_key
from lamina.runtime.cache import digest
from lamina.runtime.kernel import ABI
from lamina.runtime.toolchain import host_isa

__all__ = ["kind_of_machine", "kind_of_process", "versions"]


@functools.cache  # one value
def kind_of_machine() -> tuple[tuple[str, str], ...]:
    """What a machine is for kernels, as (what, which)."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return ("processor", f"{platform.machine()} {host_isa()} {_flags()}"), ("cores", str(cores))


def _flags() -> str:
    """A digest of what the processor says that it can do."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return digest(*sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))}))[:16]


@functools.cache  # one value
def versions() -> tuple[tuple[str, str], ...]:
    """The versions that stored programs rest on, as (of what, which)."""
    git = getattr(torch.version, "git_version", "")
    return ("Python", sys.version), ("torch", f"{torch.__version__} {git}"), ("Lamina", f"{ABI} {_sources()}")


def _sources() -> str:
    """A digest of the sources of Lamina."""
    parts: list[str | bytes] = []
    for folder, folders, names in os.walk(os.path.dirname(os.path.dirname(__file__))):
        folders[:] = sorted({*folders} - {"__pycache__", "node_modules"})
        for name in sorted(names):
            if name.endswith((".py", ".cpp", ".h")):
                with open(os.path.join(folder, name), "rb") as file:
                    parts += [name, file.read()]
    return digest(*parts)


def kind_of_process() -> str:
    """A digest of all of this; the user's own lowerings, which may be registered at any time, are a part of it."""
    return digest(repr((kind_of_machine(), versions(), lowerings_key())))
