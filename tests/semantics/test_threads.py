"""Several threads compile and call the same functions."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from threading import Barrier, Event, Semaphore

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lamina
from benchmarks.compilers import CompileFunction
from lamina.capture.entry.torch_private import compile_lock

THREADS = 4


def _program(x: Tensor, w: Tensor) -> Tensor:
    return F.layer_norm((x @ w).sin(), (w.shape[1],)).sum(1)


def _check(compiled: object, seed: int, calls: int, barrier: Barrier) -> None:
    barrier.wait()
    generator = torch.Generator().manual_seed(seed)
    for _ in range(calls):
        x = torch.randn(16, 8, generator=generator).requires_grad_()
        w = torch.randn(8, 24, generator=generator).requires_grad_()
        mine, theirs = compiled(x, w), _program(x, w)  # type: ignore[operator]
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
        ours, true = (torch.autograd.grad(out.square().sum(), (x, w)) for out in (mine, theirs))
        for a, b in zip(ours, true, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


def test_calls_from_many_threads(compile: CompileFunction) -> None:
    compiled = compile(_program, dynamic=False)
    compiled(torch.randn(16, 8, requires_grad=True), torch.randn(8, 24, requires_grad=True)).sum().backward()
    barrier = Barrier(THREADS)
    with ThreadPoolExecutor(THREADS) as pool:
        for future in [pool.submit(_check, compiled, seed, 200, barrier) for seed in range(THREADS)]:
            future.result()


def test_first_call_from_many_threads_at_once(compile: CompileFunction) -> None:
    compiled = compile(_program, dynamic=False)
    barrier = Barrier(THREADS)
    with ThreadPoolExecutor(THREADS) as pool:
        for future in [pool.submit(_check, compiled, seed, 3, barrier) for seed in range(THREADS)]:
            future.result()


@pytest.mark.parametrize("kind", ["function", "module"])
def test_calls_while_another_thread_compiles(
    compile: CompileFunction, compiler_name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compiler_name != "lamina":
        pytest.skip("torch.compile refuses such calls before torch 2.13")
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: False)  # as it is in torch 2.11
    entered, resume = Semaphore(0), Semaphore(0)

    @torch.library.custom_op(f"lamina_test::slow_to_trace_{kind}", mutates_args=())
    def slow(x: Tensor) -> Tensor:
        return x + 1

    @slow.register_fake
    def _(x: Tensor) -> Tensor:
        entered.release()
        assert resume.acquire(timeout=300)  # a limit for what hangs
        return torch.empty_like(x)

    model = nn.Linear(8, 4) if kind == "module" else torch.sin
    compiled, x = compile(model, dynamic=False), torch.randn(5, 8)
    expected = compiled(x)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(compile(lambda x: slow(x).cos(), dynamic=False), x)
        future.add_done_callback(lambda done: entered.release())
        pauses = 0
        while entered.acquire() and not future.done():
            pauses += 1
            assert torch.equal(compiled(x), expected)
            resume.release()
        assert pauses > 1  # for Dynamo, and for the traces by FX after it
        torch.testing.assert_close(future.result(), (x + 1).cos())


def test_different_functions_compiled_at_once(compile: CompileFunction) -> None:
    def worker(power: int) -> None:
        compiled = compile(lambda x: (x**power).sum(0) + power, dynamic=False)
        for _ in range(20):
            x = torch.rand(32, 8)
            torch.testing.assert_close(compiled(x), (x**power).sum(0) + power)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(worker, range(2, 2 + THREADS)))


def test_one_thread_trains_while_another_infers(compile: CompileFunction) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    compiled = compile(model, dynamic=False)
    x = torch.randn(5, 8)
    expected = model(x).detach()

    def train() -> None:
        for _ in range(50):
            assert compiled(x).requires_grad

    def infer() -> None:
        for _ in range(50):
            with torch.no_grad():
                out = compiled(x)
            assert not out.requires_grad
            torch.testing.assert_close(out, expected)

    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(train), pool.submit(infer)]:
            future.result()


def test_graphs_compile_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """FX keeps one trace's patches for all threads; a backend may be called without Dynamo, which has a lock."""
    seen: list[str] = []
    inside, asked, driver = Event(), Semaphore(0), import_module("lamina.compile")
    within = driver._compiled

    class Noting:
        def __enter__(self) -> None:
            asked.release()
            compile_lock.acquire()

        def __exit__(self, *error: object) -> None:
            compile_lock.release()

    def compiled(*arguments: object) -> object:
        seen.append("begins")
        if not inside.is_set():
            inside.set()
            for _ in range(2):  # this thread, and the other one
                assert asked.acquire(timeout=60)
        made = within(*arguments)
        seen.append("ends")
        return made

    monkeypatch.setattr("lamina.capture.entry.torch_private.compile_lock", Noting())
    monkeypatch.setattr(driver, "_compiled", compiled)
    x = torch.ones(4)

    def compile_one() -> Tensor:
        graph = torch.fx.symbolic_trace(lambda x: (x.tanh(),))
        next(iter(graph.graph.nodes)).meta["example_value"] = x
        return lamina.lamina_backend(graph, [x])(x)[0]

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(compile_one)
        assert inside.wait(60)
        second = pool.submit(compile_one)
        first.result()
        second.result()
    assert seen == ["begins", "ends", "begins", "ends"]
