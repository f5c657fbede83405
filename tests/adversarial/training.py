"""Programs of training, random numbers, modes, subclasses and transforms: what each yields is compared with eager."""

from __future__ import annotations

import contextlib

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from lamina.testing.fuzz import attempt, backward, pause, sample


def _model(*sizes):
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [nn.Linear(a, b), nn.Tanh()]
    m = nn.Sequential(*layers)
    with torch.no_grad():
        for n, p in enumerate(m.parameters()):
            p.copy_(sample(*p.shape, seed=n) / 4)
    return m


def optimizer_steps_inside(compile):
    for make in (
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1, maximize=True),
    ):
        m = _model(4, 3)
        opt = make(m.parameters())

        def step(x):
            opt.zero_grad()
            loss = m(x).sum()
            loss.backward()
            opt.step()
            return loss.detach()

        g = compile(step)
        for seed in range(3):
            yield g(sample(2, 4, seed=seed))
            yield [p.grad for p in m.parameters()], list(m.parameters())
            opt.param_groups[0]["lr"] *= 0.5
        yield [s.get("momentum_buffer") for s in opt.state.values()]


def compiled_optimizer_with_late_parameters(compile):
    m = _model(3, 3)
    opt = torch.optim.SGD(m[0].parameters(), lr=0.125, momentum=0.5)
    g = compile(lambda: opt.step())
    extra = nn.Parameter(sample(3, seed=9))
    for n in range(4):
        opt.zero_grad()
        y = m(sample(2, 3, seed=n)).sum() + (extra * 2).sum()
        y.backward()
        if n == 2:
            opt.add_param_group({"params": [extra], "lr": 1.0})
        if n == 3:
            m[0].bias.grad = None
        g()
        yield list(m.parameters()), extra


def moving_average_of_weights(compile):
    m, avg = _model(3, 3), _model(3, 3)

    @torch.no_grad()
    def update(decay):
        for a, b in zip(avg.parameters(), m.parameters()):
            a.mul_(decay).add_(b, alpha=1 - decay)
        torch._foreach_lerp_(list(avg.parameters()), list(m.parameters()), 0.5)

    g = compile(update)
    for d in (0.5, 0.25, 0.75, 1):
        g(d)
        yield list(avg.parameters())


def random_numbers_in_order(compile):
    def f(x):
        a = torch.rand(3)
        y = x * a
        pause()
        b = torch.randn(3)
        i = torch.randint(0, 10, (3,))
        p = torch.randperm(4)
        return y + b, i, p, torch.bernoulli(torch.full((3,), 0.5)), torch.empty(3).uniform_(), torch.rand_like(x)

    g = compile(f, options={"numerics": "eager"})
    torch.manual_seed(3)
    for n in range(3):
        yield g(sample(3, seed=n))
        yield torch.rand(2)
    state = torch.get_rng_state()
    one = g(sample(3))
    torch.set_rng_state(state)
    two = g(sample(3))
    yield one, two
    with torch.random.fork_rng():
        yield g(sample(3))
    yield torch.rand(1)


def generators_as_random_state(compile):
    def f(x, gen):
        return x + torch.rand(3, generator=gen), torch.randint(5, (2,), generator=gen)

    g = compile(f)
    gen = torch.Generator().manual_seed(4)
    for _ in range(2):
        yield attempt(g, sample(3), gen)
    yield torch.rand(1, generator=gen)


def dropout_and_train_mode(compile):
    m = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(3), nn.Dropout(0.0))
    g = compile(m, options={"numerics": "eager"})
    torch.manual_seed(0)
    for mode in (True, False, True):
        g.train(mode)
        x = sample(4, 3, grad=True)
        out = g(x)
        yield out, m[1].running_mean, m[1].num_batches_tracked
        yield backward(out), x.grad
        m[1].weight.grad = None


def autocast_with_cached_casts(compile):
    m = _model(4, 4, 2)
    g = compile(m)
    h = compile(
        lambda x, w: (
            x @ w,
            (x @ w).float() + x.sum(),
            torch.cat([x, (x @ w)], 0),
            x.sum(),
            (x @ w).softmax(-1),
            F.mse_loss(x @ w, x),
        )
    )
    for dtype in (torch.bfloat16, None, torch.bfloat16):
        with torch.autocast("cpu", dtype=dtype) if dtype else contextlib.nullcontext():
            x = sample(3, 4, grad=True)
            out = g(x)
            yield out.dtype, h(x, sample(4, 4, seed=2))
            with torch.autocast("cpu", enabled=False):
                yield h(x, sample(4, 4, seed=2))
        yield backward([out]), x.grad.dtype, [p.grad.dtype for p in m.parameters()]


def parametrized_and_normed_weights(compile):
    class Symmetric(nn.Module):
        def forward(self, w):
            return w.triu() + w.triu(1).t()

    m = _model(3, 3)
    parametrize.register_parametrization(m[0], "weight", Symmetric())
    g = compile(m)
    x = sample(2, 3)
    yield g(x), backward([g(x)]), [p.grad for p in m.parameters()]
    with parametrize.cached():
        yield g(x), g(x)
    m[0].weight = torch.eye(3)
    yield g(x)
    parametrize.remove_parametrizations(m[0], "weight")
    yield g(x), [n for n, _ in m.named_parameters()]
    n = parametrizations.weight_norm(nn.Linear(3, 2, bias=False))
    with torch.no_grad():
        n.parametrizations.weight.original0.fill_(2.0)
        n.parametrizations.weight.original1.copy_(sample(2, 3) + 0.125)
    k = compile(n)
    yield k(x), backward([k(x)]), [p.grad for p in n.parameters()]


def tied_weights(compile):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.e = nn.Embedding(5, 3)
            self.o = nn.Linear(3, 5, bias=False)
            with torch.no_grad():
                self.e.weight.copy_(sample(5, 3))
            self.o.weight = self.e.weight

        def forward(self, i):
            return self.o(self.e(i).tanh())

    m = Tied()
    g = compile(m)
    for n in range(3):
        out = g(torch.tensor([0, 4, n]))
        yield out, backward([out]), m.e.weight.grad
        if n == 1:
            m.o.weight = nn.Parameter(sample(5, 3, seed=3))
    yield m.o.weight.grad


def transforms_over_compiled(compile):
    m = _model(3, 2)
    params = dict(m.named_parameters())
    g = compile(lambda p, x: torch.func.functional_call(m, p, (x,)).sum())
    x = sample(4, 3)
    yield g(params, x)
    yield attempt(torch.func.grad(g), params, x)
    h = compile(
        torch.func.vmap(
            torch.func.grad(lambda p, x: torch.func.functional_call(m, p, (x,)).pow(2).sum()), in_dims=(None, 0)
        )
    )
    yield attempt(h, params, x)
    yield attempt(compile(torch.func.jacfwd(lambda x: x.sin() * x.sum())), sample(3))
    yield attempt(compile(torch.func.hessian(lambda x: (x * x * x).sum())), sample(3))
    yield attempt(
        compile(torch.vmap(lambda a, b: (a * b, a[0]), in_dims=(0, 1), out_dims=(1, 0))), sample(3, 2), sample(2, 3)
    )
    yield attempt(compile(lambda x: torch.func.vjp(torch.sin, x)[1](x * 2)), sample(3))
    yield attempt(compile(lambda x: torch.func.linearize(lambda y: y * y, x)[1](x)), sample(3))
    stacked, buffers = torch.func.stack_module_state([_model(3, 2), _model(3, 2)])
    yield attempt(compile(lambda p, x: torch.vmap(lambda q: torch.func.functional_call(m, q, (x,)))(p)), stacked, x)


def recurrent_modules(compile):
    for make in (nn.LSTM, nn.GRU, nn.RNN):
        torch.manual_seed(0)
        m = make(3, 4, num_layers=2, bidirectional=True, batch_first=True)
        g = compile(m)
        for n in (2, 3):
            x = sample(n, 5, 3, grad=True)
            out = g(x)
            yield out[0], backward([out[0]]), x.grad
    cell = nn.LSTMCell(3, 4)
    torch.manual_seed(1)
    k = compile(cell)
    h = None
    for n in range(3):
        h = k(sample(2, 3, seed=n), h)
        yield h


def a_network_against_another(compile):
    gen, dis = _model(3, 4), _model(4, 1)
    g, d = compile(gen), compile(dis)
    og, od = torch.optim.SGD(gen.parameters(), 0.125), torch.optim.SGD(dis.parameters(), 0.125)
    for n in range(2):
        fake = g(sample(2, 3, seed=n))
        loss_d = d(sample(2, 4, seed=n)).mean() - d(fake.detach()).mean()
        od.zero_grad()
        loss_d.backward()
        od.step()
        loss_g = -d(fake).mean()
        og.zero_grad()
        loss_g.backward()
        og.step()
        yield loss_d, loss_g, [p.grad for p in [*gen.parameters(), *dis.parameters()]]


def a_penalty_of_gradients(compile):
    m = _model(3, 4, 1)
    g = compile(m)
    for n in range(2):
        x = sample(2, 3, seed=n, grad=True)
        y = g(x)
        (gx,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        loss = (gx.norm(dim=1) - 1).pow(2).mean() + y.sum()
        yield gx, loss, attempt(loss.backward), [p.grad for p in m.parameters()], x.grad


def many_recompiles(compile):
    g = compile(lambda x, k: x * len(k) + (k == "7"))
    for n in range(12):
        yield g(sample(n % 3 + 1, seed=n), str(n) * n)
