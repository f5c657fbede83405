"""Vector functions of our own against double precision, over every kind of float."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lamina.base.target import cpu
from lamina.runtime.toolchain import host_isa
from tests.codegen.harness import build, call, case, dense
from tests.codegen.writer import Body

COUNT = 1 << 18
LIMITS = {"exp": 1.5, "log": 1.5, "tanh": 2.0, "erf": 1.5, "sigmoid": 3.0, "erfc": 0.6}
"""Largest error in units in the last place."""

pytestmark = pytest.mark.skipif(host_isa() == "plain", reason="no vector instructions here")


def samples(name: str) -> torch.Tensor:
    """Every exponent, both signs, and a close look at the range where the function changes."""
    g = torch.Generator().manual_seed(5)
    bits = torch.randint(-(2**31), 2**31, (COUNT // 2,), generator=g).to(torch.int32).view(torch.float32)
    near = (torch.rand(COUNT // 2 - 8, generator=g) - 0.5) * {"exp": 210.0, "log": 8.0}.get(name, 12.0)
    edge = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1.0, -1.0, 1e-40])
    return torch.cat([bits, near, edge])


def ulps(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """Distance to the true value in units of the last place of a float of its size."""
    _, exponent = torch.frexp(want.abs().clamp(min=2.0**-126))
    return (got.double() - want).abs() / torch.ldexp(torch.ones_like(want), exponent - 24)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory):
    target = cpu("avx2", 1)
    cases = {}
    for name in LIMITS:
        b = Body(COUNT)
        b.store("Y", b.at, b.op(name, b.load("X", *b.at)))
        buffers = [dense("X", "float32", [COUNT]), dense("Y", "float32", [COUNT])]
        cases[name] = case(name + "_f", [b.nest()], buffers, target)
    return cases, build(list(cases.values()), target, Path(tmp_path_factory.mktemp("math")))


@pytest.mark.parametrize("name", LIMITS)
def test_accuracy(library, name: str) -> None:
    cases, built = library
    x = samples(name)
    got = torch.empty(COUNT)
    assert call(cases[name], built, {"X": x, "Y": got}, {}) == 0
    want = getattr(torch, name)(x.double())
    rounded = want.float()
    assert torch.equal(got.isnan(), rounded.isnan())
    huge = rounded.isinf()
    assert torch.equal(got[huge], rounded[huge])
    zero = rounded == 0
    assert torch.equal(got[zero].signbit(), rounded[zero].signbit())
    plain = ~(rounded.isnan() | huge)
    assert not got[plain].isinf().any()
    if name == "sigmoid":  # 1 / (1 + exp(-x)), as eager has it, is zero where exp(-x) is infinite
        plain &= want > 2.0**-126
    error = ulps(got[plain], want[plain])
    worst = int(error.argmax())
    assert error[worst] <= LIMITS[name], f"{float(error[worst]):.2f} units at {float(x[plain][worst])}"
