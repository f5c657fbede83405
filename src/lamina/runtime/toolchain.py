"""The C++ compiler, the instruction set and the flags that CPU kernels are built with.

Kernels are linked against nothing but a stub whose name is ``libtorch_cpu.so``. When a kernel is loaded the
dynamic linker finds torch's library of that name already in the process, and through it the OpenMP runtime, the vector
maths (SLEEF) and the C library that torch itself uses. So there is one thread pool, ``torch.set_num_threads`` governs
it, and no path is stored in an object.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache as memoised
from pathlib import Path
from typing import Any

import torch

from lamina.errors import LaminaError
from lamina.runtime.cache import Cache, Entry, digest

__all__ = [
    "ISAS",
    "Compiler",
    "NoCompiler",
    "compile_flags",
    "find_compiler",
    "host_isa",
    "isa_of",
    "link_flags",
    "load_library",
    "probe",
]

ISAS = ("avx512", "avx2", "plain")
_NAMES = ("c++", "g++", "clang++")
_PROBE_SECONDS = 20.0
_STUB = "libtorch_cpu.so"
_TRIAL = """
extern "C" int omp_get_thread_num();
extern "C" void trial(int* out, long n) {
#pragma omp parallel for schedule(static)
  for (long i = 0; i < n; i++) out[i] = omp_get_thread_num();
}
"""
_NEEDED = {
    "avx512": frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx2", "fma", "f16c", "bmi2"}),
    "avx2": frozenset({"avx2", "fma", "f16c", "bmi2"}),
}
_FLAGS = {
    "avx512": ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx2", "-mfma", "-mf16c", "-mbmi2"),
    "avx2": ("-mavx2", "-mfma", "-mf16c", "-mbmi2"),
    "plain": (),
}
# Integers wrap as in eager, signed ones too. No errno and no traps change no value. NaN, infinities, signed zeros and
# the order of sums stay as written.
_COMMON = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fopenmp",
    "-fwrapv",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-semantic-interposition",
    "-w",
    "-pipe",
)


class NoCompiler(LaminaError):
    """No C++ compiler that can build kernels; what was tried and why each failed."""

    code = "LM030"


@dataclass(frozen=True, slots=True)
class Compiler:
    """A compiler that has built a trial kernel. ``stub`` is the library kernels are linked against."""

    path: str
    kind: str  # gcc or clang
    version: str
    machine: str
    stub: bytes

    @property
    def identity(self) -> str:
        """What of the compiler decides the code it makes, as a short word for file names."""
        return re.sub(r"[^A-Za-z0-9.]+", "-", f"{self.kind}-{self.version}-{self.machine}")

    def __str__(self) -> str:
        return f"{self.kind} {self.version} at {self.path}"


def find_compiler(cxx: str = "", cache: Cache | None = None) -> Compiler | None:
    """The first compiler that works: ``cxx`` if given, else c++, g++ or clang++ on the PATH. None if there is none.

    What is found is remembered for the process, and in ``cache`` by the compiler's path, size and time of change, so
    that a warm process starts no compiler to ask for its version.
    """
    try:
        return probe(cxx, cache)
    except NoCompiler:
        return None


def probe(cxx: str = "", cache: Cache | None = None) -> Compiler:
    """As ``find_compiler``, but raises ``NoCompiler`` with the reason for each candidate."""
    reasons: list[str] = []
    for name in (cxx,) if cxx else _NAMES:
        path = shutil.which(name)
        if path is None:
            reasons.append(f"{name} is not on the PATH")
            continue
        found = _examine(path, cache)
        if isinstance(found, Compiler):
            return found
        reasons.append(f"{path}: {found}")
    raise NoCompiler("; ".join(reasons), remedy="install g++, or name a compiler with the option cxx")


@memoised
def host_isa() -> str:
    """The widest instruction set of this machine that kernels are written for: avx512, avx2 or plain."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "plain"
    return isa_of(text)


def isa_of(cpuinfo: str) -> str:
    """The instruction set that a text like that of /proc/cpuinfo describes."""
    found = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
    flags = frozenset(found.group(1).split()) if found else frozenset()
    return next((isa for isa, needed in _NEEDED.items() if needed <= flags), "plain")


def compile_flags(isa: str) -> tuple[str, ...]:
    """Flags that turn one source file into an object for ``isa``. They name features, not this machine."""
    return (*_COMMON, *_FLAGS[isa])


def link_flags(stub: str) -> tuple[str, ...]:
    """Flags that follow the objects on the command line and make a shared object that finds torch's symbols."""
    return (
        "-shared",
        "-nostdlib",
        "-Wl,--no-as-needed",
        stub,
        "-Wl,--as-needed",
        "-lm",
        "-lc",
        "-lgcc",
        "-Wl,--build-id=none",
    )


def load_library(path: Path) -> ctypes.CDLL:
    """Load a shared object; raises ``OSError`` if it cannot be. Works on file systems mounted without execution too."""
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        if not hasattr(os, "memfd_create") or "failed to map segment" not in str(error):
            raise
        # Left open: the linker knows libraries by name, and a descriptor used again would name two of them.
        descriptor = os.memfd_create(path.name, os.MFD_CLOEXEC)
        os.write(descriptor, path.read_bytes())
        return ctypes.CDLL(f"/proc/self/fd/{descriptor}")


_FOUND: dict[tuple[str, int, int], Compiler | str] = {}


def _examine(path: str, cache: Cache | None) -> Compiler | str:
    """The compiler at ``path``, or why it cannot build kernels."""
    try:
        status = os.stat(path)  # of what a link points to, so that an upgrade is seen
    except OSError as error:
        return error.strerror or str(error)
    mark = (os.path.realpath(path), status.st_size, status.st_mtime_ns)
    found = _FOUND.get(mark)
    if found is None:
        found = _FOUND[mark] = _ask(path, digest("compiler", *map(str, mark)), cache or Cache(None))
    return found


def _ask(path: str, key: str, cache: Cache) -> Compiler | str:
    if sys.platform != "linux":
        return f"kernels are not built on {sys.platform} yet"
    try:
        entry = cache.get_or_build(key, lambda folder: _try_out(path, folder))
        compiler = _compiler(path, entry)
    except LaminaError as error:
        return error.what
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    if compiler.kind == "clang" and not _has_symbol("__kmpc_fork_call"):
        return "clang's OpenMP runtime is not the one this torch uses, so threads could not be shared"
    return compiler


def _compiler(path: str, entry: Entry) -> Compiler:
    known = entry.fields
    return Compiler(path, known["compiler"], known["version"], known["machine"], entry.read("stub.so"))


def _try_out(path: str, folder: Path) -> Mapping[str, Any]:
    """Make the stub and build a trial kernel against it, then say what compiler it is."""
    about = _run([path, "--version"], folder)
    version = re.search(r"(\d+\.\d+(\.\d+)?)", re.sub(r"\([^)]*\)", "", about.splitlines()[0] if about else ""))
    kind = "clang" if "clang" in about else "gcc"
    (folder / "empty.c").write_text("\n")
    (folder / "trial.cpp").write_text(_TRIAL)
    _run([path, "-shared", "-fPIC", "-nostdlib", f"-Wl,-soname,{_STUB}", "-x", "c", "empty.c", "-o", "stub.so"], folder)
    _run([path, *compile_flags("plain"), "-c", "trial.cpp", "-o", "trial.o"], folder)
    _run([path, "trial.o", *link_flags("stub.so"), "-o", "trial.so"], folder)
    for name in ("empty.c", "trial.cpp", "trial.o", "trial.so"):
        (folder / name).unlink()
    return {
        "kind": "compiler",
        "compiler": kind,
        "version": version.group(1) if version else "unknown",
        "machine": platform.machine(),
        "described": about.splitlines()[0] if about else "",
    }


def _run(command: list[str], folder: Path) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_PROBE_SECONDS,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit status {done.returncode}"]
        first = next((line for line in lines if "error" in line), lines[0])
        raise NoCompiler(f"{' '.join(command)} failed: {first[:500]}")
    return done.stdout


def _has_symbol(name: str) -> bool:
    """Whether torch's CPU library, or a library it needs, defines ``name``."""
    library = Path(torch.__file__).parent / "lib" / _STUB
    try:
        getattr(ctypes.CDLL(str(library)), name)
    except (OSError, AttributeError):
        return False
    return True
