from __future__ import annotations

import math
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lamina.runtime import loading
from lamina.runtime.build import build_kernels
from lamina.runtime.cache import Cache
from lamina.runtime.host import share_threads
from lamina.runtime.kernel import Kernel, KernelFunction, KernelUnit
from lamina.runtime.loading import load_library
from lamina.runtime.toolchain import (
    ISAS,
    Compiler,
    NoCompiler,
    compile_flags,
    find_compiler,
    host_isa,
    isa_of,
    probe,
)
from tests.runtime.conftest import CountingCompiler

AVX2 = "flags\t\t: fpu sse2 avx avx2 fma f16c bmi1 bmi2"


def build_one(unit: KernelUnit, compiler: Compiler, cache: Cache, isa: str = "plain") -> Kernel:
    built = build_kernels([unit], compiler=compiler, isa=isa, cache=cache)
    assert not built.errors, built.errors
    return built.kernels[unit.name]


@pytest.mark.parametrize(
    ("cpuinfo", "isa"),
    [
        (AVX2, "avx2"),
        (AVX2 + " avx512f avx512dq avx512bw avx512vl\nbugs : x", "avx512"),
        (AVX2 + " avx512f", "avx2"),
        (AVX2.replace("fma", "fma4"), "plain"),
        (AVX2.replace(" f16c", ""), "plain"),
        ("Features\t: fp asimd", "plain"),
        ("", "plain"),
    ],
)
def test_isa_needs_every_feature_that_its_flags_switch_on(cpuinfo: str, isa: str) -> None:
    assert isa_of(cpuinfo) == isa


def test_host_isa_is_one_that_torch_knows() -> None:
    assert host_isa() in ISAS
    capability = torch.backends.cpu.get_cpu_capability()
    if capability == "AVX2":
        assert host_isa() == "avx2"
    if capability == "AVX512":
        assert host_isa() == "avx512"


@pytest.mark.parametrize("isa", ISAS)
def test_flags_name_features_and_keep_the_arithmetic(isa: str) -> None:
    flags = compile_flags(isa)
    assert not {"-march=native", "-ffast-math", "-Ofast", "-ffinite-math-only", "-fno-signed-zeros"} & set(flags)
    assert not any(Path(flag).is_absolute() for flag in flags)


def test_a_second_process_asks_no_compiler(
    counting: CountingCompiler, cache: Cache, fresh_process: Callable[[], None]
) -> None:
    first = find_compiler(str(counting.path), cache)
    assert first is not None
    assert counting.starts() > 0
    before = counting.starts()
    fresh_process()
    assert find_compiler(str(counting.path), Cache(cache.location)) == first
    assert counting.starts() == before
    os.utime(counting.path, (1.0, 1.0))  # as an upgrade would
    fresh_process()
    assert find_compiler(str(counting.path), Cache(cache.location)) == first
    assert counting.starts() > before


def test_no_compiler_on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Cache) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_compiler("", cache) is None
    with pytest.raises(NoCompiler, match=r"g\+\+ is not on the PATH"):
        probe("", cache)


def test_a_compiler_that_cannot_compile_is_passed_over_with_its_message(tmp_path: Path, cache: Cache) -> None:
    path = tmp_path / "broken-c++"
    path.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "g++ 12.2.0" && exit 0\necho "no cc1plus" >&2\nexit 1\n')
    path.chmod(0o755)
    assert find_compiler(str(path), cache) is None
    with pytest.raises(NoCompiler, match="no cc1plus"):
        probe(str(path), cache)


def test_the_compiler_is_described(compiler: Compiler) -> None:
    assert compiler.kind in ("gcc", "clang")
    assert all(part.isdigit() for part in compiler.version.split("."))
    assert compiler.version in compiler.identity
    assert "/" not in compiler.identity


THREADS = """
extern "C" int omp_get_max_threads();
extern "C" int omp_get_thread_num();
static void threads(long* most, long* seen) {
  *most = omp_get_max_threads();
#pragma omp parallel
  {
#pragma omp atomic
    *seen += 1;
  }
}
"""


@pytest.fixture
def threads_kernel(compiler: Compiler, cache: Cache) -> Callable[[], tuple[int, int]]:
    kernel = build_one(KernelUnit("threads", THREADS, (KernelFunction("threads", "pp"),)), compiler, cache)

    def ask() -> tuple[int, int]:
        out = torch.zeros(2, dtype=torch.int64)
        kernel(out.data_ptr(), out.data_ptr() + 8)
        return int(out[0]), int(out[1])

    return ask


def test_torch_governs_the_threads_of_kernels(threads_kernel: Callable[[], tuple[int, int]]) -> None:
    before = torch.get_num_threads()
    try:
        for count in (1, 3, 2):
            torch.set_num_threads(count)
            assert threads_kernel() == (count, count)
    finally:
        torch.set_num_threads(before)


def test_a_new_thread_has_torchs_number_of_threads_once_it_asks(
    threads_kernel: Callable[[], tuple[int, int]],
) -> None:
    before = torch.get_num_threads()
    seen: list[tuple[int, int]] = []

    def ask() -> None:
        share_threads()
        seen.append(threads_kernel())

    try:
        torch.set_num_threads(5)
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
    finally:
        torch.set_num_threads(before)
    assert seen == [(5, 5)]


POOLS = """
import os, sys, torch
from lamina.runtime.build import build_kernels
from lamina.runtime.cache import Cache
from lamina.runtime.kernel import KernelFunction, KernelUnit
from lamina.runtime.toolchain import find_compiler

cache = Cache(sys.argv[1])
unit = KernelUnit("threads", sys.argv[2], (KernelFunction("threads", "pp"),))
built = build_kernels([unit], compiler=find_compiler("", cache), isa="plain", cache=cache)
torch.set_num_threads(4)
torch.ones(1 << 22).exp_()
alone = len(os.listdir("/proc/self/task"))
out = torch.zeros(2, dtype=torch.int64)
built.kernels["threads"](out.data_ptr(), out.data_ptr() + 8)
runtimes = {line.split()[-1] for line in open("/proc/self/maps") if "gomp" in line or "omp5" in line}
print(alone, len(os.listdir("/proc/self/task")), len(runtimes), out[1].item())
"""


def test_kernels_and_torch_have_one_pool_of_threads(compiler: Compiler, cache: Cache) -> None:
    done = subprocess.run(
        [sys.executable, "-c", POOLS, str(cache.location), THREADS], capture_output=True, text=True, check=True
    )
    alone, together, runtimes, used = map(int, done.stdout.split())
    assert used == 4
    assert together == alone
    assert runtimes == 1


SLEEF = """
typedef float f8 __attribute__((vector_size(32)));
typedef float f8u __attribute__((vector_size(32), aligned(4)));
extern "C" f8 Sleef_expf8_u10(f8);
extern "C" f8 Sleef_tanhf8_u10(f8);
extern "C" double lgamma(double);
static void maths(const float* x, float* e, float* t, double* g) {
  *(f8u*)e = Sleef_expf8_u10(*(const f8u*)x);
  *(f8u*)t = Sleef_tanhf8_u10(*(const f8u*)x);
  *g = lgamma(7.5);
}
"""


@pytest.mark.skipif(host_isa() == "plain", reason="eight floats wide needs AVX2")
def test_kernels_reach_torchs_vector_maths_and_the_c_library(compiler: Compiler, cache: Cache) -> None:
    kernel = build_one(KernelUnit("maths", SLEEF, (KernelFunction("maths", "pppp"),)), compiler, cache, "avx2")
    x = torch.tensor([0.0, -0.0, 1.0, -3.5, 88.0, 200.0, -math.inf, math.nan])
    e, t, g = torch.empty(8), torch.empty(8), torch.empty(1, dtype=torch.float64)
    kernel(x.data_ptr(), e.data_ptr(), t.data_ptr(), g.data_ptr())
    torch.testing.assert_close(e, x.double().exp().float(), equal_nan=True, rtol=1.2e-7, atol=0.0)
    torch.testing.assert_close(t, x.double().tanh().float(), equal_nan=True, rtol=1.2e-7, atol=0.0)
    assert g.item() == pytest.approx(math.lgamma(7.5), rel=1e-15)


EDGES = """
static void edges(const float* x, const float* y, float* out, long n) {
  for (long i = 0; i < n; i++) {
    float a = x[i], b = y[i];
    out[i * 6 + 0] = a / b;
    out[i * 6 + 1] = (a + b) - b;
    out[i * 6 + 2] = a * 0.0f;
    out[i * 6 + 3] = a != a ? 1.0f : 0.0f;
    out[i * 6 + 4] = a < b ? a : b;
    out[i * 6 + 5] = __builtin_sqrtf(a) + 0.0f;
  }
}
"""


def test_flags_keep_nan_infinity_signed_zero_and_rounding(compiler: Compiler, cache: Cache) -> None:
    kernel = build_one(KernelUnit("edges", EDGES, (KernelFunction("edges", "pppq"),)), compiler, cache, host_isa())
    values = torch.tensor([0.0, -0.0, 1.0, -1.0, 1e30, 1e-45, math.inf, -math.inf, math.nan])
    x, y = (t.reshape(-1).contiguous() for t in torch.meshgrid(values, values, indexing="ij"))
    out = torch.empty(x.numel(), 6)
    kernel(x.data_ptr(), y.data_ptr(), out.data_ptr(), x.numel())
    expected = torch.stack([x / y, (x + y) - y, x * 0, x.isnan() + 0.0, torch.where(x < y, x, y), x.sqrt() + 0.0], 1)

    def bits(t: torch.Tensor) -> torch.Tensor:
        return torch.where(t.isnan(), torch.full_like(t, math.nan), t).view(torch.int32)

    assert torch.equal(bits(out), bits(expected))


def test_objects_need_nothing_but_torch_by_name(compiler: Compiler, cache: Cache) -> None:
    unit = KernelUnit("threads", THREADS, (KernelFunction("threads", "pp"),))
    build_one(unit, compiler, cache)
    [path] = cache.location.rglob("kernels.so")
    needed = needed_by(path.read_bytes())
    assert "libtorch_cpu.so" in needed
    assert not [name for name in needed if "omp" in name or "/" in name or "stdc++" in name]


def needed_by(elf: bytes) -> list[str]:
    """The DT_NEEDED names of a 64-bit little-endian shared object."""
    offset, size, count = struct.unpack_from("<Q", elf, 0x28)[0], *struct.unpack_from("<HH", elf, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", elf, offset + i * size) for i in range(count)]
    [dynamic] = [s for s in sections if s[1] == 6]
    strings = sections[dynamic[6]]
    names: list[str] = []
    for at in range(dynamic[4], dynamic[4] + dynamic[5], 16):
        tag, value = struct.unpack_from("<QQ", elf, at)
        if tag == 1:
            start = strings[4] + value
            names.append(elf[start : elf.index(b"\0", start)].decode())
    return names


def test_a_folder_without_execution_is_no_obstacle(
    compiler: Compiler, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_one(KernelUnit("threads", THREADS, (KernelFunction("threads", "pp"),)), compiler, cache)
    [path] = cache.location.rglob("kernels.so")
    real = loading.ctypes.CDLL

    def refuse(name: str, *rest: Any) -> Any:
        if os.readlink(name) == str(path):
            raise OSError(f"{name}: failed to map segment from shared object")
        return real(name, *rest)

    monkeypatch.setattr(loading.ctypes, "CDLL", refuse)
    first, second = load_library(path), load_library(path)
    assert first._name != second._name
    assert first._handle
