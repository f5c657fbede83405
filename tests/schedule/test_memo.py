"""Plans of one program with other products as kernels are the same with and without what earlier ones left behind."""

from __future__ import annotations

from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

from lamina.base.target import nvidia
from lamina.ir.loops import LoopProgram
from lamina.lower.to_loops import lower
from lamina.schedule.fuse import Fused, fuse
from lamina.schedule.memo import Memo
from lamina.schedule.plan import make_plan
from tests.lower.torch_private import traced
from tests.schedule.test_gpu_split import on


def layers(x: Tensor, w: Tensor, b: Tensor, v: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
    """A layer norm, a linear layer with GELU, one with a residual, and sums over all rows."""
    h = F.gelu(F.linear(F.layer_norm(x, (256,)), w, b))
    y = F.linear(h, v) * scale + x
    return y, (y.float() * h.float().mean(-1, keepdim=True)).sum(0)


def program() -> LoopProgram:
    shapes = ((8192, 256), (512, 256), (512,), (256, 512), (256,))
    gm = traced(layers, [torch.empty(s, dtype=torch.bfloat16) for s in shapes])
    return on(fuse(lower(gm, "test")).program, "cuda:0")


def test_plans_do_not_depend_on_earlier_ones() -> None:
    fused, target, memo = Fused(program(), ()), nvidia(), Memo()
    names = [d.subject[0] for d in make_plan(fused, target).decisions if d.kind == "product"]
    assert len(names) == 2
    seen = []
    for chosen in (*product((False, True), repeat=2), (False, False)):
        settled = dict(zip(names, chosen, strict=True))
        plan = make_plan(fused, target, settled, memo)
        assert plan == make_plan(fused, target, settled)
        seen.append(plan.library_count)
    assert seen == [2, 1, 1, 0, 2]
