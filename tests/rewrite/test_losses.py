"""Cross entropy without the matrix of log-probabilities."""

import pytest
import torch
import torch.nn.functional as F

import lamina
from lamina.ir.loops import LibraryCall
from lamina.rewrite.losses import open_log_softmax
from lamina.rewrite.passes import clean
from lamina.rewrite.verify import verify_fx
from lamina.testing import judge

from .test_passes import aten, count, graph_of


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(12, 40), (3, 10, 4, 5)])
def test_the_loss_reads_differences(shape, dtype):
    torch.manual_seed(0)
    x, t = (50 + 3 * torch.randn(shape)).to(dtype), torch.randint(10, (shape[0], *shape[2:]))
    before = graph_of(lambda x, t: (F.cross_entropy(x, t, ignore_index=3),), x, t)
    after = clean(open_log_softmax(before))
    verify_fx(after, "test")
    assert count(after, aten._log_softmax.default) == 0
    exact = F.cross_entropy(x.double(), t, ignore_index=3)
    assert not judge(after(x, t)[0], before(x, t)[0], exact)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, t: F.cross_entropy(x.transpose(1, 2), t),
        lambda x, t: F.nll_loss(F.log_softmax(x.transpose(1, 2), dim=1), t),
        lambda x, t: F.nll_loss(F.log_softmax(x, dim=-1).permute(0, 2, 1), t),
        lambda x, t: F.cross_entropy(x.transpose(1, 2).contiguous(), t),
    ],
)
def test_a_loss_over_columns_reads_differences(function):
    """Classes in the middle: between log-softmax and loss stand views, and a copy where they are not in order."""
    torch.manual_seed(0)
    x, t = 50 + 3 * torch.randn(3, 7, 40), torch.randint(40, (3, 7))
    before = graph_of(lambda x, t: (function(x, t),), x, t)
    after = clean(open_log_softmax(before))
    verify_fx(after, "test")
    assert count(after, aten._log_softmax.default) == 0
    assert not judge(after(x, t)[0], before(x, t)[0], function(x.double(), t))


def test_other_readers_keep_the_matrix():
    x, t = torch.randn(12, 40), torch.randint(10, (12,))
    for function in (
        lambda x, t: (F.log_softmax(x, 1).exp(),),
        lambda x, t: (F.nll_loss(y := F.log_softmax(x, 1), t), y),
        lambda x, t: (F.nll_loss(y := F.log_softmax(x, 1), t), y.t().exp()),
    ):
        gm = graph_of(function, x, t)
        assert open_log_softmax(gm) is gm


def test_a_training_step_writes_no_matrix_but_the_gradient():
    torch.compiler.reset()
    torch.manual_seed(0)
    x, t = (5 * torch.randn(64, 3000)).requires_grad_(), torch.randint(3000, (64,))
    compiled = lamina.compile(F.cross_entropy, dynamic=False)
    loss = compiled(x, t)
    loss.backward()
    y = x.detach().clone().requires_grad_()
    F.cross_entropy(y, t).backward()
    z = x.detach().double().requires_grad_()
    F.cross_entropy(z, t).backward()
    assert not judge(x.grad, y.grad, z.grad)
    plans = [s.value for s in compiled.record.stages if s.name == "plan"]
    forward, backward = plans
    assert not any(isinstance(step, LibraryCall) for plan in plans for step in plan.steps)
    assert forward.kernel_count == backward.kernel_count == 1
    written = {b for plan in plans for step in plan.steps for b in step.writes}
    large = [b.name for plan in plans for b in plan.buffers if b.name in written and len(b.shape) == 2]
    assert [b for b in large if b not in ("amax_default", "log_default")] == ["_log_softmax_backward_data"]
