"""`lamina doctor`: ten findings about this machine, each with what to do if something is missing."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from lamina.options import Options
from lamina.runtime.toolchain import Compiler, cache_root, find_compiler, host_isa

__all__ = ["Finding", "examine"]

PYTHONS = ((3, 11), (3, 13))
TORCHES = ((2, 11), (2, 13))
MARKS = {"good": "[green]ok[/green]  ", "fair": "[yellow]note[/yellow]", "bad": "[red]bad[/red] "}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: ``state`` is good, fair (works, could be better) or bad (does not work); ``remedy`` says what to do."""

    subject: str
    state: str
    text: str
    remedy: str = ""

    def line(self) -> str:
        """The finding as one line of rich markup."""
        advice = f" -> {self.remedy}" if self.remedy else ""
        return f"{MARKS[self.state]} {self.subject:<13} {self.text}{advice}".replace("\n", " ")


def examine(options: Options) -> list[Finding]:
    """The ten findings, in a fixed order."""
    compiler = find_compiler(options.cxx)
    return [
        Finding("lamina", "good", f"{version('lamina')}, options: mode {options.mode}, numerics {options.numerics}"),
        _python(),
        _torch(),
        _triton(),
        _compiler(compiler, options),
        _openmp(compiler),
        _isa(compiler),
        _gpu(),
        _cache(cache_root(options.cache_dir), options),
        _threads(),
    ]


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
        return Finding("triton", "good", "not installed; only GPU kernels need it (pip install 'lamina\\[gpu]')")


def _compiler(compiler: Compiler | None, options: Options) -> Finding:
    if compiler:
        return Finding("compiler", "good", f"{compiler.kind} {compiler.version} at {compiler.path}")
    asked = f"LAMINA_CXX names {options.cxx}, which is not there" if options.cxx else "no C++ compiler on the PATH"
    remedy = "install g++ or clang++ and, if it is elsewhere, name it in LAMINA_CXX; until then ATen calls are used"
    return Finding("compiler", "fair", asked, remedy)


def _openmp(compiler: Compiler | None) -> Finding:
    if compiler is None:
        return Finding("openmp", "fair", "unknown without a compiler")
    program = "#include <omp.h>\nint main() { return omp_get_max_threads() < 1; }\n"
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder, "probe.cpp"), Path(folder, "probe")
        source.write_text(program, encoding="utf-8")
        command = [str(compiler.path), "-fopenmp", str(source), "-o", str(binary)]
        built = subprocess.run(command, capture_output=True, check=False)
        if built.returncode == 0 and subprocess.run([str(binary)], check=False).returncode == 0:
            return Finding("openmp", "good", "the compiler builds and runs OpenMP programs")
    return Finding("openmp", "fair", "the compiler cannot build OpenMP programs", "install its libgomp or libomp")


def _isa(compiler: Compiler | None) -> Finding:
    names = {"avx512": "AVX-512, 64-byte vectors", "avx2": "AVX2, 32-byte vectors", "plain": "no AVX2; scalar code"}
    isa = host_isa()
    text = f"{names.get(isa, isa)} ({platform.machine()})"
    return Finding("instructions", "good" if compiler else "fair", text)


def _gpu() -> Finding:
    if not torch.cuda.is_available():
        return Finding("gpu", "good", "none visible to torch; kernels are made for the CPU")
    name, (major, minor) = torch.cuda.get_device_name(), torch.cuda.get_device_capability()
    memory = torch.cuda.get_device_properties(0).total_memory / 2**30
    return Finding("gpu", "good", f"{torch.cuda.device_count()} x {name}, sm_{major}{minor}, {memory:.0f} GiB")


def _cache(folder: Path, options: Options) -> Finding:
    if not options.cache:
        return Finding("cache", "fair", "switched off by LAMINA_CACHE", "unset it to compile each kernel only once")
    if not folder.exists():
        parent = next(p for p in folder.parents if p.exists())
        writable = os.access(parent, os.W_OK)
        text = f"{folder}, not made yet"
    else:
        files = [p for p in folder.rglob("*") if p.is_file()]
        writable = _can_write(folder)
        text = f"{folder}, {len(files)} files, {sum(p.stat().st_size for p in files) / 2**20:.1f} MiB"
    if writable:
        return Finding("cache", "good", f"{text}, writable")
    return Finding(
        "cache", "fair", f"{text}, read-only", "name a writable folder in LAMINA_CACHE_DIR to keep new kernels"
    )


def _can_write(folder: Path) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _threads() -> Finding:
    cores, threads = os.cpu_count() or 1, torch.get_num_threads()
    text = f"{threads} threads for kernels, {cores} logical cores"
    if threads > cores:
        return Finding("threads", "fair", text, "call torch.set_num_threads with at most the number of cores")
    return Finding("threads", "good", text)
