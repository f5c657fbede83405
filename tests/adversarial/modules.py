"""Modules that change from call to call: what each program yields is compared with eager."""

from __future__ import annotations

import copy

import torch
from torch import nn

from lamina.testing.fuzz import attempt, backward, sample


def compiled_modules_copied_and_pickled(compile):
    m = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
    with torch.no_grad():
        for n, p in enumerate(m.parameters()):
            p.copy_(sample(*p.shape, seed=n))
    g = compile(m)
    x = sample(2, 4)
    yield g(x)
    other = copy.deepcopy(g)
    with torch.no_grad():
        other[0].weight.zero_()
    yield other(x), g(x), m(x)
    yield backward([other(x), g(x)])
    yield [p.grad for p in other.parameters()], [p.grad for p in m.parameters()]
    shallow = copy.copy(g)
    shallow.train(False)
    yield g.training, m.training, shallow(x)
    yield list(g.state_dict()), [n for n, _ in g.named_modules()]


def buffers_and_parameters_changed(compile):
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(sample(4))
            self.scale = 2.0

        def forward(self, x):
            y = x * self.w * self.scale
            if hasattr(self, "shift"):
                y = y + self.shift
            return y

    m = M()
    g = compile(m)
    x = sample(3, 4, seed=1)
    yield g(x)
    m.register_buffer("shift", sample(4, seed=2))
    yield g(x)
    m.shift = None
    yield attempt(g, x)
    del m.shift
    yield g(x)
    m.w = nn.Parameter(sample(4, seed=5))
    yield g(x), backward([g(x)]), m.w.grad
    m.scale = sample(4, seed=3)
    yield g(x)
    m.w.requires_grad_(False)
    yield g(x)
    m.w.data = sample(4, dtype=torch.float64, seed=4)
    yield g(x)
    g.scale = 5
    yield g(x), m.scale
    m.forward = lambda x: x * 0
    yield g(x), m(x)
    del m.forward
    yield g(x)
    del m.w
    yield attempt(g, x)
    nn.init.constant_(g._parameters.setdefault("w", nn.Parameter(torch.empty(4))), 3.0)
    yield g(x)


def hooks_added_and_removed(compile):
    m = nn.Linear(3, 2)
    with torch.no_grad():
        m.weight.copy_(sample(2, 3))
        m.bias.zero_()
    g = compile(m)
    x = sample(4, 3)
    yield g(x)
    seen = []
    one = m.register_forward_hook(lambda mod, a, out: out * 2)
    yield g(x)
    two = m.register_forward_pre_hook(lambda mod, a: (seen.append(a[0].sum().item()), (a[0] + 1,))[1])
    yield g(x), seen
    one.remove()
    yield g(x), seen
    two.remove()
    yield g(x), seen
    three = m.register_full_backward_hook(lambda mod, gi, go: seen.append(len(gi)))
    yield backward([g(x)]), m.weight.grad, seen
    three.remove()
    h = nn.modules.module.register_module_forward_hook(lambda mod, a, out: seen.append(type(mod).__name__))
    yield g(x), seen
    h.remove()
    yield g(x), seen


def state_dicts_loaded(compile):
    m = nn.BatchNorm2d(3)
    g = compile(m)
    x = sample(2, 3, 2, 2)
    yield g(x), m.running_mean
    saved = {k: v.clone() for k, v in g.state_dict().items()}
    g(x * 2)
    yield m.running_var
    yield str(g.load_state_dict(saved)), m.running_var, g.eval()(x)
    saved["running_mean"], saved["running_var"] = sample(3), sample(3).abs() + 1  # no rounding of float32 in float64
    m.load_state_dict(saved, assign=True)
    yield g(x), m.running_mean is saved["running_mean"]
    m.double()
    yield g(x.double()), attempt(g, x)
    m.momentum = None
    g.train()
    yield g(x.double()), m.running_mean
    m.track_running_stats = False
    m.running_mean = m.running_var = None
    yield g(x.double()), g.eval()(x.double())
