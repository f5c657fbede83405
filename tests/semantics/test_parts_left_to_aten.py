"""Graphs with a part that no loop nest computes: that part is a call between kernels, never the loss of the graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lamina
from lamina.errors import LaminaWarning
from tests.semantics import torch_private


def _before(x: Tensor) -> Tensor:
    return F.layer_norm(F.gelu(x) * 1.5 + 0.1, (x.shape[-1],))


def _after(x: Tensor) -> Tensor:
    return torch.tanh(F.rms_norm(x, (x.shape[-1],))) * x + 1


@torch.compiler.nested_compile_region
def _nested(x: Tensor, w: Tensor) -> Tensor:
    return _before(x @ w)


def nested(x: Tensor, w: Tensor) -> Tensor:
    for _ in range(3):
        x = _nested(x, w)
    return _after(x)


@torch.compiler.nested_compile_region
def _outer(x: Tensor) -> Tensor:
    return _inner(x) + _inner(x.sin())


@torch.compiler.nested_compile_region
def _inner(x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = x.abs().amax(-1, keepdim=True)
    y, rest = (x / scale).chunk(2, -1)
    return torch.cat((rest * 2, y), -1) + torch.ones(x.shape[-1])


def nested_twice(x: Tensor) -> Tensor:
    return _after(_outer(_before(x)))


def branches(x: Tensor) -> Tensor:
    h = _before(x)
    return _after(torch.cond(x.sum() > 0, lambda a: _before(a) + 1, lambda a: _after(a) * 2, (h,)))


def loops(x: Tensor) -> Tensor:
    start = torch.zeros((), dtype=torch.int64), _before(x)
    _, h = torch_private.while_loop(lambda i, a: (i < 4) & (a.sum() < 1e9), lambda i, a: (i + 1, _after(a)), start)
    return _after(h)


def steps(x: Tensor) -> Tensor:
    last, h = torch_private.scan(lambda c, a: (c * 0.5 + a, torch.tanh(c) + a), torch.zeros(x.shape[-1]), _before(x))
    return _after(h) + last


def transposed_steps(x: Tensor) -> Tensor:
    h = _before(x.view(4, -1, 8)).transpose(1, 2)
    return _after(torch_private.each(lambda a: _before(a) + 1, h)).reshape(x.shape)


def other_dtype(x: Tensor) -> Tensor:
    q = (_before(x) * 10).to(torch.int8)
    return _after(torch_private.out_dtype(torch.ops.aten.mm.default, torch.int32, q, q).float())


def complex_pairs(x: Tensor) -> Tensor:
    pairs = torch.view_as_complex(_before(x).reshape(*x.shape[:-1], -1, 2))
    turned = pairs * torch.polar(torch.ones(pairs.shape[-1]), torch.arange(pairs.shape[-1]).float())
    return _after(torch.view_as_real(turned).flatten(-2))


def same_index_twice(x: Tensor, i: Tensor) -> Tensor:
    return _before(x)[i, i][None].expand(1024, -1) * 2


def _leaves(inputs: Sequence[Tensor], training: bool) -> list[Tensor]:
    return [x.clone().requires_grad_(training and x.is_floating_point()) for x in inputs]


def _run(function: Callable[..., Tensor], inputs: Sequence[Tensor], training: bool) -> list[Any]:
    leaves = _leaves(inputs, training)
    with torch.set_grad_enabled(training):
        result = function(*leaves)
    if training:
        (result * torch.linspace(-1, 1, result.shape[-1])).sum().backward()
    return [result, result.stride(), *(x.grad for x in leaves)]


PROGRAMS: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...], bool]] = {
    "nested": (nested, ((16, 32), (32, 32)), True),
    "nested twice": (nested_twice, ((16, 32),), True),
    "branches": (branches, ((16, 32),), True),
    "loops": (loops, ((16, 32),), False),
    "steps": (steps, ((16, 32),), True),
    "transposed steps": (transposed_steps, ((16, 32),), True),
    "other dtype": (other_dtype, ((32, 32),), False),
    "complex pairs": (complex_pairs, ((16, 32),), True),
}


@pytest.mark.sampled(one_in=8)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", list(PROGRAMS))
def test_the_rest_is_compiled(name: str, dynamic: bool) -> None:
    function, shapes, trainable = PROGRAMS[name]
    if name == "steps" and torch.__version__.startswith("2.11."):
        pytest.skip("AOTAutograd of torch 2.11 does not take this scan: it takes a result for its input")
    torch.manual_seed(0)
    inputs = [torch.randn(s) for s in shapes]
    for training in (False, True) if trainable else (False,):
        torch.compiler.reset()
        compiled = lamina.compile(function, dynamic=dynamic, options={"strict": True})
        with warnings.catch_warnings():
            warnings.simplefilter("error", LaminaWarning)
            ours = _run(compiled, inputs, training)
        torch.testing.assert_close(ours, _run(function, inputs, training), rtol=1e-4, atol=1e-5)
        assert not compiled.record.decisions("fallback")


def test_marked_regions_are_inlined() -> None:
    compiled = lamina.compile(nested)
    with torch.no_grad():
        compiled(torch.randn(16, 32), torch.randn(32, 32))
    (decision,) = compiled.record.decisions("nested region")
    assert decision.taken
    assert "3 calls" in decision.reason
    assert not compiled.record.decisions("segments")


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize(("name", "bodies"), [("branches", 2), ("loops", 2), ("steps", 1), ("transposed steps", 1)])
def test_the_graphs_of_control_flow_are_compiled(name: str, bodies: int) -> None:
    function, shapes, _ = PROGRAMS[name]
    compiled = lamina.compile(function)
    with torch.no_grad():
        compiled(*map(torch.randn, shapes))
    decisions = compiled.record.decisions("body")
    assert [d.taken for d in decisions] == [True] * bodies


def test_what_is_left_has_its_reason() -> None:
    compiled = lamina.compile(other_dtype)
    with torch.no_grad():
        compiled(torch.randn(32, 32))
    left = [d for d in compiled.record.decisions("segments") if not d.taken]
    assert [d.subject[0] for d in left] == ["out_dtype"]
    assert "not an ATen operation" in left[0].reason


@pytest.mark.parametrize("used", [False, True])
def test_an_input_of_another_layout(used: bool) -> None:
    def function(x: Tensor, s: Tensor) -> tuple[Tensor, Tensor | None]:
        return _after(_before(x).sin() if not used else s @ _before(x)), s if not used else None

    x, s = torch.randn(32, 32), torch.eye(32).to_sparse_csr()
    compiled = lamina.compile(function, options={"strict": True})
    with torch.no_grad():
        ours = compiled(x, s)
        torch.testing.assert_close(ours[0], function(x, s)[0])
    assert used or ours[1] is s
    assert not compiled.record.decisions("fallback")


def test_one_index_for_two_dimensions() -> None:
    x, i = torch.randn(32, 32), torch.arange(0, 32, 2)
    compiled = lamina.compile(same_index_twice, options={"strict": True})
    torch.testing.assert_close(compiled(x, i), same_index_twice(x, i))
