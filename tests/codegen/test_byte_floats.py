"""Floats of 8 bits: every value to float, floats around every border back, whole rows and their ends, fused or not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import lamina
from lamina.base.target import cpu
from tests.codegen.harness import build, call, case, dense
from tests.codegen.test_functions import ISAS
from tests.codegen.writer import Body
from tests.ops.check import record_counts

KINDS = ["float8_e4m3fn", "float8_e5m2"]


def equal(a: Tensor, b: Tensor) -> bool:
    """Equal, zeros with their signs, any NaN like any other."""
    a, b = a.float(), b.float()
    return bool(((a.isnan() & b.isnan()) | ((a == b) & (a.signbit() == b.signbit()))).all())


def floats(dtype: torch.dtype) -> Tensor:
    """Each value, what is half way between two of them, the neighbours of both, and what does not fit."""
    values = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    values = values[values.isfinite()].sort().values
    centres = torch.cat([values, (values[1:] + values[:-1]) / 2, torch.tensor([464.0, 479.9, 480.0, 61439.0, 61440.0])])
    near = [centres, *(torch.nextafter(centres, torch.tensor(end)) for end in (3e38, -3e38))]
    ends = torch.tensor([65536.0, 1e9, 3e38, float("inf"), float("nan"), 1e-45, 1e-30, 0.0])
    return torch.cat([*near, ends, -ends])


@pytest.mark.parametrize("isa", sorted({*ISAS, "plain"}))
@pytest.mark.parametrize("kind", KINDS)
def test_every_value_and_every_border(kind: str, isa: str, tmp_path: Path) -> None:
    dtype, target = getattr(torch, kind), cpu(isa, 1)
    bits, given = torch.arange(256, dtype=torch.uint8).view(dtype), floats(dtype)
    cases = {}
    for name, count, source, to in (("wide", 256, kind, "float32"), ("narrow", len(given), "float32", kind)):
        body = Body(count)
        body.store("Y", body.at, body.op("cast", body.load("X", *body.at, dtype=source), dtype=to))
        cases[name] = case(name, [body.nest()], [dense("X", source, [count]), dense("Y", to, [count])], target)
    library = build(list(cases.values()), target, tmp_path)
    for name, x, to in (("wide", bits, torch.float32), ("narrow", given, dtype)):
        found = torch.empty(x.shape, dtype=to)
        assert call(cases[name], library, {"X": x, "Y": found}, {}) == 0
        assert equal(found, x.to(to))


@pytest.mark.parametrize("kind", KINDS)
def test_conversions_fuse(kind: str) -> None:
    dtype = getattr(torch, kind)

    def function(x: Tensor, q: Tensor) -> tuple[Tensor, ...]:
        small = (x * 1.5).to(dtype)
        return small, q.float() * 0.25 + small.float(), q.t().to(torch.bfloat16) * 2, q[:, 1::3].double() + 1

    x, q = torch.randn(33, 70) * 30, (torch.randn(33, 70) * 8).to(dtype)
    compiled = lamina.compile(function, options={"strict": True})
    for ours, eager in zip(compiled(x, q), function(x, q), strict=True):
        assert equal(ours, eager)
    assert record_counts(compiled)[2:] == (0, "")


def test_other_floats_of_eight_bits_are_left_to_aten() -> None:
    q = torch.randn(8, 8).to(torch.float8_e5m2fnuz)
    compiled = lamina.compile(lambda q: q.float() * 2, options={"strict": True})
    assert torch.equal(compiled(q), q.float() * 2)
