"""Every way to evaluate a product on the tensor cores, on a GPU: values as eager's, at aligned and other addresses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import lamina.schedule.gpu as chosen
import lamina.schedule.gpu_space as space
from lamina.base.target import Target
from lamina.ir.loops import Nest
from lamina.ir.plan import GpuSchedule
from lamina.schedule.product_tiles import product_schedules
from tests.device.test_products import check, randn

MOVED: dict[str, Any] = {"descriptors": True, "persistent": 7}
WAYS: dict[str, dict[str, Any]] = {
    "persistent": {"persistent": 7},
    "descriptors": {"descriptors": True},
    "both": MOVED,
    "flat": {**MOVED, "flat": True},
    "parts": {**MOVED, "flat": True, "epilogue_subtiles": 2},
    "specialized": {**MOVED, "specialized": True, "warps": 4},
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """All products go this way."""
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("needs sm_90")

    def schedules(nest: Nest, dtypes: Mapping[str, str], target: Target) -> list[GpuSchedule]:
        found = product_schedules(nest, dtypes, target)
        return [replace(s, stages=min(s.stages, 3), **WAYS[request.param]) for s in found[:1]]

    monkeypatch.setattr(chosen, "product_schedules", schedules)
    monkeypatch.setattr(space, "product_schedules", schedules)
    torch.compiler.reset()
    return str(request.param)


@pytest.mark.parametrize("sizes", [(512, 512, 256), (300, 256, 328)])
def test_a_linear_layer_with_gelu(way: str, sizes: tuple[int, int, int]) -> None:
    rows, inner, columns = sizes
    args = [randn(rows, inner), randn(columns, inner), randn(columns)]
    record = check(lambda x, w, b: F.gelu(F.linear(x, w, b)), args, training=True)
    assert any(d.taken for d in record.decisions("product"))


def test_inputs_at_any_address(way: str) -> None:
    inputs = [randn(300 * 256 + 1)[1:].view(300, 256), randn(328, 256), randn(328)]
    check(lambda x, w, b: F.gelu(F.linear(x, w, b)), inputs)
