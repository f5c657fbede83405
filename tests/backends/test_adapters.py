"""Other packages' runtimes give eager's values on every operation; one that is missing is named with its command."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lamina
from lamina.backends.adapters.torch_tensorrt import TORCH_TENSORRT
from lamina.backends.registry import BUILT_IN
from lamina.testing import check_backend

nan, inf = float("nan"), float("inf")
RUNTIMES = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(
            any(find_spec(package) is None for package in BUILT_IN[name].requires),
            reason=f"needs {' and '.join(BUILT_IN[name].requires)}",
        ),
    )
    for name in ("onnxruntime", "openvino")
]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def x(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


EDGES = torch.tensor([0.0, -0.0, 1.5, -2.5, 2.5, 0.5, inf, -inf, nan, 1e-30, 88.0, -100.0])
POSITIVE = torch.tensor([0.0, 1.5, inf, nan, 1e-30, 1e30])

CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "elementwise": (lambda a: (-a, a.abs(), a.tanh(), a.sigmoid(), a.erf(), a.floor(), a.ceil()), (EDGES,)),
    "exponentials": (lambda a: (a.exp(), a.sin(), a.cos()), (x(40),)),
    "roots": (lambda a: (a.sqrt(), a.rsqrt(), a.reciprocal(), a.log()), (POSITIVE,)),
    "activations": (lambda a: (a.relu(), F.silu(a), F.gelu(a), F.gelu(a, approximate="tanh")), (x(40),)),
    "relu of NaN and infinities": (torch.relu, (EDGES,)),
    "arithmetic": (lambda a, b: (a + b, a - b, a * b, a / b, a + 2, 3 - a, a / 2, a**2), (x(4, 5), x(5))),
    "alpha": (lambda a, b: torch.add(a, b, alpha=3) + torch.sub(a, b, alpha=2), (x(4, 5), x(4, 5))),
    "comparisons": (lambda a, b: (a == b, a != b, a < b, a <= 0, a > b, a >= 0.5), (EDGES, EDGES.flip(0))),
    "logic": (lambda a: ((a > 0) & ~(a < 1), (a > 0) | (a < -1), torch.logical_not(a > 0)), (EDGES,)),
    "where": (lambda a, b: torch.where(a > 0, a, b), (EDGES, EDGES.flip(0))),
    "products": (lambda a, b, c: (a @ b, torch.addmm(c, a, b, beta=0.5, alpha=2)), (x(3, 4), x(4, 5), x(5))),
    "batched products": (torch.bmm, (x(2, 3, 4), x(2, 4, 5))),
    "shapes": (
        lambda a: (a.t() * 1, a.reshape(2, 10) + 1, a.unsqueeze(1).squeeze(1) + 1, a[:, 1:4:2] + 1, a[-1] + 1),
        (x(4, 5),),
    ),
    "permuted": (lambda a: a.permute(2, 0, 1).transpose(0, -1) + 1, (x(2, 3, 4),)),
    "expanded and joined": (lambda a, b: torch.cat([a.expand(4, 5), b], dim=-1) + 1, (x(1, 5), x(4, 2))),
    "reductions": (lambda a: (a.sum(), a.sum(0), a.mean(-1, keepdim=True), a.mean(), a.sum((0, 1))), (x(4, 5),)),
    "softmax": (lambda a: (a.softmax(-1), a.log_softmax(0)), (x(4, 5),)),
    "layer norm": (lambda a, w, b: F.layer_norm(a, (5,), w, b), (x(4, 5), x(5), x(5))),
    "convolution": (
        lambda a, w, b: F.conv2d(a, w, b, stride=2, padding=1, groups=2),
        (x(2, 4, 9, 9), x(6, 2, 3, 3), x(6)),
    ),
    "constants": (lambda a: (a * torch.tensor([1.0, 2.0, 3.0]), a + torch.tensor(0.5)), (x(4, 3),)),
    "filled": (lambda a: a + torch.full((5,), 2.5), (x(4, 5),)),
}


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_every_operation_has_eagers_values(runtime: str, case: str) -> None:
    function, arguments = CASES[case]
    compiled = lamina.compile(function, backend=runtime)
    for _ in range(2):
        torch.testing.assert_close(compiled(*arguments), function(*arguments), equal_nan=True)
    refused = [d.reason for d in compiled.record.decisions("backend") if not d.taken]
    assert not refused


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_the_suite_passes(runtime: str) -> None:
    report = check_backend(runtime, show=False)
    assert report.ok, str(report)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_model_runs_in_the_runtime_and_trains_elsewhere(runtime: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10)).eval()
    compiled = lamina.compile(model, backend=runtime)
    images = x(2, 3, 6, 6)
    with torch.no_grad():
        torch.testing.assert_close(compiled(images), model(images))
    assert not [d for d in compiled.record.decisions("backend") if not d.taken]
    compiled(images).sum().backward()
    assert [d.reason for d in compiled.record.decisions("backend")] == [f"{runtime} does not train"] * 2
    assert model[0].weight.grad is not None


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_each_size_has_its_own_model(runtime: str) -> None:
    compiled = lamina.compile(lambda a: a.softmax(-1) * 2, backend=runtime)
    for size in (3, 5, 8):
        torch.testing.assert_close(compiled(x(2, size)), x(2, size).softmax(-1) * 2)
    assert not [d for d in compiled.record.decisions("backend") if not d.taken]
    symbolic = lamina.compile(lambda a: a.softmax(-1) * 3, backend=runtime, dynamic=True)
    torch.testing.assert_close(symbolic(x(2, 5)), x(2, 5).softmax(-1) * 3)
    (reason,) = {d.reason for d in symbolic.record.decisions("backend") if not d.taken}
    assert "sizes that are known when it compiles" in reason


@pytest.mark.parametrize("name", ["onnxruntime", "openvino", "torch_tensorrt", "torchao"])
def test_a_missing_package_is_one_sentence_with_the_command(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lamina.backends.adapters.optional.find_spec", lambda package: None)
    with pytest.raises(
        lamina.BadArgument, match=f"backend '{name}' needs .*not installed\n  do: pip install [a-z- ]+$"
    ):
        lamina.compile(nn.Linear(2, 2), backend=name)


@pytest.mark.by_dynamo("asks which graphs Dynamo hands to a backend")
@pytest.mark.skipif(find_spec("torchao") is None, reason="needs torchao")
def test_weights_of_linear_layers_are_quantised_for_inference_and_again_when_written_to() -> None:
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8)).eval()
    compiled = lamina.compile(model, backend="torchao")
    rows = x(4, 64)
    with torch.no_grad():
        for _ in range(2):
            exact, quantised = model(rows), compiled(rows)
            assert not torch.equal(quantised, exact)
            torch.testing.assert_close(quantised, exact, rtol=0, atol=0.02 * float(exact.abs().max()) + 0.02)
            model[2].weight.mul_(-2)
    assert torch.equal(compiled(rows), model(rows))  # gradients are wanted: not quantised
    assert [d.reason for d in compiled.record.decisions("backend")] == ["torchao does not train"]


TENSORRT = '''
"""Stands in for Torch-TensorRT: registers a backend of the same name, built the same way, that runs ATen graphs."""

import torch
from functorch.compile import make_boxed_compiler
from torch._dynamo.backends.common import aot_autograd

graphs = []


@make_boxed_compiler
def _engine(gm, inputs):
    graphs.append([str(n.target) for n in gm.graph.nodes if n.op == "call_function"])
    return gm.forward


@torch._dynamo.register_backend(name="torch_tensorrt")
def torch_tensorrt_backend(gm, sample_inputs, **options):
    return aot_autograd(fw_compiler=_engine)(gm, sample_inputs)
'''


@pytest.mark.by_dynamo("asks which graphs Dynamo hands to a backend")
@pytest.mark.skipif(find_spec("torch_tensorrt") is not None, reason="Torch-TensorRT itself is installed")
def test_torch_tensorrt_is_handed_whole_graphs_for_inference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(lambda: sys.modules.pop("torch_tensorrt", None))
    (tmp_path / "torch_tensorrt.py").write_text(TENSORRT)
    monkeypatch.syspath_prepend(str(tmp_path))
    backend = replace(TORCH_TENSORRT, name="torch_tensorrt_on_cpu", devices=("cpu",))
    report = check_backend(backend, show=False)
    assert report.ok, report.failed
    graphs = import_module("torch_tensorrt").graphs
    assert graphs
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval()
    compiled = lamina.compile(model, backend=backend)
    graphs.clear()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x(4, 8)), model(x(4, 8)))
    assert graphs == [["aten.t.default", "aten.addmm.default", "aten.relu.default"]]
    assert compiled(x(4, 8)).requires_grad  # by the fallback, which trains
    assert [d.reason for d in compiled.record.decisions("backend")] == ["torch_tensorrt_on_cpu does not train"]
