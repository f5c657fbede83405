"""`lamina doctor`: ten findings about this machine, each with what to do if something is missing."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from rich.text import Text

from lamina.base.plurals import counted
from lamina.options import Options
from lamina.runtime.cache import cache_root
from lamina.runtime.toolchain import ISAS, Compiler, NoCompiler, host_isa, probe

__all__ = ["Finding", "examine", "installed_version"]

PYTHONS = ((3, 11), (3, 13))
TORCHES = ((2, 11), (2, 13))
ISA_NAMES = {"avx512": "AVX-512, 64-byte vectors", "avx2": "AVX2, 32-byte vectors", "plain": "baseline vectors only"}
MARKS = {"good": ("ok  ", "green"), "fair": ("note", "yellow"), "bad": ("bad ", "red")}
"""What a line begins with, and its colour, by the state."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: ``state`` is good, fair (works, could be better) or bad (does not work); ``remedy`` says what to do."""

    subject: str
    state: str
    text: str
    remedy: str = ""

    def line(self) -> Text:
        """The finding as one line, its first word coloured."""
        advice = f" -> {self.remedy}" if self.remedy else ""
        return Text.assemble(MARKS[self.state], f" {self.subject:<13} {self.text}{advice}".replace("\n", " "))


def examine(options: Options) -> list[Finding]:
    """The ten findings, in a fixed order; the last one sums up the others."""
    compiler = _found_compiler(options)
    findings = [
        Finding("lamina", "good", f"{installed_version()}, mode {options.mode}, numerics {options.numerics}"),
        _python(),
        _torch(),
        _triton(),
        _compiler(compiler),
        _instructions(compiler, options),
        _openmp(compiler),
        _gpu(),
        _cache(cache_root(options.cache_dir), options),
    ]
    return [*findings, _verdict(findings)]


def installed_version() -> str:
    """Lamina's version; a package that is only on the path, not installed, has none."""
    try:
        return version("lamina")
    except PackageNotFoundError:
        return "unknown (not installed)"


def _found_compiler(options: Options) -> Compiler | NoCompiler:
    try:
        return probe(options.cxx)
    except NoCompiler as error:
        return error


def _between(found: tuple[int, int], bounds: tuple[tuple[int, int], tuple[int, int]]) -> bool:
    return bounds[0] <= found <= bounds[1]


def _python() -> Finding:
    text = f"{platform.python_version()} at {sys.executable}"
    if _between(sys.version_info[:2], PYTHONS):
        return Finding("python", "good", text)
    return Finding("python", "bad", text, "use Python 3.11 to 3.13")


def _torch() -> Finding:
    major, minor = torch.__version__.split(".")[:2]
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
    text = f"{torch.__version__}, {build}"
    if _between((int(major), int(minor)), TORCHES):
        return Finding("torch", "good", text)
    return Finding("torch", "bad", text, "install torch 2.11, 2.12 or 2.13")


def _triton() -> Finding:
    try:
        return Finding("triton", "good", version("triton"))
    except PackageNotFoundError:
        if torch.cuda.is_available():
            text = "not installed, so regions on the GPU run as ATen calls"
            return Finding("triton", "fair", text, "pip install 'lamina[gpu]'")
        return Finding("triton", "good", "not installed; only GPU kernels need it (pip install 'lamina[gpu]')")


def _compiler(compiler: Compiler | NoCompiler) -> Finding:
    if isinstance(compiler, Compiler):
        return Finding("compiler", "good", f"{compiler}; it built a trial kernel")
    remedy = "install g++, or name a compiler in LAMINA_CXX; until then whole graphs run as ATen calls"
    return Finding("compiler", "fair", compiler.what, remedy)


def _instructions(compiler: Compiler | NoCompiler, options: Options) -> Finding:
    widest = host_isa()
    used = widest if options.simd == "auto" else options.simd
    text = f"{ISA_NAMES[used]} on {platform.machine()}"
    if ISAS.index(used) < ISAS.index(widest):
        return Finding(
            "instructions", "bad", text, f"LAMINA_SIMD asks for more than this machine has: set it to {widest}"
        )
    return Finding("instructions", "good" if isinstance(compiler, Compiler) else "fair", text)


def _openmp(compiler: Compiler | NoCompiler) -> Finding:
    cores, threads = os.cpu_count() or 1, torch.get_num_threads()
    if not torch.backends.openmp.is_available():  # type: ignore[no-untyped-call]
        return Finding(
            "openmp", "fair", "this torch has none; kernels run on one thread", "install a torch with OpenMP"
        )
    text = f"kernels share torch's threads: {threads}, on {cores} logical cores"
    if threads > cores:
        return Finding("openmp", "fair", text, "call torch.set_num_threads with at most the number of cores")
    return Finding("openmp", "good" if isinstance(compiler, Compiler) else "fair", text)


def _gpu() -> Finding:
    if not torch.cuda.is_available():
        return Finding("gpu", "good", "none visible to torch; kernels are made for the CPU")
    name, (major, minor) = torch.cuda.get_device_name(), torch.cuda.get_device_capability()
    memory = torch.cuda.get_device_properties(0).total_memory / 2**30
    return Finding("gpu", "good", f"{torch.cuda.device_count()} x {name}, sm_{major}{minor}, {memory:.0f} GiB")


def _cache(folder: Path, options: Options) -> Finding:
    if not options.cache:
        return Finding("cache", "fair", "switched off by LAMINA_CACHE", "unset it to compile each kernel only once")
    there = next(p for p in (folder, *folder.parents) if p.exists())
    if not there.is_dir():
        text = f"{there} is a file, so kernels cannot be kept {'in it' if there == folder else 'below it'}"
        return Finding("cache", "fair", text, "name a folder in LAMINA_CACHE_DIR to keep new kernels")
    if there != folder:
        writable = _can_write(there)
        text = f"{folder}, not made yet"
    else:
        sizes = _sizes_of_files(folder)
        writable = _can_write(folder)
        text = f"{folder}, {counted(len(sizes), 'file')}, {sum(sizes) / 2**20:.1f} MiB"
    if writable:
        return Finding("cache", "good", f"{text}, writable")
    return Finding(
        "cache", "fair", f"{text}, read-only", "name a writable folder in LAMINA_CACHE_DIR to keep new kernels"
    )


def _sizes_of_files(folder: Path) -> list[int]:
    """The bytes of each file below a folder in which other processes may make and remove files meanwhile."""
    sizes = []
    for where, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                sizes.append(os.lstat(os.path.join(where, name)).st_size)
    return sizes


def _can_write(folder: Path) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _verdict(findings: list[Finding]) -> Finding:
    bad = [f.subject for f in findings if f.state == "bad"]
    fair = [f.subject for f in findings if f.state == "fair"]
    if bad:
        return Finding("verdict", "bad", f"will not work before this is put right: {', '.join(bad)}")
    if fair:
        return Finding("verdict", "fair", f"works; would be better with: {', '.join(fair)}")
    return Finding("verdict", "good", "nothing is missing")
