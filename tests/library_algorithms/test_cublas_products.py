"""Products by a chosen algorithm of cuBLASLt, against a stand-in for the library that computes on host memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lamina.library_algorithms import cublas_products
from lamina.library_algorithms.cublas_lt import CublasLt, Refused
from lamina.library_algorithms.cublas_products import library_product, multiply
from tests.library_algorithms.test_cublas_lt import HALF, built, fake, matrix

assert built  # fixtures
assert fake


def mm_algorithm(*operands: Any, out: Tensor) -> Tensor:
    return library_product("lamina.mm_algorithm.default", "y")(*operands, out=out)


def addmm_algorithm(*operands: Any, out: Tensor) -> Tensor:
    return library_product("lamina.addmm_algorithm.default", "y")(*operands, out=out)


@pytest.fixture(autouse=True)
def library(fake: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The stand-in in the place of the library that torch has loaded, with nothing prepared."""
    lt = CublasLt(fake)
    monkeypatch.setattr(cublas_products, "loaded", lambda device: lt)
    monkeypatch.setattr(cublas_products, "_READY", {})
    return fake


def close(got: Tensor, want: Tensor) -> None:
    half = 2.0 ** (-7 if got.dtype == torch.bfloat16 else -10)
    torch.testing.assert_close(got.double(), want, rtol=half, atol=half)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("transposed", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("shape", [(8, 8, 8), (17, 40, 24), (33, 8, 16)])
def test_products(library: Any, shape: tuple[int, int, int], transposed: tuple[bool, bool], dtype: torch.dtype) -> None:
    m, k, n = shape
    left, right = matrix(m, k, dtype, transposed[0]), matrix(k, n, dtype, transposed[1], 1)
    bias, out = matrix(1, n, dtype, seed=2)[0], torch.empty(m, n, dtype=dtype)
    before = library.fake_matmuls()
    for algorithm in range(2):
        assert mm_algorithm(left, right, algorithm, out=out.zero_()) is out
        close(out, left.double() @ right.double())
        used = library.fake_algorithm()
        assert addmm_algorithm(bias, left, right, algorithm, out=out.zero_()) is out
        close(out, bias.double() + left.double() @ right.double())
        assert library.fake_algorithm() == used == algorithm + 1  # the first that it proposes is not usable
    assert library.fake_matmuls() == before + 4


def test_operands_and_biases_may_move(library: Any) -> None:
    before = library.fake_matmuls()
    call = library_product("lamina.addmm_algorithm.default", "y")
    assert call.__name__ == "y"
    for seed in range(4):
        left, right, bias = matrix(16, 8, seed=seed), matrix(8, 24, seed=seed + 9), matrix(1, 24, seed=seed + 5)[0]
        out = call(bias, left, right, 0, out=torch.empty(16, 24, dtype=torch.bfloat16))
        close(out, bias.double() + left.double() @ right.double())
    assert library.fake_matmuls() == before + 4
    assert len(cublas_products._READY) == 1


def test_rows_with_gaps(library: Any) -> None:
    left, right = matrix(16, 40)[:, 8:24], matrix(16, 32, seed=1)[:, 8:16]
    out = torch.empty(16, 8, dtype=torch.bfloat16)
    multiply(None, left, right, 0, out)
    close(out, left.double() @ right.double())


@pytest.mark.parametrize("workspace", [0, 1 << 25])
def test_workspaces(library: Any, workspace: int) -> None:
    library.fake_workspace(workspace)
    left, right = matrix(16, 8), matrix(8, 24, seed=1)
    out = torch.empty(16, 24, dtype=torch.bfloat16)
    multiply(None, left, right, 1, out)
    close(out, left.double() @ right.double())


def operands(dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, Tensor, Tensor]:
    return matrix(1, 24, dtype, seed=2)[0], matrix(16, 8, dtype), matrix(8, 24, dtype, seed=1)


def odd_address() -> tuple[Tensor, Tensor, Tensor]:
    bias, left, right = operands()
    return bias, torch.empty(129, dtype=torch.bfloat16)[1:].view(16, 8).copy_(left), right


def gaps_both_ways() -> tuple[Tensor, Tensor, Tensor]:
    bias, left, right = operands()
    return bias, torch.empty(16, 16, dtype=torch.bfloat16)[:, ::2].copy_(left), right


@pytest.mark.parametrize(
    ("given", "algorithm", "why"),
    [
        (operands(), 2, "2 algorithms"),
        (operands(torch.float32), 0, "half precision"),
        (odd_address(), 0, "multiple of 16"),
        (gaps_both_ways(), 0, "strides"),
    ],
    ids=["no such algorithm", "type", "address", "strides"],
)
def test_torch_does_what_the_library_refuses(library: Any, given: Any, algorithm: int, why: str) -> None:
    bias, left, right = given
    before = library.fake_matmuls()
    out = torch.empty(16, 24, dtype=left.dtype)
    with pytest.raises(Refused, match=why):
        multiply(bias, left, right, algorithm, out)
    for _ in range(2):
        torch.testing.assert_close(mm_algorithm(left, right, algorithm, out=out), left @ right, rtol=0, atol=0)
        want = torch.addmm(bias, left, right)
        torch.testing.assert_close(addmm_algorithm(bias, left, right, algorithm, out=out), want, rtol=0, atol=0)
    assert library.fake_matmuls() == before


def test_a_workspace_beyond_the_limit_is_refused(library: Any) -> None:
    library.fake_workspace((1 << 25) + 1)
    bias, left, right = operands()
    with pytest.raises(Refused, match="AlgoGetHeuristic"):
        multiply(bias, left, right, 0, torch.empty(16, 24, dtype=torch.bfloat16))


def test_a_launch_that_fails_is_not_tried_again(library: Any) -> None:
    _, left, right = operands()
    out = torch.empty(16, 24, dtype=torch.bfloat16)
    library.fake_fail(3)
    torch.testing.assert_close(mm_algorithm(left, right, 0, out=out), left @ right, rtol=0, atol=0)
    library.fake_fail(0)
    before = library.fake_matmuls()
    with pytest.raises(Refused, match="status"):
        multiply(None, left, right, 0, out)
    assert library.fake_matmuls() == before


def test_the_specification() -> None:
    bias, left, right = operands()
    ops: Any = torch.ops.lamina
    assert torch.equal(ops.mm_algorithm(left, right, 3), left @ right)
    assert torch.equal(ops.addmm_algorithm(bias, left, right, 3), torch.addmm(bias, left, right))
    out = torch.empty(16, 24, dtype=torch.bfloat16)
    assert ops.mm_algorithm.out(left, right, 3, out=out) is out
    assert torch.equal(out, left @ right)
    assert ops.addmm_algorithm.out(bias, left, right, 3, out=out) is out
    assert torch.equal(out, torch.addmm(bias, left, right))
