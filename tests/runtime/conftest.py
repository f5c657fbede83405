"""A compiler, caches, and compilers that count how often they are started."""

from __future__ import annotations

import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lamina.runtime import batch, library, toolchain
from lamina.runtime import cache as cache_module
from lamina.runtime.cache import Cache
from lamina.runtime.kernel import KernelFunction, KernelUnit
from lamina.runtime.toolchain import Compiler, find_compiler


@pytest.fixture(scope="session")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Compiler:
    found = find_compiler("", Cache(tmp_path_factory.mktemp("compiler")))
    if found is None:
        pytest.skip("no C++ compiler on this machine")
    return found


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it to make this process forget what it has loaded, as a new process would not know it."""

    def forget() -> None:
        monkeypatch.setattr(library, "_LOADED", {})
        monkeypatch.setattr(library, "_LIBRARIES", {})
        monkeypatch.setattr(toolchain, "_FOUND", {})
        monkeypatch.setattr(batch, "_SUSPECTS", set())
        monkeypatch.setattr(batch, "_ENDLESS", {})
        monkeypatch.setattr(cache_module, "_WARNED", set())

    forget()
    return forget


class CountingCompiler:
    """A script that stands before the real compiler and writes one line per start to a file."""

    def __init__(self, folder: Path) -> None:
        real = shutil.which("c++") or shutil.which("g++")
        if real is None:
            pytest.skip("no C++ compiler on this machine")
        self.log = folder / "started.txt"
        self.path = folder / "counting-c++"
        self.path.write_text(f'#!/bin/sh\necho "$*" >> "{self.log}"\nexec "{real}" "$@"\n')
        self.path.chmod(self.path.stat().st_mode | stat.S_IXUSR)

    def starts(self, word: str = "") -> int:
        """How often it was started, with this word among its arguments."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return sum(1 for line in lines if not word or word in line.split())


@pytest.fixture
def counting(tmp_path: Path) -> CountingCompiler:
    folder = tmp_path / "counting"
    folder.mkdir()
    return CountingCompiler(folder)


@pytest.fixture
def scale_unit() -> Callable[..., KernelUnit]:
    """Makes kernels that multiply ``n`` floats at ``x`` by a constant into ``y``."""

    def make(factor: int, name: str = "", comment: str = "") -> KernelUnit:
        source = (
            f"static void scale(const float* x, float* y, long n) {{  // {comment}\n"
            "#pragma omp parallel for schedule(static)\n"
            f"  for (long i = 0; i < n; i++) y[i] = x[i] * {factor}.0f;\n"
            "}\n"
        )
        return KernelUnit(name or f"scale_{factor}", source, (KernelFunction("scale", "ppq"),))

    return make


def await_that(condition: Callable[[], bool]) -> None:
    """Wait for what another process or thread will do, however busy the machine is; the limit is for one that hangs.

    Nothing is measured by it.
    """
    for _ in range(6000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it does not happen")


def is_gone(process: int) -> bool:
    """Whether a process has ended, be it that nobody has asked for its status."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return text.rpartition(")")[2].split()[0] == "Z"


def await_end(process: int) -> None:
    """Wait for the end of a process that was told to end."""
    await_that(lambda: is_gone(process))
