"""Programs that are written as a whole: several compiled functions, modules and their classes, rules, attention."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["WHOLE", "Whole"]

_HEADER = """\
import torch
import torch.nn.functional as F
from torch import nn

from lamina.testing.fuzz import attempt, backward, loss, pause, sample, unbacked

"""

_HOLE = re.compile(r"<(\w+)>")

_CHAINED = (
    *("", ".view(-1, 6)", ".view(8, -1)", ".view(-1, 16)", ".view(3, -1)", ".view(2, -1, 4)", ".flatten()", ".mT"),
    *(".reshape(-1, 12)", ".reshape(4, 3, -1)", ".unflatten(0, (2, -1))", ".flatten(0, 1)", ".transpose(0, -1)"),
    *("[..., 1:3]", "[::2]", ".unfold(0, 2, 2)", ".movedim(0, -1)", "[:, ::3]"),
)
"""Views whose shapes need not divide each other; some do not exist, in eager either."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A program with holes ``<name>`` and what may stand there; what is chosen may have holes itself."""

    weight: float
    what: str
    text: str
    choices: Mapping[str, tuple[str, ...]]

    def write(self, rng: random.Random) -> str:
        """The program's text. A hole of one name is filled alike everywhere; a line that becomes empty goes."""
        chosen = {name: rng.choice(values) for name, values in self.choices.items()}
        text = self.text
        while _HOLE.search(text):
            text = "\n".join(
                line
                for raw in text.split("\n")
                for line in [_HOLE.sub(lambda hole: chosen[hole.group(1)], raw)]
                if line.strip() or not raw.strip()
            )
        return _HEADER + text


WHOLE: dict[str, Whole] = {
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
    "losses": Whole(
        0.7,
        "two losses over one tensor, one of them detached",
        """
def gen(z, w):
    return <made>


def dis(x, w):
    return <judged>


def program(compile):
    make, judge = <maker>, compile(dis)
    w, u = sample(5, grad=True), sample(5, seed=3, grad=True)
    e = make(sample(4, 5), w)
    d = attempt(judge, e, u)
    yield e, d
    <order>
    yield w.grad, u.grad
""",
        {
            "made": ("z * w", "(z * w).tanh()", "(z + w).exp()"),
            "judged": (
                "x.detach() * 2 + w",
                "(x.detach() * w).sigmoid()",
                "F.linear(x.detach(), w[None])",
                "(x * 1).detach() * w",
            ),
            "maker": ("compile(gen)", "gen"),
            "order": (
                "yield backward(e), backward(d)",
                "yield backward(d), backward(e)",
                "yield backward(d, retain_graph=True), backward(e), backward(d)",
            ),
        },
    ),
    "turns": Whole(
        0.5,
        "results of one function differentiated one after another, again, or with the graph retained",
        """
def f(x, y):
    t = <trunk>
    <write>
    return <one>, <other>, <third>


def program(compile):
    g = compile(f<how>)
    for size in (3, 5):
        x, y = sample(2, size, seed=1, grad=True), sample(2, size, seed=2, grad=True)
        out = attempt(g, <given>)
        yield out
        yield backward(out[<first>]<keep>), backward(out[<second>]), backward(out[<last>])
""",
        {
            "trunk": ("x + y", "(x * y).tanh()", "x * 2", "x.detach() * y"),
            "given": ("x, y", "x * 2, y", "x.exp(), y.exp()"),
            "write": ("", "", "y.detach()[0] = 1", "y.data.mul_(2)"),
            "one": ("t.sin()", "t[0]", "x - 1", "x * 2"),
            "other": ("y.exp()", "t.t()", "t.cos()", "y / 4"),
            "third": ("x + y", "t", "x.exp()"),
            "how": ("", ", dynamic=True", ", dynamic=False"),
            "first": ("0", "1", "2", ":2"),
            "second": ("0", "1", "2", "1:"),
            "last": ("0", "1", "2", ":"),
            "keep": ("", "", ", retain_graph=True"),
        },
    ),
    "chains": Whole(
        0.4,
        "chains of views that are written to, in a function and when it has returned them",
        """
def f(x):
    v = <base>
    a = v<first><second>
    b = a<third><fourth>
    c = v<other>
    <write>
    return <shown>


def program(compile):
    g = compile(f<how>)
    for size in (8, 4):
        x, w = sample(size, 6, 4<grad>), sample(grad=True)
        out = attempt(g, x)
        yield x, out, backward(out), x.grad
        yield attempt(lambda: out[0].detach().add_(1)), x, out
        yield attempt(lambda: x.detach().mul_(2)), x, out
        yield attempt(lambda: out[<one>].mul_(w)), out, backward(out[<other_one>]), w.grad
""",
        {
            "base": ("x", "x", "x * 2", "x * 2", "x[2:]", "x.transpose(0, 1)", "x[:, 1:5] + 1", "x[..., ::2]"),
            **dict.fromkeys(("first", "second", "third", "fourth", "other"), _CHAINED),
            "write": ("", "", "b.mul_(2)", "a.mul_(3)", "v.add_(1)", "c.neg_()"),
            "shown": ("b, c", "b, c, v", "b, b.exp().sum()", "a, b, c.sum(0)", "v, c, c.sum()", "a.detach(), b, v"),
            "how": ("", ", dynamic=True", ", dynamic=False"),
            "grad": ("", "", ", grad=True"),
            "one": ("0", "1"),
            "other_one": ("0", "1"),
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
    "shared_code": Whole(
        0.4,
        "functions of one code object that close over different functions",
        """
def make(op):
    def f(x, y):
        return op(x, y) * 2

    return f


def program(compile):
    x, y = sample(4), sample(4, seed=2)
    for op in (<ops>):
        yield attempt(compile(make(op)), x, y)
""",
        {
            "ops": (
                "torch.Tensor.__radd__, torch.fmax",
                "torch.fmax, torch.Tensor.__radd__",
                "torch.maximum, torch.minimum",
                "torch.Tensor.__rsub__, torch.sub",
                "torch.add, torch.Tensor.__rsub__",
                "torch.Tensor.add, torch.Tensor.mul",
                "torch.Tensor.__mul__, torch.Tensor.__add__, torch.Tensor.__mul__",
                "torch.ops.aten.add, torch.ops.aten.mul",
                "torch.Tensor.__lt__, torch.Tensor.__gt__",
                "torch.Tensor.__rpow__, torch.Tensor.__rmul__",
            ),
        },
    ),
    "user_rule": Whole(
        0.4,
        "rewrite rules of the user's whose right side may have no gradient; none holds its own left side",
        """
from lamina.extend import rule


<rule>


def f(x):
    return <used>


def program(compile):
    g = compile(f, options={"rules": (rule(before, after),), "strict": False})
    x = sample(<shape><grad>)
    out = attempt(g, x)
    yield out, backward(out), x.grad
""",
        {
            "rule": (
                "def before(x):\n    return x * torch.sigmoid(x)\n\n\ndef after(x):\n    return F.silu(x.detach())",
                "def before(x):\n    return x * torch.sigmoid(x)\n\n\ndef after(x):\n    return F.silu(x)",
                "def before(x):\n    return torch.sin(x) * 2\n\n\n"
                "def after(x):\n    return torch.sin(x.detach()) + torch.sin(x.detach())",
                "def before(x):\n    return x * 2 + 1\n\n\ndef after(x):\n    return x.detach() + x.detach() + 1",
                "def before(x):\n    return torch.exp(x) * 2\n\n\n"
                "def after(x):\n    return torch.exp(x).detach() + torch.exp(x)",
                "def before(x):\n    return torch.relu(x) * 3\n\n\n"
                "def after(x):\n    return x.detach().clamp(min=0) * 3",
                "def before(x):\n    return torch.cos(x) * 2\n\n\n"
                "def after(x):\n    return torch.cos(x) + torch.cos(x.detach())",
            ),
            "used": ("before(x)", "before(x + 2) + 1", "before(x).sum()", "before(before(x))"),
            "shape": ("5", "3, 4", "17"),
            "grad": (", grad=True", ", grad=True", ""),
        },
    ),
    "masks": Whole(
        0.3,
        "dropout by statistics: the share that is dropped, that no two masks are the same, and the gradient's mask",
        """
def f(x):
    a = F.dropout(x, 0.5)
    return a, <again>


def program(compile):
    g = compile(f<dynamic>)
    for n in (<size>, <other>):
        a, b = (t == 0 for t in g(torch.ones(n)))
        c = g(torch.ones(n))[0] == 0
        # Five standard deviations on either side.
        yield abs(a.sum().item() - n / 2) < 2.5 * n**0.5, bool((a == b).all()), bool((a == c).all())
    x = torch.ones(64, requires_grad=True)
    out = g(x)[0]
    out.sum().backward()
    yield bool(((out == 0) == (x.grad == 0)).all())
""",
        {
            "again": ("F.dropout(x, 0.5)", "F.dropout(x * 2, 0.5)", "F.dropout(a, 0.5)"),
            "dynamic": ("", ", dynamic=True"),
            "size": ("256", "300", "1024"),
            "other": ("257", "<size>", "999"),
        },
    ),
    "across": Whole(
        0.7,
        "context managers, the user's own too, open across graph breaks",
        """
class Mine:
    def __enter__(self):
        self.was = torch.is_grad_enabled()
        torch.set_grad_enabled(False)

    def __exit__(self, *error):
        torch.set_grad_enabled(self.was)


class Wide:
    def __enter__(self):
        torch.set_default_dtype(torch.float64)

    def __exit__(self, *error):
        torch.set_default_dtype(torch.float32)


@torch.compiler.disable
def helper(x):
    return x.sum() + torch.ones(())


def f(x, w):
    with <manager>:
        a = <inner>
        <gap>
        <leave>
        b = a @ w + torch.ones(4)
    return a, b, b @ w


def program(compile):
    g = compile(f)
    x, w = sample(4, 4, grad=True), sample(4, 4, seed=2, grad=True)
    with <outside>:
        out = attempt(g, x, w)
    yield out, backward(out), w.grad
""",
        {
            "manager": (
                "torch.autocast('cpu', dtype=torch.bfloat16)",
                "torch.no_grad()",
                "torch.enable_grad()",
                "Mine()",
                "torch.set_grad_enabled(False)",
                "torch.autocast('cpu', enabled=False)",
                "Wide()",
            ),
            "inner": ("x @ w", "(x @ w).sin()", "F.linear(x, w)", "x * w"),
            "gap": ("pause()", "helper(x)", "pause() or helper(x)"),
            "leave": ("", "", "if x.sum() > 100:\n            return x"),
            "outside": ("torch.enable_grad()", "torch.no_grad()", "torch.autocast('cpu', dtype=torch.bfloat16)"),
        },
    ),
    "slices": Whole(
        0.6,
        "slices and containers of numbers as arguments",
        """
def f(x, k):
    <write>
    return <used>


def program(compile):
    g = compile(f<dynamic>)
    for k in <values>:
        x = sample(10)
        out = attempt(g, x, <argument>)
        yield x, out
""",
        {
            "write": ("", "", "x.add_(1)"),
            "used": ("x[k] * 2", "x[k.start :] + 0", "x[k.start]", "x[k][k.start :]", "x[k]"),
            "argument": ("k", "k", "slice(k.start, k.stop)"),
            "values": (
                "(slice(1, 5), slice(2, 6), slice(-3, None))",
                "(slice(-1, None), slice(-2, 9), slice(2, 4))",
                "(slice(3, 9, 2), slice(1, 8, 3), slice(0, 9, 4))",
                "(slice(0, 3), slice(-4, -1))",
            ),
            "dynamic": ("", "", ", dynamic=True"),
        },
    ),
    "numbers": Whole(
        0.6,
        "lists, tuples and dicts of numbers as arguments",
        """
def f(x, k):
    return <used>


def program(compile):
    g = compile(f<dynamic>)
    for k in <values>:
        x = sample(2, 5)
        out = attempt(g, x, k)
        yield x, out
""",
        {
            "used": (
                "x[:, k[0]] + x[:, k[1]]",
                "x[0, k[0] :] * k[1]",
                "[t * n for t, n in zip(x.unbind(0), k)]",
                "x[k]",
            ),
            "values": ("([0, 1], [-1, 2], [1, -2])", "((0, 1), (-1, -2), (1, -1))", "([1, 2], [0, 4], [1, -5])"),
            "dynamic": ("", "", ", dynamic=True"),
        },
    ),
}
"""Entire programs, by name."""
