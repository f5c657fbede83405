"""Compiled programs on a GPU: values, gradients, streams, devices, memory, checks, random numbers, fallbacks."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lamina
from lamina.backends import cuda_region
from lamina.testing import judge, tensors

STRICT = {"strict": True}

pytestmark = pytest.mark.usefixtures("fresh")


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(sum(shape) + len(shape))
    return torch.randn(shape, generator=generator, device="cuda").to(dtype)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1) / 8).softmax(-1) @ v


def pool_gradient(x: Tensor) -> Tensor:
    """How many windows each element is the largest of."""
    out, indices = F.max_pool2d(x, 3, 2, ceil_mode=True, return_indices=True)
    ones, window = torch.ones_like(out), ([3, 3], [2, 2], [0, 0], [1, 1])
    found: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(ones, x, *window, True, indices)
    return found


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "bias_gelu": (lambda x, b: F.gelu(x + b), ((300, 1024), (1024,))),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (768,), w, b), ((200, 768), (768,), (768,))),
    "odd_softmax": (lambda x: x.softmax(-1), ((64, 1237),)),
    "mlp": (lambda x, w, v: F.silu(x @ w) @ v, ((64, 128), (128, 256), (256, 128))),
    "group_norm": (lambda x, w, b: F.silu(F.group_norm(x, 8, w, b)), ((4, 32, 16, 16), (32,), (32,))),
    "attention": (attention, ((2, 4, 64, 64), (2, 4, 64, 64), (2, 4, 64, 64))),
    "column_sum": (lambda x: (x * x).sum(0), ((1000, 515),)),
    "variance": (lambda x: x.var(), ((513, 257),)),
    "transposed": (lambda x, y: x.t() + y, ((256, 384), (384, 256))),
    "two_results": (lambda x: (x.cumsum(-1), x.amax(-1)), ((100, 300),)),
}


def check(function: Callable[..., Any], args: list[Tensor], training: bool) -> Any:
    """Compare with eager and fp64, forward and backward; the compiled function."""
    compiled = lamina.compile(function, dynamic=False, options=STRICT)
    results = []
    for call, dtype in ((compiled, None), (function, None), (function, torch.float64)):
        given = [a.detach().to(dtype or a.dtype).requires_grad_(training) for a in args]
        outputs = tensors(call(*given))
        found = list(outputs)
        if training:
            found += torch.autograd.grad(outputs, given, [torch.ones_like(o) for o in outputs])
        results.append(found)
    for number, (ours, eager, exact) in enumerate(zip(*results, strict=True)):
        assert not judge(ours, eager, exact), number
    return compiled


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_gradients(name: str, training: bool, dtype: torch.dtype) -> None:
    function, shapes = PROGRAMS[name]
    compiled = check(function, [randn(*shape, dtype=dtype) for shape in shapes], training)
    assert not compiled.record.decisions("fallback")


@pytest.mark.parametrize("shape", [(1, 2, 3, 6), (2, 3, 7, 9)])
def test_where_pools_found_their_elements(shape: tuple[int, ...]) -> None:
    # Positions in windows are sums of 16 bits, two in a register, of which ptxas gets some wrong.
    x = randn(*shape)
    assert torch.equal(lamina.compile(pool_gradient, dynamic=False, options=STRICT)(x), pool_gradient(x))


def test_inputs_at_any_address() -> None:
    compiled = lamina.compile(lambda x, y: (x * y).relu() + 1, dynamic=False, options=STRICT)
    for shift in (0, 1, 3, 8):
        x, y = randn(4104)[shift : shift + 4096], randn(4104, dtype=torch.float32)[8 - shift : 4104 - shift]
        torch.testing.assert_close(compiled(x, y), (x * y).relu() + 1)


def test_nothing_waits_for_the_gpu() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Dropout(0.5)).cuda()
    compiled, x = lamina.compile(model, options=STRICT), randn(32, 64)
    for _ in range(2):
        compiled(x).sum().backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        compiled(x).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_side_stream() -> None:
    compiled = lamina.compile(lambda x: (x + 1).relu() @ x, options=STRICT)
    x, large = randn(256, 256), randn(4096, 4096)
    compiled(x)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(20):
            large @ large
        y = x * 2
        result = compiled(y)
    side.synchronize()
    torch.testing.assert_close(result, (2 * x + 1).relu() @ (2 * x), rtol=1e-3, atol=1e-2)


def test_threads() -> None:
    compiled = lamina.compile(lambda x: F.layer_norm(x, (256,)) * 2, options=STRICT)
    x = randn(64, 256)
    want, found = compiled(x), []

    def run() -> None:
        for _ in range(20):
            found.append(torch.equal(compiled(x), want))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 80


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_second_device() -> None:
    compiled = lamina.compile(lambda x: F.gelu(x).sum(-1), options=STRICT)
    for device in ("cuda:1", "cuda:0"):
        x = randn(64, 256).to(device).requires_grad_()
        y = compiled(x)
        assert y.device == x.device
        torch.testing.assert_close(y, F.gelu(x).sum(-1))
        y.sum().backward()
        assert torch.cuda.current_device() == 0


def test_numbers_on_the_cpu() -> None:
    compiled = lamina.compile(lambda x, s: x * s + s, options=STRICT)
    x, s = randn(100, 100), torch.tensor(2.5)
    torch.testing.assert_close(compiled(x, s), x * s + s)
    assert compiled(x, s).device == x.device


def test_program_of_the_cpu_still_runs_there() -> None:
    compiled = lamina.compile(lambda x: (x * 2).relu(), options=STRICT)
    x = torch.randn(10)
    assert torch.equal(compiled(x), (x * 2).relu())


def test_dynamic_sizes() -> None:
    compiled = lamina.compile(lambda x, w: F.gelu(F.layer_norm(x, x.shape[-1:])) * w, dynamic=True, options=STRICT)
    for rows, columns in ((16, 128), (33, 100), (7, 1000)):
        x, w = randn(rows, columns), randn(columns)
        torch.testing.assert_close(compiled(x, w), F.gelu(F.layer_norm(x, x.shape[-1:])) * w, rtol=1e-4, atol=1e-4)


def test_inference_mode() -> None:
    compiled = lamina.compile(lambda x: (x.softmax(-1) @ x).relu(), options=STRICT)
    x = randn(64, 64)
    with torch.inference_mode():
        inside = compiled(x)
    torch.testing.assert_close(inside, (x.softmax(-1) @ x).relu(), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(compiled(x), inside)


def test_mutation_and_views() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        x[:, 1:] += y[:, :-1] * 2
        return x.t().relu()

    compiled = lamina.compile(function, options=STRICT)
    x, y = randn(32, 65), randn(32, 65).flip(0)
    want_x = x.clone()
    want = function(want_x, y)
    assert torch.equal(compiled(x, y), want)
    assert torch.equal(x, want_x)


def test_random_numbers_follow_the_generator_of_the_device() -> None:
    compiled = lamina.compile(lambda x: F.dropout(x, 0.25, True), options=STRICT)
    x = torch.ones(1 << 16, device="cuda")
    torch.cuda.manual_seed(5)
    first, second = compiled(x), compiled(x)
    torch.cuda.manual_seed(5)
    assert torch.equal(compiled(x), first)
    assert torch.equal(compiled(x), second)
    assert not torch.equal(first, second)
    assert abs((first == 0).float().mean().item() - 0.25) < 0.01


def test_dropout_drops_the_same_in_the_backward_pass() -> None:
    compiled = lamina.compile(lambda x: F.dropout(x * 1.5, 0.5, True), options=STRICT)
    x = torch.ones(1 << 14, device="cuda", requires_grad=True)
    y = compiled(x)
    y.backward(torch.ones_like(y))
    assert x.grad is not None
    assert torch.equal(x.grad, y.detach())


def test_kernel_that_cannot_be_written_falls_back_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    emit = cuda_region.emit
    refused: list[str] = []

    def one_fails(kernel: Any, target: Any) -> Any:
        if not refused or kernel.name in refused:
            refused.append(kernel.name)
            raise ValueError("not today")
        return emit(kernel, target)

    monkeypatch.setattr(cuda_region, "emit", one_fails)
    monkeypatch.setattr("lamina.backends.caches._warned", set())
    function = lambda x, w: F.gelu(x).softmax(-1) @ w.relu()  # noqa: E731
    x, w = randn(256, 1024), randn(1024, 512)
    compiled = lamina.compile(function)
    with pytest.warns(UserWarning, match="lamina runs kernels equation by equation"):
        result = compiled(x, w)
    torch.testing.assert_close(result, function(x, w), rtol=1e-3, atol=1e-3)
    (decision,) = compiled.record.decisions("fallback")
    assert "not today" in decision.reason


def test_kernels_equation_by_equation_read_at_loaded_places(monkeypatch: pytest.MonkeyPatch) -> None:
    emit = cuda_region.emit

    def fails(kernel: Any, target: Any) -> Any:
        if "index_select" in kernel.name:
            raise ValueError("not today")
        return emit(kernel, target)

    monkeypatch.setattr(cuda_region, "emit", fails)
    monkeypatch.setattr("lamina.backends.caches._warned", set())
    function = lambda x, p: F.gelu((x.index_select(0, p) * 2.0 + x[:16]) @ x[:16].t())  # noqa: E731
    x, places = randn(64, 1000), torch.randint(64, (16,), device="cuda")
    compiled = lamina.compile(function)
    with pytest.warns(UserWarning, match="lamina runs kernels equation by equation"):
        result = compiled(x, places)
    torch.testing.assert_close(result, function(x, places), rtol=1e-3, atol=1e-3)


def test_region_without_kernels_runs_as_aten_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(kernel: Any, target: Any) -> Any:
        raise ValueError("not today")

    monkeypatch.setattr(cuda_region, "emit", fails)
    monkeypatch.setattr("lamina.backends.caches._warned", set())
    x = randn(64, 64)
    compiled = lamina.compile(lambda x: F.gelu(x) * 2)
    with pytest.warns(UserWarning, match="lamina runs regions as ATen calls"):
        assert torch.equal(compiled(x), F.gelu(x) * 2)


BAD_INDEX = """
import torch, torch.nn.functional as F, lamina
table = torch.randn(10, 4, device="cuda")
compiled = lamina.compile(lambda i, w: F.embedding(i, w) * 2, options={"strict": True})
good, bad = torch.tensor([1, 2], device="cuda"), torch.tensor([1, 99], device="cuda")
compiled(good, table)
torch.cuda.synchronize()
compiled(bad, table)
try:
    torch.cuda.synchronize()
except RuntimeError as error:
    print("assert" in str(error))
try:
    compiled(good, table)
except IndexError as error:
    print("index out of range" in str(error))
"""


def test_bad_index_stops_the_gpu_and_has_a_name() -> None:
    done = subprocess.run([sys.executable, "-c", BAD_INDEX], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True", "True"], done.stderr[-2000:]


@pytest.mark.parametrize("training", [False, True])
def test_memory_is_torch_s_to_use_again(training: bool) -> None:
    model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512), nn.LayerNorm(512)).cuda()
    x = randn(2048, 512)

    def peak(compiled: Any) -> int:
        for _ in range(3):
            gc.collect()
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            with torch.set_grad_enabled(training):
                result = compiled(x).sum()
            if training:
                result.backward()
            torch.cuda.synchronize()
            model.zero_grad()
        return torch.cuda.max_memory_allocated() - before

    ours = peak(lamina.compile(model, options=STRICT))
    torch.compiler.reset()
    theirs = peak(torch.compile(model))
    assert ours <= 1.03 * theirs
