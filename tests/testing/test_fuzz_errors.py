"""Programs in which Lamina raised where eager does not, or the other way round, that random ones were reduced to."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import lamina
import lamina.aot.refusals
from lamina.base import recovery
from lamina.base.symbolic.torch_private import DataDependentGuard
from lamina.testing.fuzz import check, unbacked

HEAD = """
import torch
import torch.nn.functional as F
from lamina.testing.fuzz import attempt, backward, pause, sample, unbacked
"""

DETACHED = {
    "a part": "v = (x * 2)[1:]; return v.detach(), v",
    "a transposed tensor": "v = (x * 2).t(); return v, v.detach()",
    "what was written to": "u = F.silu(x).add_(1); v = u[1:]; v[v > 1] = 0; return u, v, v.detach()",
    "a part, several times": "v = (x * 2)[1:]; w = v.detach(); return w, v, v.detach(), w.detach(), w",
    "repeated rows": "v = x.repeat(2, 1)[:-1]; w = v.repeat(2, 1)[:-1]; return v, w, w.detach()",
}


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize("name", DETACHED)
@pytest.mark.parametrize("numerics", ["fast", "eager"])
def test_results_that_are_others_without_a_history(name: str, numerics: str) -> None:
    """AOTAutograd made them of the others by the views that had led to those, which the others have already."""
    program = f"""
def f(x):
    {DETACHED[name]}
def program(compile):
    g = compile(f, options={{"numerics": "{numerics}"}})
    for size in (4, 4, 3):
        x = sample(size, size, grad=True)
        out = attempt(g, x)
        yield out
        yield attempt(out[0].detach().zero_), out
        yield backward(out), x.grad
"""
    assert not check(HEAD + program, "lamina:interp").differences


KERNELS = {
    "column sums before and after rows": """
def f(x, y):
    return torch.addcmul(y, F.layer_norm(x, x.shape[-1:]), x, value=0.5)
def program(compile):
    g = compile(f, dynamic=DYNAMIC)
    for rows in (4, 9):
        x, y = sample(rows, 3, seed=1, grad=True), sample(6, rows, 3, seed=7, grad=True)
        out = attempt(g, x, y)
        yield out, backward(out), x.grad, y.grad
""",
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_kernels_compile(name: str, dynamic: bool) -> None:
    assert not check(HEAD + KERNELS[name].replace("DYNAMIC", str(dynamic)), "lamina").differences


SIZES_OF_DATA = {
    "a sum of indices": "(torch.zeros(int((x > 0).sum()), 2) + 1).nonzero().sum()",
    "a reduction of a transposed result": "x.nonzero().t().float().amax(0)",
    "a pointwise call whose layout tracing tells otherwise": "torch.logical_xor(x.nonzero(), x.nonzero())",
    "a power of a number": "2.0 ** x.nonzero()",
    "a rounded quotient": "torch.div(x.nonzero(), 2, rounding_mode='floor') + x.nonzero() // 3",
    "a logarithm of a sigmoid": "F.logsigmoid(x.nonzero() * 1.0)",
    "a normalised image": "F.batch_norm((x.nonzero() * 1.0).t()[None, :, :, None].mT, None, None, training=True)",
}


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize("name", SIZES_OF_DATA)
@pytest.mark.parametrize("target", ["lamina", "lamina:interp"])
def test_layouts_of_sizes_that_only_data_tell(name: str, target: str) -> None:
    program = f"""
def f(x):
    return {SIZES_OF_DATA[name]}
def program(compile):
    g = compile(f)
    for seed in range(2):
        with unbacked():
            yield attempt(g, sample(5, 4, seed=seed))
"""
    assert not check(HEAD + program, target).differences


@pytest.mark.by_dynamo("is about what Dynamo and AOTAutograd leave to eager")
def test_a_question_that_only_data_answer_is_a_failure_like_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo takes such an error of a backend's for a failure, whoever asked."""

    def asks(gm: Any) -> None:
        for node in gm.graph.nodes:
            value = node.meta.get("example_value")
            if isinstance(value, torch.Tensor) and value.dim() == 2 and value.shape[0] == 2:
                return

    monkeypatch.setattr(lamina.aot.refusals, "_CHECKS", (asks,))
    monkeypatch.setattr(recovery, "_told", set())
    x = torch.tensor([0.0, 1.0, 2.0])

    def f(x: torch.Tensor) -> torch.Tensor:
        return x.nonzero() + 1

    torch.compiler.reset()
    with unbacked(), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        compiled = lamina.compile(f)
        torch.testing.assert_close(compiled(x), f(x))
    assert any(DataDependentGuard.__name__ in d.reason and not d.taken for d in compiled.record.decisions("fallback"))
    assert sum(DataDependentGuard.__name__ in str(w.message) for w in told) == 1
    torch.compiler.reset()
    with unbacked(), pytest.raises(lamina.LaminaError, match=DataDependentGuard.__name__):
        lamina.compile(f, options={"strict": True})(x)


ASSUMED = {
    "one row for all": "torch.where(y > 0, x.repeat_interleave(torch.arange(x.shape[0]), 0), 0.5)",
    "one row, and sizes read later": "(y + x[x.sum(1) > THRESHOLD]).reshape(-1, y.shape[0]).sum(0)",
    "no row at all": "x[x.sum(1) > 1e9] + y",
}


@pytest.mark.parametrize("name", ASSUMED)
@pytest.mark.parametrize("target", ["lamina", "lamina:interp"])
def test_sizes_that_tracing_takes_to_fit(name: str, target: str) -> None:
    """The captured graph asserts the size, so it cannot stand for the program: eager broadcasts one row to all."""
    program = f"""
def f(x, y):
    return {ASSUMED[name].replace("THRESHOLD", "x.sum(1).sort().values[-2]")}
def program(compile):
    g = compile(f)
    for rows in (2, 2, 3):
        with unbacked():
            yield attempt(g, sample(rows, 8), sample(rows, 8, seed=1, grad=True))
"""
    assert not check(HEAD + program, target).differences
