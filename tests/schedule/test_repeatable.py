"""One program gives one text of kernels in every process: else a full cache would not save the C++ compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from lamina.base.target import cpu
from lamina.codegen.cpp.emit import emit
from lamina.lower.to_loops import lower
from lamina.schedule.fuse import fuse
from lamina.schedule.plan import make_plan


def _step(x, w, b, w1, b1, w2, mask, table, ids):
    """A transformer block, its loss and its gradients."""
    h = F.layer_norm(x, (32,), w, b)
    q, k, v = (t.view(4, 16, 4, 8).transpose(1, 2) for t in F.linear(h, w1, b1).chunk(3, -1))
    s = ((q @ k.transpose(-2, -1)) * 0.3).masked_fill(mask, float("-inf")).softmax(-1) @ v
    x = x + s.transpose(1, 2).reshape(4, 16, 32) + F.embedding(ids, table)
    y = F.layer_norm(x + F.gelu(F.linear(x, w2)), (32,), w, b)
    loss = F.cross_entropy(y.view(-1, 32), ids.view(-1)) + (y * y).mean()
    return (loss, *torch.autograd.grad(loss, [w, b, w1, b1, w2, table]))


def kernel_texts() -> str:
    """The text of every kernel of the block's training step."""
    shapes = ((32,), (32,), (96, 32), (96,), (32, 32), (32, 32))
    w, b, w1, b1, w2, table = (torch.randn(*s, requires_grad=True) for s in shapes)
    mask, ids = torch.ones(16, 16, dtype=torch.bool).triu(1), torch.randint(0, 32, (4, 16))
    gm = make_fx(_step, tracing_mode="fake")(torch.randn(4, 16, 32), w, b, w1, b1, w2, mask, table, ids)
    target = cpu("avx2", 2)
    return "\n".join(f"{k.name}\n{emit(k, target)}" for k in make_plan(fuse(lower(gm, "test")), target).kernels)


def test_kernels_do_not_depend_on_the_order_of_sets() -> None:
    command = [sys.executable, "-c", "from tests.schedule.test_repeatable import kernel_texts; print(kernel_texts())"]
    texts = [
        subprocess.run(
            command,
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert len(texts[0]) > 10_000
    assert texts[0] == texts[1]
