"""Products of float32 matrices with one small dimension are nests on a GPU that read each large operand once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lamina.ir.loops import Load, Nest, Reduce
from lamina.ir.loops_interp import run_program
from lamina.ir.loops_verify import verify_program
from lamina.lower.to_loops import lower
from lamina.schedule.fuse import fuse

from .test_matrix_vector import calls, on_a_gpu
from .torch_private import traced

torch.manual_seed(0)
X, W, G, BIAS = torch.randn(20, 256), torch.randn(256, 3), torch.randn(300, 5), torch.randn(3)
WIDE = torch.randn(300, 40)

PRODUCTS: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...], int]] = {
    "few columns": (lambda x, w: x @ w, (X, W), 3),
    "few rows": (lambda x, w: w.t() @ x.t(), (X, W), 3),
    "few terms": (lambda g, w: g @ w, (G, WIDE[:5]), 0),
    "one term": (lambda g, w: g @ w, (G[:, :1], WIDE[:1]), 0),
    "a weight's gradient": (lambda g, x: g.t() @ x, (G, WIDE), 5),
    "a bias": (lambda x, w, b: torch.addmm(b, x, w), (X, W, BIAS), 3),
    "a bias of few terms": (lambda g, w, b: torch.addmm(b, g, w), (G, WIDE[:5], WIDE[0]), 0),
    "an addend of one column": (lambda x, w, b: torch.addmm(b, x, w), (X, W, X[:, :1]), 3),
    "operands that lie otherwise": (lambda x, w: x.t() @ w.t(), (X.t().contiguous(), W.t().contiguous()), 3),
    "a widened operand": (lambda x, w: x.float() @ w, (X.bfloat16(), W), 3),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_thin_products_are_nests_that_read_large_operands_once(name: str) -> None:
    function, inputs, sums = PRODUCTS[name]
    lowered = on_a_gpu(function, list(inputs))
    assert calls(lowered) == 0
    (nest,) = [n for n in lowered.steps if isinstance(n, Nest) and len(n.axes) == 2 and not is_copy(n)]
    assert sum(isinstance(e, Reduce) for e in nest.body) == sums
    if sums:
        assert loads_of_all(nest) == 1
    for program in (lowered, fuse(lowered).program):
        verify_program(program)
        here = replace(program, buffers=tuple(replace(b, device="cpu") for b in program.buffers))
        (found,) = run_program(here, [x.clone() for x in inputs])
        torch.testing.assert_close(found, function(*inputs), rtol=1e-5, atol=1e-4)


def is_copy(nest: Nest) -> bool:
    return sum(isinstance(e, Load) for e in nest.body) == 1


def loads_of_all(nest: Nest) -> int:
    """Different elements that a point reads at places which differ at all points."""
    loads = [e for e in nest.body if isinstance(e, Load)]
    return len({(e.buffer, e.index) for e in loads if {a for i in e.index for a in i.axes()} == {"i0", "i1"}})


def test_tf32_changes_nothing() -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        assert calls(on_a_gpu(lambda x, w: x @ w, [X, W])) == 0
    finally:
        torch.set_float32_matmul_precision(before)


def test_what_is_left_to_the_library() -> None:
    """Other types, no small dimension, short sums, an order of adding that is to be eager's, and the CPU."""

    def product(x: Tensor, w: Tensor) -> Tensor:
        return x @ w

    assert calls(on_a_gpu(product, [X.bfloat16(), W.bfloat16()])) == 1
    assert calls(on_a_gpu(product, [X.double(), W.double()])) == 1
    assert calls(on_a_gpu(product, [X, torch.randn(256, 17)])) == 1
    assert calls(on_a_gpu(product, [X[:, :255], W[:255]])) == 1
    assert calls(on_a_gpu(product, [torch.randn(20, 4096), torch.randn(4096, 5)])) == 1
    assert calls(on_a_gpu(lambda g, x: g.t() @ x, [torch.randn(300, 9), WIDE])) == 1
    assert calls(on_a_gpu(lambda g, x: g.t() @ x.float(), [torch.randn(300, 9), WIDE.bfloat16()])) == 0
    assert calls(on_a_gpu(product, [X, W], "eager")) == 1
    assert calls(lower(traced(product, [X, W]), "test")) == 1
