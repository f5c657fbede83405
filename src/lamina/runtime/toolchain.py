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
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache as memoised
from pathlib import Path
from typing import Any

import torch

from lamina.errors import LaminaError
from lamina.runtime.cache import Cache, Entry, digest
from lamina.runtime.cache_files import is_full
from lamina.runtime.compilation import Command, Limit, Running, run_command
from lamina.runtime.workspace import DiskFull, Workspace, in_workspace

__all__ = [
    "ISAS",
    "Compiler",
    "DiskIsFull",
    "NoCompiler",
    "compile_flags",
    "find_compiler",
    "host_isa",
    "host_processor",
    "isa_of",
    "link_flags",
    "look_for_compiler",
    "probe",
]

ISAS = ("avx512", "avx2", "plain")
_NAMES = ("c++", "g++", "clang++")
_PROBE_SECONDS = 20.0
"""Seconds after which a compiler that is asked for its version or tried on one line is taken for broken."""
_ROOM = "free space, or set TMPDIR to a folder with room"
_STUB = "libtorch_cpu.so"
# Beside threads it has what flags of a wrapper would change: NaN, signed zeros, the order of a sum, wrapping integers.
_TRIAL = """
extern "C" int omp_get_thread_num();
extern "C" void values(const float* x, const int* k, float* out, long n) {
  float sum = 0;
  for (long i = 0; i < n; i++) {
    sum += x[i] * x[i] + 0.1f;
    out[i] = (x[i] != x[i] ? 1.0f : x[i] / 3.0f) + (k[i] + 1 > k[i] ? 0.0f : x[i] * 0.0f);
  }
  out[n] = sum;
}
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


class DiskIsFull(NoCompiler):
    """No compiler could be tried out, for want of room on any disk."""

    code = "LM034"


@dataclass(frozen=True, slots=True)
class Compiler:
    """A compiler that has built a trial kernel. ``stub`` is the library kernels are linked against.

    ``build`` is a hash of what tells it from compilers of the same version: the name and the content of the program,
    how it describes itself, the commands it would run (with what a wrapper adds) and the code it made of the trial.
    """

    path: str
    kind: str  # gcc or clang
    version: str
    machine: str
    stub: bytes
    build: str = ""

    @property
    def identity(self) -> str:
        """What of the compiler decides the code it makes, as a short word for file names."""
        return re.sub(r"[^A-Za-z0-9.]+", "-", f"{self.kind}-{self.version}-{self.machine}-{self.build}")

    def __str__(self) -> str:
        return f"{self.kind} {self.version} at {self.path}"


def find_compiler(cxx: str = "", cache: Cache | None = None) -> Compiler | None:
    """The first compiler that works: ``cxx`` if given, else c++, g++ or clang++ on the PATH. None if there is none.

    What is found is remembered for the process, and in ``cache`` by the compiler's path, size and time of change and
    those of the programs it runs, so that a warm process starts no compiler to ask for its version.
    """
    found = look_for_compiler(cxx, cache)
    return found if isinstance(found, Compiler) else None


def look_for_compiler(
    cxx: str = "", cache: Cache | None = None, running: Running | None = None, told: tuple[str, ...] = ()
) -> Compiler | NoCompiler:
    """As ``find_compiler``, but gives what ``probe`` raises. ``told`` is what the environment tells
    compilers: with other words, a compiler is another one. Raises ``Stopped`` after ``running.stop()``.
    """
    try:
        return probe(cxx, cache, running, told)
    except NoCompiler as error:
        return error


def probe(
    cxx: str = "", cache: Cache | None = None, running: Running | None = None, told: tuple[str, ...] = ()
) -> Compiler:
    """As ``find_compiler``, but raises ``NoCompiler`` with the reason for each candidate."""
    reasons: list[str] = []
    for name in (cxx,) if cxx else _NAMES:
        path = shutil.which(name)
        if path is None:
            reasons.append(f"{name} is no program that can be run" if "/" in name else f"{name} is not on the PATH")
            continue
        # Compilers run in folders of their own.
        found = _examine(os.path.abspath(path), cache, running or Running(), told)
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


@memoised
def host_processor() -> str:
    """The name of this machine's processor, as /proc/cpuinfo has it, else the architecture's."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:(.*)$", text, re.MULTILINE)
    return found.group(1).strip() if found else platform.machine()


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


_Mark = tuple[str | int, ...]
_FOUND: dict[_Mark, Compiler | str] = {}
"""By compiler: as many as the process has values of the option cxx."""


def _examine(path: str, cache: Cache | None, running: Running, told: tuple[str, ...]) -> Compiler | str:
    """The compiler at ``path``, or why it cannot build kernels."""
    try:
        status = os.stat(path)  # of what a link points to, so that an upgrade is seen
    except OSError as error:
        return error.strerror or str(error)
    # The path as it was given: what a program with several names does depends on the name.
    mark: _Mark = (path, status.st_size, status.st_mtime_ns, *told)
    found = _FOUND.get(mark)
    if found is None:
        found = _FOUND[mark] = _ask(path, digest("compiler", "2", *map(str, mark)), cache or Cache(None), running)
    return found


def _ask(path: str, key: str, cache: Cache, running: Running) -> Compiler | str:
    if sys.platform != "linux":
        return f"kernels are not built on {sys.platform} yet"

    def build(folder: Path) -> Mapping[str, Any]:
        fields, stub = in_workspace(lambda: folder.parent, lambda space: _try_out(path, space, running))
        (folder / _STUB).write_bytes(stub)
        return fields

    try:
        entry = cache.get(key)
        if isinstance(entry, Entry) and _tools(entry.fields.get("tools", ())) != entry.fields.get("tools"):
            cache.evict(key, "a program that the compiler runs has changed")
        compiler = _compiler(path, cache.get_or_build(key, build))
    except DiskFull as error:
        raise DiskIsFull(str(error.strerror), remedy=_ROOM) from None
    except LaminaError as error:
        return error.what
    except (OSError, KeyError) as error:
        if isinstance(error, OSError) and is_full(error):
            raise DiskIsFull(f"no disk has room: {error}", remedy=_ROOM) from None
        return str(error)
    if compiler.kind == "clang" and not _has_symbol("__kmpc_fork_call"):
        return "clang's OpenMP runtime is not the one this torch uses, so threads could not be shared"
    return compiler


def _compiler(path: str, entry: Entry) -> Compiler:
    known = entry.fields
    stub = entry.read(_STUB)
    return Compiler(path, known["compiler"], known["version"], known["machine"], stub, known["build"])


def _try_out(path: str, space: Workspace, running: Running) -> tuple[Mapping[str, Any], bytes]:
    """Make the stub and build a trial kernel against it, then say what compiler it is."""

    def run(*words: str, check: bool = True) -> str:
        outcome = run_command(Command((path, *words), space, Limit(_PROBE_SECONDS)), running)
        if not outcome.ok and check:
            space.check(outcome.message)
            lines = outcome.message.strip().splitlines() or ["it says nothing"]
            first = next((line for line in lines if "error" in line), lines[0])
            raise NoCompiler(f"{' '.join((path, *words))} failed: {first[:500]}")
        return outcome.message

    def made(name: str) -> bytes:
        try:
            return (folder / name).read_bytes()
        except FileNotFoundError:
            raise NoCompiler(f"{path} says that all is well and writes no {name}") from None

    folder = space.path
    about = run("--version")
    version = re.search(r"(\d+\.\d+(\.\d+)?)", re.sub(r"\([^)]*\)", "", about.splitlines()[0] if about else ""))
    (folder / "empty.c").write_text("\n")
    (folder / "trial.cpp").write_text(_TRIAL)
    run("-shared", "-fPIC", "-nostdlib", f"-Wl,-soname,{_STUB}", "-x", "c", "empty.c", "-o", "stub.so")
    compiling = (*compile_flags("plain"), "trial.cpp", "-o")
    linking = ("trial.o", *link_flags("stub.so"), "-o", "trial.so")
    run(*compiling, "trial.s", "-S")
    run("-c", "trial.s", "-o", "trial.o")
    run(*linking)
    commands = run(*compiling, "trial.o", "-c", "-###", check=False) + run(*linking, "-###", check=False)
    # Names of temporary files are made up anew each time.
    commands = re.sub(
        r"\bcc[A-Za-z0-9]{6}\b", "cc", commands.replace(str(folder), ".").replace(tempfile.gettempdir(), ".")
    )
    fields = {
        "kind": "compiler",
        "compiler": "clang" if "clang" in about else "gcc",
        "version": version.group(1) if version else "unknown",
        "machine": platform.machine(),
        "described": about.splitlines()[0] if about else "",
        "build": digest(path, Path(path).read_bytes(), about, commands, made("trial.s"))[:16],
        "tools": _tools({path, *_programs(commands)}),
    }
    return fields, made("stub.so")


def _programs(commands: str) -> set[str]:
    """Absolute paths of the programs that a compiler says it would run."""
    found: set[str] = set()
    for line in commands.splitlines():
        try:
            words = shlex.split(line.replace("COLLECT_GCC=", "COLLECT_GCC= "))
        except ValueError:
            continue
        found.update(w for w in words if os.path.isabs(w) and os.path.isfile(w) and os.access(w, os.X_OK))
    return found


def _tools(paths: Iterable[str]) -> dict[str, list[int]]:
    """Size and time of change of each program that is there."""
    found: dict[str, list[int]] = {}
    for path in sorted(paths):
        try:
            status = os.stat(path)
        except OSError:
            continue
        found[path] = [status.st_size, status.st_mtime_ns]
    return found


def _has_symbol(name: str) -> bool:
    """Whether torch's CPU library, or a library it needs, defines ``name``."""
    library = Path(torch.__file__).parent / "lib" / _STUB
    try:
        getattr(ctypes.CDLL(str(library)), name)
    except (OSError, AttributeError):
        return False
    return True
