"""Cross entropy without the matrix of log-probabilities."""

import pytest
import torch
import torch.nn.functional as F

import lamina
from lamina.ir.access import writes
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


def test_a_training_step_writes_no_matrix_but_scores_and_gradients():
    torch.compiler.reset()
    torch.manual_seed(0)
    x, w = torch.randn(64, 32), torch.randn(32, 3000).requires_grad_()
    t = torch.randint(3000, (64,))

    def step(x, w, t):
        return F.cross_entropy(x @ w, t)

    compiled = lamina.compile(step, dynamic=False)
    compiled(x, w, t).backward()
    y = w.detach().clone().requires_grad_()
    step(x, y, t).backward()
    z = w.detach().double().requires_grad_()
    step(x.double(), z, t).backward()
    assert not judge(w.grad, y.grad, z.grad)
    plans = [s.value for s in compiled.record.stages if s.name == "plan"]
    forward, backward = plans
    assert forward.kernel_count == backward.kernel_count == 1
    assert [[s.op for s in p.steps if isinstance(s, LibraryCall)] for p in plans] == [["aten.mm.default"]] * 2
    for plan, made in ((forward, ["mm"]), (backward, ["_log_softmax_backward_data", "mm_1"])):
        written = {b for step in plan.steps for b in writes(step)}
        assert [b.name for b in plan.buffers if b.name in written and 3000 in b.shape] == made


def test_scores_that_the_user_may_write_to_are_not_trusted():
    torch.compiler.reset()
    torch.manual_seed(0)
    x, t = torch.randn(64, 3000).requires_grad_(), torch.randint(3000, (64,))
    y = x.detach().clone().requires_grad_()
    ours, eager = lamina.compile(F.cross_entropy, dynamic=False)(x, t), F.cross_entropy(y, t)
    for leaf in (x, y):
        leaf.data.mul_(3)
    ours.backward()
    eager.backward()
    torch.testing.assert_close(x.grad, y.grad)
