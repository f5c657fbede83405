"""Entire programs that take tensors row by row, resample them to sizes that vary, train, or compute with complex
numbers.
"""

from __future__ import annotations

from lamina.testing.fuzz.whole import Whole

__all__ = ["STEPWISE"]

STEPWISE: dict[str, Whole] = {
    "iterated": Whole(
        0.7,
        "iteration over tensors, ranges and generators, with writes to what is taken",
        """
def rows(y, k):
    for number, row in enumerate(y):
        yield row * number<sent>


def f(x, k):
    y = <made>
    <taken>
    return <result>


def program(compile):
    g = compile(f<how>)
    for size, k in <calls>:
        x = sample(size, 4, seed=size, grad=<grad>)
        out = attempt(g, x, k)
        yield x, out
        yield backward(out), x.grad
""",
        {
            "sent": ("", " + k"),
            "made": ("x * 1", "x * 1", "x.exp().clone()", "x.detach() * 2", "x[:, ::2] * 1", "x.t().contiguous()"),
            "taken": (
                "for t in y: t.add_(1)",
                "for t, n in zip(y, range(k)): t.mul_(n)",
                "t, *u = y; t.mul_(k)",
                "t = list(y)[k % 2]; t.zero_()",
                "[t.add_(i) for i, t in enumerate(y.detach())]",
                "y = torch.stack([*rows(y, k)])",
                "y = torch.stack(list(y)[k:] + list(y)[:k])",
                "y = sum(rows(y, k)) + y",
                "for i in range(k, y.shape[0]): y[i].mul_(2)",
                "for i in range(y.shape[0] - 1, -1, -k or -1): y = y + y[i]",
                "y = y + len(str(k)) + int(f'{k}1')",
                "y = torch.cat([t[None] * n for t, n in zip(reversed(list(y)), range(9, 0, -2))])",
                "u = iter(y); y = y + next(u) * next(u)",
                "y = max(y, key=lambda t: t.detach().sum().item()) + y",
                "y = y + [*range(k, 7)][0] + sum(range(k)) + len(range(k, 9, 2))",
            ),
            "result": ("y", "y * y, k", "y.sum()", "[t * 2 for t in y]", "dict(enumerate(y))"),
            "how": ("", "", ", dynamic=True"),
            "calls": ("((3, 1), (3, 2), (4, 0))", "((2, 0), (5, 3))", "((4, 2), (4, 3), (4, 1))"),
            "grad": ("True", "True", "False"),
        },
    ),
    "resampled": Whole(
        0.5,
        "resampling to sizes and by factors that vary, beside infinities and NaN",
        """
def f(x, n):
    return <before>F.interpolate(x, <size>, mode=<mode>)<after>


def program(compile):
    g = compile(f<how>)
    for rows, n in <calls>:
        x = sample(2, 3, rows, rows + 1, seed=rows)
        <spoil>
        x.requires_grad_(<grad>)
        out = attempt(g, x, n)
        yield out, backward(out), x.grad
""",
        {
            "before": ("", "2 * ", "(x * 0.5).sum() + "),
            "size": ("size=(n, n)", "size=n", "size=(n, 5)", "scale_factor=n / 4", "scale_factor=2"),
            "mode": (
                "'bilinear'",
                "'bilinear', align_corners=True",
                "'nearest'",
                "'nearest-exact'",
                "'area'",
            ),
            "after": ("", ".relu()", ".amax(1)", "[..., 1:]"),
            "how": ("", ", dynamic=True"),
            "calls": ("((4, 7), (4, 4), (6, 3))", "((5, 10), (8, 4), (3, 9))", "((4, 8), (6, 6))"),
            "spoil": ("", "x[0, 0, 1] = torch.inf", "x[1, 2, 0, 0] = torch.nan", "x[0, 1, -1, -1] = -torch.inf"),
            "grad": ("True", "False"),
        },
    ),
    "trained": Whole(
        0.7,
        "steps of optimizers, inside what is compiled or outside",
        """
def program(compile):
    net = nn.Sequential(nn.Linear(4, 3), <layer>, nn.Linear(3, 2))
    with torch.no_grad():
        for n, p in enumerate(net.parameters()):
            p.copy_(sample(*p.shape, seed=n))
    opt = <optimizer>

    def step(x):
        opt.zero_grad(<zero>)
        y = <loss>
        y.backward()
        <between>
        opt.step()
        return y.detach()

    <compiled>
    for n in range(3):
        x = sample(5, 4, seed=n)
        yield attempt(step, x)
        <change>
        yield [p.detach().clone() for p in net.parameters()]
""",
        {
            "layer": ("nn.Tanh()", "nn.ReLU()", "nn.LayerNorm(3)", "nn.Sigmoid()"),
            "optimizer": (
                "torch.optim.SGD(net.parameters(), lr=0.125)",
                "torch.optim.SGD(net.parameters(), lr=0.125, momentum=0.5, nesterov=True)",
                "torch.optim.SGD([{'params': net[0].parameters(), 'lr': 0.25}, dict(params=net[2:].parameters())], 1)",
                "torch.optim.Adam(net.parameters(), lr=0.125)",
                "torch.optim.AdamW(net.parameters(), lr=0.125, amsgrad=True)",
                "torch.optim.RMSprop(net.parameters(), lr=0.125, centered=True)",
                "torch.optim.Adagrad(net.parameters(), lr=0.125)",
                "torch.optim.NAdam(net.parameters(), lr=0.125)",
            ),
            "zero": ("", "set_to_none=False"),
            "loss": ("(net(x) ** 2).mean()", "net(x).sigmoid().sum()", "F.mse_loss(net(x), x[:, :2])"),
            "between": (
                "",
                "",
                "torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)",
                "torch.nn.utils.clip_grad_value_(net.parameters(), 0.25)",
            ),
            "compiled": ("step = compile(step)", "net = compile(net)", "opt.step = compile(opt.step)"),
            "change": (
                "",
                "opt.param_groups[0]['lr'] *= 0.5",
                "net[0].weight.requires_grad_(False)",
                "opt.zero_grad()",
            ),
        },
    ),
    "complex": Whole(
        0.5,
        "complex numbers, their parts and their gradients",
        """
def f(x, y):
    z = <made>
    <step>
    return <result>


def program(compile):
    g = compile(f<how>)
    for size in (3, 3, 5):
        x, y = sample(2, size, seed=1, dtype=<dtype>, grad=True), sample(2, size, seed=2, grad=True)
        out = attempt(g, x, y)
        yield out, backward(out), x.grad, y.grad
""",
        {
            "made": (
                "torch.complex(x.real, y)",
                "x * y",
                "torch.conj_physical(x) * 2j",
                "torch.polar(y.abs(), y) + x",
                "x + 1j * y",
                "torch.view_as_complex(torch.stack([y, y.flip(0)], -1)) * x",
            ),
            "step": (
                "",
                "z = z @ z.mH",
                "z = z.clone(); z.real.mul_(2)",
                "z = z.clone(); z.imag[0] = 1",
                "z = torch.fft.fft(z)",
                "z = z * z.abs()",
                "z = torch.view_as_real(z).sum(0)",
                "z = z.sum(0).conj()",
                "z = torch.where(y > 0, z, z.conj())",
                "z = torch.cat([z, z.resolve_conj() + 1])",
            ),
            "result": (
                "z",
                "z.real, z.imag",
                "z.abs()",
                "z * z.conj()",
                "z.sum()",
                "z.angle() if z.is_complex() else z",
            ),
            "how": ("", "", ", dynamic=True"),
            "dtype": ("torch.complex64", "torch.complex64", "torch.complex128"),
        },
    ),
}
