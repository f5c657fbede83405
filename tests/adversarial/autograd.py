"""Programs on the edges of autograd: what each yields is compared with eager."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from lamina.testing.fuzz import attempt, backward, loss, sample


class Scaled(torch.autograd.Function):
    """A gradient that is not the derivative; keeps a tensor on the context and a count."""

    calls = 0

    @staticmethod
    def forward(ctx, x, factor, flag=None):
        ctx.save_for_backward(x)
        ctx.factor = factor
        ctx.set_materialize_grads(False)
        return x * factor, x.detach() + 1

    @staticmethod
    def backward(ctx, g, h):
        Scaled.calls += 1
        (x,) = ctx.saved_tensors
        if g is None:
            return None, None, None
        return g * ctx.factor + x, None, None


def own_function_with_two_results(compile):
    g = compile(lambda x: Scaled.apply(x.sin(), 3.0))
    for seed in range(2):
        x = sample(4, 5, seed=seed, grad=True)
        out = g(x)
        yield out
        yield backward(out[:1])
        yield x.grad
    x = sample(4, 5, grad=True)
    first, second = g(x)
    yield backward([second])
    yield x.grad, Scaled.calls > 0
    Scaled.calls = 0


def hooks_on_results_and_leaves(compile):
    seen = []

    def f(x, w):
        y = (x * w).relu()
        y.register_hook(lambda g: g * 2)
        return y, (x * 3).sum(0)

    g = compile(f)
    x, w = sample(4, 5, grad=True), sample(5, seed=1, grad=True)
    w.register_hook(lambda g: seen.append(g.clone()) or g + 1)
    x.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    out = g(x, w)
    out[0].register_hook(lambda g: g.clamp(-1, 1))
    out[1].retain_grad()
    yield out
    yield backward(out)
    yield x.grad, w.grad, out[1].grad, seen


def second_derivatives(compile):
    g = compile(lambda x, w: (x * w).sin() * x.exp())
    x, w = sample(3, 4, grad=True), sample(4, seed=2, grad=True)
    y = g(x, w)
    (gx,) = torch.autograd.grad(loss([y]), x, create_graph=True)
    yield gx
    yield attempt(torch.autograd.grad, gx.pow(2).sum(), [x, w])


def retained_and_accumulated(compile):
    g = compile(lambda x: (x.sin(), x * x))
    x = sample(3, 4, grad=True)
    a, b = g(x)
    yield backward([a], retain_graph=True)
    yield x.grad
    kept = x.grad
    yield backward([a, b], retain_graph=True)
    yield x.grad, kept is x.grad, kept
    with torch.no_grad():
        x.grad.zero_()
    yield backward([b])
    yield x.grad
    yield backward([b])
    yield x.grad


def gradients_set_before(compile):
    def f(x):
        return x.t() * 2

    g = compile(f)
    x = sample(4, 5, grad=True)
    x.grad = torch.ones(5, 4).t()
    held = x.grad
    out = g(x)
    yield backward([out])
    yield x.grad, x.grad is held
    x.grad = None
    yield backward([g(x)])
    yield x.grad


def partial_gradients(compile):
    g = compile(lambda a, b, c: (a * b, b + c, (a * c).detach(), a.sum() if False else a.mean()))
    a, b, c = (sample(3, 4, seed=s, grad=True) for s in range(3))
    out = g(a, b, c)
    yield out
    yield attempt(torch.autograd.grad, loss([out[1]]), [a, b, c], allow_unused=True, retain_graph=True)
    yield attempt(torch.autograd.grad, loss([out[0]]), [a, c], allow_unused=True, retain_graph=True)
    yield attempt(torch.autograd.grad, loss([out[0]]), [a, c], retain_graph=True)
    yield attempt(torch.autograd.grad, loss([out[0]]), [a, c], materialize_grads=True)


def views_made_without_gradients(compile):
    def f(x):
        with torch.no_grad():
            v = x[1:]
        w = x[:1]
        return v, w, v * x[1:]

    g = compile(f)
    x = sample(4, 3, grad=True)
    h = x * 1
    out = g(h)
    yield out
    yield attempt(out[0].mul_, 2)
    yield attempt(out[1].mul_, 2)
    yield h, backward([h]), x.grad


def a_checkpoint_with_a_mutated_buffer(compile):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))
            self.weight = nn.Parameter(sample(5, 5))

        def inner(self, x):
            self.count += 1
            return (x @ self.weight).tanh() * self.count

        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=False)

    m = Block()
    g = compile(m)
    for seed in range(2):
        x = sample(4, 5, seed=seed, grad=True)
        out = g(x)
        yield out.detach(), m.count
        yield isinstance(backward([out]), Exception), m.count


def saved_tensor_hooks_of_the_caller(compile):
    g = compile(lambda x, w: (x @ w).relu().exp())
    packed = []
    x, w = sample(4, 5, grad=True), sample(5, 3, seed=1, grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(1) or t.clone(), lambda t: t):
        out = g(x, w)
    yield out, bool(packed)
    with torch.autograd.graph.save_on_cpu():
        other = g(x, w)
    yield backward([out, other])
    yield x.grad, w.grad


def detach_and_data(compile):
    def f(x):
        y = x * 2
        y.data.add_(1)
        z = y.detach()
        z[0] = 5
        return y, z, x.data

    g = compile(f)
    x = sample(3, 4, grad=True)
    out = g(x)
    yield out
    yield backward(out)
    yield x.grad
    yield attempt(out[2].zero_), x


def requires_grad_inside(compile):
    def f(x):
        y = x.detach().clone().requires_grad_()
        z = (y * y).sum()
        (g,) = torch.autograd.grad(z, y)
        return g, y, x.requires_grad

    g = compile(f)
    for grad in (False, True):
        x = sample(3, 4, grad=grad)
        out = attempt(g, x)
        yield out


def backward_inside(compile):
    def f(x, w):
        (x * w).sum().backward()
        return w.grad * 2

    g = compile(f)
    w = sample(4, grad=True)
    for seed in range(3):
        yield g(sample(3, 4, seed=seed), w)
        yield w.grad


def anomalous_dtypes_of_gradients(compile):
    def f(x, w):
        return (x.double() * w.half()).float() + x.to(torch.bfloat16).float()

    g = compile(f)
    x, w = sample(3, 4, grad=True), sample(4, seed=1, grad=True)
    out = g(x, w)
    yield out, backward([out]), x.grad, w.grad


def a_result_that_is_a_leaf(compile):
    p = nn.Parameter(sample(4))
    g = compile(lambda x: (p, x, x * p, x.view(-1), p.detach()))
    x = sample(4, seed=1, grad=True)
    out = g(x)
    yield out, out[0] is p, out[1] is x
    yield backward(out), p.grad, x.grad


def inplace_on_views_of_leaf(compile):
    def f(x, y):
        y[0].mul_(x[0])
        y.t()[1].add_(1)
        return y

    g = compile(f)
    x = sample(3, 3, grad=True)
    y = sample(3, 3, seed=1)
    out = g(x, y)
    yield out, y, out is y, y.requires_grad
    yield backward([y]), x.grad
    yield attempt(g, x, sample(3, 3, grad=True))


def double_use_of_one_leaf(compile):
    g = compile(lambda a, b: (a * b).sum() + a.sum())
    x = sample(4, grad=True)
    yield backward([g(x, x)]), x.grad
    x = sample(4, grad=True)
    yield backward([g(x, x.view(4))]), x.grad
    y = x.detach()
    yield backward([g(x, y)]), x.grad, y.grad


def gradient_through_an_index_put(compile):
    def f(x, i, v):
        y = x.clone()
        y[i] = v
        z = y.index_put((i,), v * 2, accumulate=True)
        return y, z, z.masked_scatter(z > 0, v.flatten().repeat(4))

    g = compile(f)
    x, v = sample(6, 3, grad=True), sample(3, 3, seed=1, grad=True)
    out = g(x, torch.tensor([0, 0, -1]), v)
    yield out[1:], backward(out[1:]), x.grad, v.grad


def max_ties_and_sort(compile):
    def f(x):
        return x.max(), x.amax(0), x.max(1).values, x.median(), x.topk(2).values, x.sort(stable=True).values, x.norm()

    g = compile(f)
    for v in (0.0, 1.0):
        x = torch.full((4, 5), v, requires_grad=True)
        out = g(x)
        yield out, backward(out), x.grad


def embedding_sparse_gradient(compile):
    e = nn.Embedding(7, 3, sparse=True, padding_idx=1)
    with torch.no_grad():
        e.weight.copy_(sample(7, 3))
    g = compile(lambda i: e(i) * 2)
    out = attempt(g, torch.tensor([0, 1, 3, 3]))
    yield out if isinstance(out, Exception) else out.detach()
    yield backward([out])
    yield e.weight.grad.is_sparse, e.weight.grad.to_dense()


def clip_and_accumulate(compile):
    m = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        for n, p in enumerate(m.parameters()):
            p.copy_(sample(*p.shape, seed=n))
    g = compile(m)
    for seed in range(2):
        yield backward([g(sample(3, 4, seed=seed))])
    yield nn.utils.clip_grad_norm_(m.parameters(), 1.0)
    yield [p.grad for p in m.parameters()]


def functional_transforms(compile):
    g = compile(lambda x: (x.sin() * x).sum())
    x = sample(5)
    yield attempt(torch.func.grad(g), x)
    yield attempt(torch.func.vmap(compile(lambda x: x.cumsum(0) * 2)), sample(3, 4))
    yield attempt(torch.func.jvp, g, (x,), (torch.ones(5),))
    yield attempt(torch.func.hessian(g), sample(3))
    yield attempt(torch.func.jacrev(compile(lambda x: x * x.sum())), sample(3))


def forward_mode(compile):
    import torch.autograd.forward_ad as fwad

    g = compile(lambda x: x.sin() * 2)
    with fwad.dual_level():
        x = fwad.make_dual(sample(4), torch.ones(4))
        out = attempt(g, x)
        yield out if isinstance(out, Exception) else tuple(fwad.unpack_dual(out))


def a_loss_with_ignored_targets(compile):
    g = compile(
        lambda x, t: (
            F.cross_entropy(x, t, ignore_index=-1, label_smoothing=0.1),
            F.cross_entropy(x, t, reduction="none", ignore_index=-1),
        )
    )
    x = sample(4, 5, grad=True)
    for t in ([0, -1, 4, 2], [-1, -1, -1, -1]):
        out = g(x, torch.tensor(t))
        yield out, backward(out), x.grad
    yield isinstance(attempt(g, x, torch.tensor([0, 5, 1, 2])), Exception)
