"""Loading and launching, against a library that stands in for NVIDIA's driver and notes what it is asked."""

from __future__ import annotations

import ctypes
import struct
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lamina.runtime.cache import Cache
from lamina.runtime.cuda_driver import CudaKernel, Driver, make_launcher, pack_format
from lamina.runtime.toolchain import Compiler
from lamina.runtime.triton_build import Cubin
from lamina.runtime.triton_pool import TritonError

DRIVER = r"""
#include <cstring>
extern "C" {
long long launched[16];
unsigned char given[256];
int calls, contexts, first_code, shared_set;
int cuInit(unsigned) { return 0; }
int cuDeviceGet(int* d, int n) { *d = n + 100; return 0; }
int cuDevicePrimaryCtxRetain(void** c, int d) { *c = (void*)(long)(d + 1000); return 0; }
int cuCtxPushCurrent_v2(void* c) { contexts++; return c ? 0 : 1; }
int cuCtxPopCurrent_v2(void**) { contexts--; return 0; }
int cuCtxSetCurrent(void* c) { launched[15] = (long)c; first_code = 0; return 0; }
int cuModuleLoadData(void** m, const char* code) { *m = (void*)7; return std::strcmp(code, "good") ? 200 : 0; }
int cuModuleGetFunction(void** f, void* m, const char* name) {
  *f = (void*)42; return std::strcmp(name, "kernel") ? 500 : 0;
}
int cuFuncGetAttribute(int* v, int attribute, void*) { *v = attribute == 0 ? 512 : attribute == 4 ? 33 : 8; return 0; }
int cuFuncSetAttribute(void*, int, int value) { shared_set = value; return 0; }
int cuDeviceGetAttribute(int* v, int, int) { *v = 200000; return 0; }
int cuGetErrorString(int code, const char** text) { *text = "a message"; return code == 200 ? 0 : 1; }
int cuLaunchKernel(void* f, unsigned x, unsigned y, unsigned z, unsigned tx, unsigned ty, unsigned tz, unsigned shared,
                   void* stream, void** parameters, void** extra) {
  calls++;
  if (first_code) return first_code;
  long long words[] = {(long)f, x, y, z, tx, ty, tz, shared, (long)stream, (long)parameters, (long)extra[0],
                       (long)extra[2], *(long*)extra[3], (long)extra[4]};
  std::memcpy(launched, words, sizeof(words));
  std::memcpy(given, extra[1], *(unsigned long*)extra[3]);
  return 0;
}
}
"""
CUBIN = Cubin("key", "kernel", b"good", ("*bf16", "i32", "i64"), 1000, 128, 2)


@pytest.fixture(scope="module")
def library(compiler: Compiler, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.cpp").write_text(DRIVER)
    subprocess.run([compiler.path, "-shared", "-fPIC", "driver.cpp", "-o", "driver.so"], cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "driver.so"))


@pytest.fixture(params=["compiled", "ctypes"])
def driver(request: pytest.FixtureRequest, library: ctypes.CDLL, compiler: Compiler, cache: Cache) -> Driver:
    launcher = make_launcher(compiler if request.param == "compiled" else None, cache)
    ctypes.c_int.in_dll(library, "first_code").value = 0
    return Driver(library, launcher)


def noted(library: ctypes.CDLL) -> tuple[int, ...]:
    return tuple((ctypes.c_longlong * 16).in_dll(library, "launched"))


def test_launch_hands_over_grid_stream_and_arguments(library: ctypes.CDLL, driver: Driver) -> None:
    kernel = driver.load(CUBIN, 3)
    assert kernel.launch(99, 5, 6, 7, 0xABCDEF, -2, 1 << 40) == 0
    size = 8 + 8 + 8 + 16  # the 32-bit number is padded; two hidden pointers follow
    assert noted(library)[:14] == (42, 5, 6, 7, 128, 1, 1, 1000, 99, 0, 1, 2, size, 0)
    given = bytes((ctypes.c_ubyte * 256).in_dll(library, "given"))[:size]
    assert struct.unpack("@Pi4xqPP", given) == (0xABCDEF, -2, 1 << 40, 0, 0)
    assert ctypes.c_int.in_dll(library, "contexts").value == 0


def test_an_empty_grid_launches_nothing(library: ctypes.CDLL, driver: Driver) -> None:
    kernel = driver.load(CUBIN, 0)
    before = ctypes.c_int.in_dll(library, "calls").value
    assert kernel.launch(0, 0, 1, 1, 1, 1, 1) == 0
    assert ctypes.c_int.in_dll(library, "calls").value == before


def test_a_thread_without_a_context_gets_the_kernels(library: ctypes.CDLL, driver: Driver) -> None:
    kernel = driver.load(CUBIN, 3)
    ctypes.c_int.in_dll(library, "first_code").value = 201
    assert kernel.launch(0, 1, 1, 1, 1, 1, 1) == 0
    assert noted(library)[15] == 1103


def test_other_errors_are_given_back(library: ctypes.CDLL, driver: Driver) -> None:
    kernel = driver.load(CUBIN, 3)
    ctypes.c_int.in_dll(library, "first_code").value = 700
    assert kernel.launch(0, 1, 1, 1, 1, 1, 1) == 700


@pytest.mark.parametrize(
    ("type_", "given", "letter", "held"),
    [
        ("*fp32", 1 << 63, "Q", 1 << 63),
        ("u64", (1 << 64) - 1, "Q", (1 << 64) - 1),
        ("u32", (1 << 32) - 1, "I", (1 << 32) - 1),
        ("i16", -5, "h", -5),
        ("i8", 127, "b", 127),
        ("i1", True, "b", 1),
        ("fp32", 0.5, "f", 0.5),
        ("fp32", 3, "f", 3.0),
        ("fp64", 1e300, "d", 1e300),
    ],
)
def test_arguments_of_every_type(
    type_: str, given: float, letter: str, held: float, library: ctypes.CDLL, driver: Driver
) -> None:
    kernel = driver.load(replace(CUBIN, key=type_, types=("i8", type_, "i8")), 0)
    assert kernel.launch(0, 1, 1, 1, 1, given, 2) == 0
    place = f"@b{letter}b"
    memory = bytes((ctypes.c_ubyte * 256).in_dll(library, "given"))[: struct.calcsize(place)]
    assert struct.unpack(place, memory) == (1, held, 2)


@pytest.mark.parametrize(
    "given",
    [(0, 1, 1, 1, 1, 1 << 31, 1), (0, 1, 1, 1, 1, 1, 1 << 63), (0, 1 << 32, 1, 1, 1, 1, 1), (0, 1, 1, -1, 1, 1, 1)],
)
def test_numbers_that_do_not_fit_are_not_launched(given: tuple[int, ...], library: ctypes.CDLL, driver: Driver) -> None:
    kernel = driver.load(CUBIN, 0)
    before = ctypes.c_int.in_dll(library, "calls").value
    with pytest.raises((OverflowError, struct.error)):
        kernel.launch(*given)
    assert ctypes.c_int.in_dll(library, "calls").value == before


@pytest.mark.parametrize("given", [(0, 1, 1, 1, 1, 1), (0, 1, 1, 1, 1, 1, 1, 1), (0, 1, 1, 1, 1, "one", 1)])
def test_arguments_of_another_kind_are_not_launched(given: tuple[Any, ...], driver: Driver) -> None:
    kernel = driver.load(CUBIN, 0)
    with pytest.raises((TypeError, struct.error)):
        kernel.launch(*given)


def test_a_kernel_is_loaded_once_for_each_device(driver: Driver) -> None:
    kernels = [driver.load(CUBIN, device) for device in (0, 1, 0)]
    assert kernels[0] is kernels[2]
    assert kernels[0] is not kernels[1]
    assert isinstance(kernels[0], CudaKernel)
    assert (kernels[0].registers, kernels[0].spilled) == (33, 8)


@pytest.mark.parametrize(
    ("cubin", "message"),
    [
        (replace(CUBIN, key="a", code=b"bad"), "cuModuleLoadData: a message"),
        (replace(CUBIN, key="b", function="other"), "cuModuleGetFunction: error 500"),
        (replace(CUBIN, key="c", threads=1024), "1024 threads; its registers allow 512"),
        (replace(CUBIN, key="d", shared=300000), "300000 bytes of shared memory; the GPU has 200000"),
        (replace(CUBIN, key="e", types=("*bf16", "tensordesc")), "no kernel argument"),
    ],
)
def test_what_cannot_be_loaded_is_an_error_of_its_own(cubin: Cubin, message: str, driver: Driver) -> None:
    with pytest.raises(TritonError, match=message):
        driver.load(cubin, 0)
    driver.load(CUBIN, 0)


def test_much_shared_memory_is_asked_for(library: ctypes.CDLL, driver: Driver) -> None:
    driver.load(replace(CUBIN, key="f", shared=150000), 0)
    assert ctypes.c_int.in_dll(library, "shared_set").value == 150000


def test_arguments_lie_as_a_kernel_expects_them() -> None:
    types = ("*fp32", "i32", "*i8", "i64", "fp32", "i1", "u64")
    assert struct.calcsize(pack_format(types, 2)) == 24 + 8 + 8 + 8 + 8 + 4 + 4 + 8 + 16


def test_without_a_compiler_ctypes_launches(cache: Cache, tmp_path: Path, compiler: Compiler) -> None:
    broken = tmp_path / "broken-c++"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    assert make_launcher(replace(compiler, path=str(broken), version="0"), cache) is make_launcher(None, cache)
    assert not cache.problem
