"""Entire programs of what models are made of: attention, blocks, experts, modules whose class changes."""

from __future__ import annotations

from lamina.testing.fuzz.whole import Whole

__all__ = ["MODELS"]

MODELS: dict[str, Whole] = {
    "attention": Whole(
        0.5,
        "attention by hand: scores masked, filled, scaled in any order",
        """
N = <keys>


def f(q, k, v):
    hidden = <mask>
    s = q @ k.mT
    <first>
    <second>
    <third>
    return s.softmax(-1) @ v


def program(compile):
    g = compile(f)
    q, k, v = (sample(1, 1, N, 16, seed=n)<large> for n in range(3))
    <spoil>
    with <mode>:
        out = attempt(g, q, k, v)
    yield out, backward(out), q.grad
""",
        {
            "keys": ("8", "64", "520"),
            "mask": (
                "torch.ones(N, N).triu(1).bool()",
                "torch.arange(N) > N - 3",
                "torch.ones(N + 2, N + 2).triu(1).bool()[:N, :N]",
            ),
            "hide": ("-1e4", "-1e9", "-torch.inf", "-100.0"),
            "first": (
                "s = s.masked_fill(hidden, <hide>)",
                "s = s + torch.full((N, N), <hide>).triu(1)",
                "s = torch.where(hidden, <hide>, s)",
                "s = s * 0.125",
            ),
            "second": ("", "s = s / 1e4", "s = s / 8.0", "s = s * 100.0", "s = s.masked_fill(hidden, <hide>)"),
            "third": ("", "", "s = s / 1e4", "s = torch.where(hidden, <hide>, s)"),
            "large": ("", "", " * 100"),
            "spoil": ("", "", "", "v[:, :, -1] = torch.nan", "v[:, :, -1] = torch.inf", "q.requires_grad_()"),
            "mode": ("torch.no_grad()", "torch.no_grad()", "torch.enable_grad()"),
        },
    ),
    "library": Whole(
        0.3,
        "the library's attention with masks that are known while compiling",
        """
N = <keys>


def f(q, k, v):
    hidden = <mask>
    return F.scaled_dot_product_attention(q, k, v, attn_mask=<given>)


def program(compile):
    g = compile(f)
    q, k, v = (sample(1, 2, N, 16, seed=n)<large> for n in range(3))
    <spoil>
    out = attempt(g, q, k, v)
    yield out, backward(out), q.grad
""",
        {
            "keys": ("8", "64"),
            "mask": ("torch.ones(N, N).triu(1).bool()", "torch.ones(N, N).triu(N).bool()", "torch.arange(N) > N - 3"),
            "hide": ("-1e4", "-1e9", "-torch.inf", "torch.finfo(torch.float32).min"),
            "given": (
                "torch.zeros(N, N).masked_fill(hidden, <hide>)",
                "torch.where(hidden, <hide>, torch.zeros(N, N))",
                "~hidden.expand(N, N)",
            ),
            "large": ("", "", " * 100"),
            "spoil": ("", "", "v[:, :, -1] = torch.nan", "k[:, :, -1] = torch.inf", "q.requires_grad_()"),
        },
    ),
    "module_class": Whole(
        0.7,
        "compiled modules that are changed from outside",
        """
class Twice(nn.Module):
    def forward(self, x):
        return x * 2


class Net(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)
        self.factor = 2.0
        self.weight = nn.Parameter(sample(3, 4))
        self.bias = nn.Parameter(sample(3, seed=2))

    def forward(self, x):
        return F.linear(x, self.weight, self.bias) * self.factor


def program(compile):
    net = compile(Net())
    x = sample(5, 4, seed=1)
    <before>
    <change>
    out = attempt(net, x)
    yield out, backward(out)
    yield [p.grad for p in net.parameters()], net.factor
""",
        {
            "before": ("", "yield attempt(net, x)"),
            "change": (
                "net.__class__ = type('Wrapped', (net.__class__,), {})",
                "torch.nn.utils.parametrizations.weight_norm(net, 'weight')",
                "torch.nn.utils.parametrize.register_parametrization(net, 'weight', Twice())",
                "net.weight = nn.Parameter(sample(3, 4, seed=9))",
                "net.factor = 3.0",
                "net.register_forward_hook(lambda m, a, out: out + 1)",
                "net.weight.requires_grad_(False)",
                "net.load_state_dict({k: v + 1 for k, v in net.state_dict().items()})",
                "net.register_forward_pre_hook(lambda m, a: (a[0] + 1,))",
                "net.weight.data = net.weight.data * 2",
            ),
        },
    ),
    "router": Whole(
        0.5,
        "experts and depths chosen by the data",
        """
def f(x, ws, b):
    gate = <gate>
    out = torch.zeros_like(x)
    <body>
    return out


def program(compile):
    g = compile(f)
    ws, b = [sample(4, 4, seed=n, grad=True) for n in range(2)], sample(4, seed=6, grad=True)
    for call in range(<calls>):
        x = sample(<rows>, 4, seed=call<grad>)
        out = attempt(g, x, ws, b)
        <shown>
""",
        {
            "calls": ("1", "2", "3"),
            "gate": ("torch.addmm(b, x, ws[1])[:, :2]", "F.linear(x, ws[1], b)", "(x @ ws[0])[:, 1:3]"),
            "rows": ("5", "6"),
            "grad": ("", ", grad=True"),
            "body": (
                """for n, w in enumerate(ws):
        at = gate.argmax(-1) == n
        out[at] = torch.addmm(b, x[at], w)""",
                """for n, w in enumerate(ws):
        at = torch.where(gate.argmax(-1) == n)[0]
        out = out.index_add(0, at, x[at] @ w + b)""",
                """out = x
    for n in range(int(gate.sum(0).argmax()) + 1):
        out = torch.addmm(b, out, ws[n % 2])""",
                """out = torch.addmm(b, x, ws[0]) if gate.sum() > 0 else torch.addmm(b, x, ws[1]).relu()""",
                """for row, w in zip(gate.argmax(-1).tolist(), ws):
        out = out + F.linear(x, w, b) * row""",
            ),
            "shown": ("yield out, backward(out), b.grad", "yield out", "yield out.detach() if call else out"),
        },
    ),
    "block": Whole(
        0.4,
        "a transformer block that slices its mask from a larger buffer",
        """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Parameter(sample(24, 8))
        self.drop = nn.Dropout(<rate>)
        self.register_buffer('mask', torch.tril(torch.ones(1024, 1024)).view(1, 1, 1024, 1024))

    def forward(self, x):
        n, t, c = x.shape
        q, k, v = (p.view(n, t, 2, 4).transpose(1, 2) for p in F.linear(x, self.qkv).split(8, -1))
        a = (q @ k.transpose(-2, -1)) * <scale>
        a = a.masked_fill(self.mask[:, :, :t, :t] == 0, <hide>).softmax(-1)
        a = <drop>
        return (a @ v).transpose(1, 2).contiguous().view(n, t, c)


def program(compile):
    net = compile(Block().<train>()<options>)
    for t in <lengths>:
        with <mode>:
            out = attempt(net, sample(2, t, 8) / 8)
        yield out, backward(out), net.qkv.grad
""",
        {
            # Masks are compared where eager's random numbers are asked for.
            "rate": ("0.0",),
            "options": ("", "", ', options={"numerics": "eager"}'),
            "scale": ("0.5", "(1.0 / k.size(-1) ** 0.5)"),
            "hide": ("float('-inf')", "-1e9"),
            "drop": ("F.dropout(a, <rate>, self.training)", "self.drop(a)"),
            "train": ("train", "train", "eval"),
            "lengths": ("(6,)", "(6, 7, 5)", "(600,)", "(1024,)"),
            "mode": ("torch.no_grad()", "torch.enable_grad()", "torch.inference_mode()"),
        },
    ),
}
