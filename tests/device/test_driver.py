"""Kernels compiled ahead of time, loaded and launched: streams, devices, threads, memory that stays zero, capture."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from lamina.runtime import cuda_driver
from lamina.runtime.cache import Cache
from lamina.runtime.cuda_driver import CudaKernel, Driver, make_launcher
from lamina.runtime.cuda_host import current_stream, zeroed
from lamina.runtime.toolchain import find_compiler
from lamina.runtime.triton_build import TritonUnit, build_triton
from lamina.runtime.triton_pool import TritonError, compiler_pool
from tests.device.kernels import adder, counter

LAUNCHERS = ("compiled", "ctypes")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return Cache(tmp_path_factory.mktemp("cache"))


@pytest.fixture(params=LAUNCHERS)
def driver(request: pytest.FixtureRequest, cache: Cache) -> Driver:
    return Driver(launcher=make_launcher(find_compiler("", cache) if request.param == "compiled" else None, cache))


def loaded(unit: TritonUnit, driver: Driver, cache: Cache, device: int = 0) -> CudaKernel:
    major, minor = torch.cuda.get_device_capability(device)
    built = build_triton([unit], capability=10 * major + minor, cache=cache, pool=lambda: compiler_pool(2))
    assert not built.errors
    return driver.load(built.cubins[unit.name], device)


def launch_add(kernel: CudaKernel, x: torch.Tensor, y: torch.Tensor, out: torch.Tensor, block: int = 1024) -> None:
    pointers = (x.data_ptr(), y.data_ptr(), out.data_ptr())
    programs = -(-x.numel() // block)
    assert kernel.launch(current_stream(x.device.index), programs, 1, 1, *pointers, x.numel()) == 0


@pytest.mark.parametrize("n", [0, 1, 1000, 1 << 20])
def test_launch(n: int, driver: Driver, cache: Cache) -> None:
    kernel = loaded(adder(), driver, cache)
    x, y = torch.randn(n, device="cuda"), torch.randn(n, device="cuda")
    out = torch.full_like(x, float("nan"))
    launch_add(kernel, x, y, out)
    assert torch.equal(out, x + y)
    assert kernel.registers > 0
    assert kernel.spilled == 0


def test_addresses_that_are_not_aligned(driver: Driver, cache: Cache) -> None:
    kernel = loaded(adder(aligned=()), driver, cache)
    x, y = torch.randn(5000, device="cuda")[1:], torch.randn(5000, device="cuda")[1:]
    out = torch.empty(5000, device="cuda")[1:]
    launch_add(kernel, x, y, out)
    assert torch.equal(out, x + y)


def test_the_current_stream_is_used(driver: Driver, cache: Cache) -> None:
    kernel = loaded(adder(), driver, cache)
    x, large = torch.zeros(1 << 20, device="cuda"), torch.randn(8192, 8192, device="cuda")
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(30):
            large @ large
        x.fill_(1)
        out = torch.empty_like(x)
        launch_add(kernel, x, x, out)
    side.synchronize()
    assert out.sum().item() == 2 << 20


def test_a_new_thread_has_no_context_yet(driver: Driver, cache: Cache) -> None:
    kernel = loaded(adder(), driver, cache)
    x = torch.randn(1000, device="cuda")
    out = torch.empty_like(x)
    codes: list[int] = []
    given = (0, 1, 1, 1, x.data_ptr(), x.data_ptr(), out.data_ptr(), 1000)
    torch.cuda.synchronize()
    thread = threading.Thread(target=lambda: codes.append(kernel.launch(*given)))
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert codes == [0]
    assert torch.equal(out, x + x)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_second_device(driver: Driver, cache: Cache) -> None:
    kernel = loaded(adder(), driver, cache, 1)
    x = torch.randn(1000, device="cuda:1")
    out = torch.empty_like(x)
    with torch.cuda.device(1):
        launch_add(kernel, x, x, out)
    assert torch.equal(out, x + x)


def test_zero_memory_is_left_zero(driver: Driver, cache: Cache) -> None:
    kernel = loaded(counter(), driver, cache)
    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    stream = current_stream(0)
    for programs in (1, 100, 7):
        assert kernel.launch(stream, programs, 1, 1, out.data_ptr(), zeroed(0, stream, 4), programs) == 0
        assert out.item() == programs


def test_launches_are_captured(driver: Driver, cache: Cache) -> None:
    kernel = loaded(adder(), driver, cache)
    x, out = torch.randn(4096, device="cuda"), torch.empty(4096, device="cuda")
    launch_add(kernel, x, x, out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch_add(kernel, x, x, out)
    for _ in range(3):
        x.normal_()
        graph.replay()
        assert torch.equal(out, x + x)


def test_a_launch_that_cannot_be_is_reported(driver: Driver, cache: Cache) -> None:
    kernel = loaded(adder(), driver, cache)
    assert kernel.launch(current_stream(0), 1, 1 << 20, 1, 0, 0, 0, 0) != 0
    assert driver.message(1) == "invalid argument (error 1)"


def test_too_much_shared_memory_is_an_error_of_its_own(cache: Cache) -> None:
    driver = Driver(launcher=make_launcher(None, cache))
    major, minor = torch.cuda.get_device_capability()
    built = build_triton([adder()], capability=10 * major + minor, cache=cache, pool=lambda: compiler_pool(1))
    greedy = cuda_driver.Cubin("other", *_with(built.cubins["add"], shared=1 << 20))
    with pytest.raises(TritonError, match="shared memory"):
        driver.load(greedy, 0)


def _with(cubin: cuda_driver.Cubin, shared: int) -> tuple[str, bytes, tuple[str, ...], int, int, int]:
    return cubin.function, cubin.code, cubin.types, shared, cubin.threads, cubin.hidden


def test_kernels_come_back_from_the_cache(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    major, minor = torch.cuda.get_device_capability()
    for compiled in (1, 0):
        built = build_triton([adder(512)], capability=10 * major + minor, cache=cache, pool=lambda: compiler_pool(1))
        assert (built.compiled, built.reused) == (compiled, 1 - compiled)
