"""Entire programs with graph breaks between views and writes, chained comparisons of sizes, records and transforms."""

from __future__ import annotations

from lamina.testing.fuzz.whole import Whole

__all__ = ["BROKEN"]

BROKEN: dict[str, Whole] = {
    "broken_views": Whole(
        1,
        "views that are made before a graph break and written to after it, and what was saved before that",
        """
def inner(t):
    <write_inner>
    return t


def f(x, y):
    base = <base>
    v = <view>
    <saved>
    <gap>
    <write>
    <gap2>
    <again>
    return <shown>


def program(compile):
    g = compile(f<how>)
    for k in range(2):
        x, y = sample(4, 6, seed=k<grad>), sample(6, seed=k + 1<grad_y>)
        given = <given>
        with <mode>:
            out = attempt(g, given, y)
        yield given, out, y
        <after>
        yield backward(out), x.grad, y.grad
""",
        {
            "base": ("x * 2", "x * 2", "x", "x.clone()", "x.t() + 1", "torch.zeros(4, 6) + x", "x.detach()"),
            "view": (
                "base[1:]",
                "base.t()",
                "base[0]",
                "base.view(-1)[::2]",
                "base[:, 1:4]",
                "base.unbind(0)[1]",
                "base.flatten()",
                "base.diagonal()",
                "base.unsqueeze(0).expand(2, *base.shape)[1]",
                "base.chunk(2, -1)[1]",
                "base.select(1, 2)",
                "base",
            ),
            "saved": ("", "s = v.sin()", "s = base.exp()", "s = v * v", "s = base.sum()", "s = (v * y[0]).detach()"),
            "gap": ("pause()", "pause()", "v = inner(v)", "print(end='')"),
            "gap2": ("", "", "pause()"),
            "write": (
                "v.mul_(2)",
                "v.add_(y.sum())",
                "v.zero_()",
                "v[:1] = 3.0",
                "base.add_(1)",
                "base[0].copy_(y)",
                "v += 1",
                "with torch.no_grad():\n        v.mul_(2)",
                "v.detach().add_(1)",
                "torch.add(v, 1, out=v) if not v.requires_grad else v.add_(1)",
                "v.relu_()",
                "v.fill_(y[0])",
                "v.squeeze_()",
                "base.t_() if base is not x else base.add_(1)",
            ),
            "write_inner": ("t.add_(1)", "t.detach().mul_(2)", "t[..., 0] = 0", "pause()\n    t.mul_(2)"),
            "again": ("", "", "w = base.cos()", "w = v * y.mean()", "v.add_(1)", "w = base[0] * y", "base.mul_(2)"),
            "shown": ("v", "base", "base, v", "v, base.sum()", "v * 1, base * 1", "base[1:], v", "v.sum(), v"),
            "given": ("x", "x", "x * 1", "x.detach()", "(x * 1)[:]"),
            "mode": ("torch.enable_grad()", "torch.enable_grad()", "torch.no_grad()"),
            "after": ("", "", "attempt(lambda: given.detach().zero_())", "yield attempt(lambda: out.add_(1))"),
            "how": ("", "", ", dynamic=True"),
            "grad": ("", ", grad=True", ", grad=True"),
            "grad_y": ("", "", ", grad=True"),
        },
    ),
    "compared_sizes": Whole(
        1,
        "comparisons of sizes, chained and mixed with numbers, that decide what is computed as sizes vary",
        """
def f(x, y, n):
    a, b = x.shape
    <first>
    <second>
    return <shown>


def program(compile):
    g = compile(f<how>)
    for rows, width, n in <calls>:
        x, y = sample(rows, width, seed=rows<grad>), sample(width, seed=2)
        yield attempt(g, x, y, n)
        yield backward(attempt(g, x * 1, y, n)), x.grad
""",
        {
            "first": ("<decided>", "<decided>", "<shaped>", "<numbers>"),
            "second": ("", "<decided>", "<shaped>", "<asserted>"),
            "decided": (
                "x = x * 2 if <asked> else x + 1",
                "if <asked>:\n        x = x.t().contiguous().t()\n    else:\n        y = y + a",
                "while (<asked>) and x.dim() < 4:\n        x = x[None]",
                "x = x[:n] if <asked> else x[n:]",
                "x = sum((x for _ in range(2)), start=x) if not (<asked>) else x.sin()",
                "y = y * int(<asked>) + bool(<asked2>)",
            ),
            "asked": ("<comparison>", "<comparison>", "<comparison> and <asked2>", "<comparison> or <asked2>"),
            "asked2": ("a > n", "b == n", "a * b % 2 == 0", "a != b", "n > 2"),
            "comparison": (
                "1 < a <= 4",
                "a < b < 8",
                "a <= n <= b",
                "2 < x.shape[0] != n",
                "x.shape == (a, n)",
                "x.size() == torch.Size([n, b])",
                "x.shape[1:] == y.shape",
                "x.numel() > n * 4 >= a",
                "a in (2, n, 5)",
                "max(a, n) == a",
                "min(a, b, n) > 1",
                "x.numel() // n * n == x.numel()",
                "a % 2 == b % 2 == 0",
                "(a, n) < (b, a)",
                "x.shape[-1] - n > 0 <= a",
                "x.stride(0) == b > 2",
                "len(x) == x.size(0) >= n",
                "x.is_contiguous() and a > 2",
                "not a - n",
            ),
            "shaped": (
                "x = x.reshape(b, a)",
                "x = x.view(-1, n) if (a * b) % n == 0 else x",
                "x = x.repeat(n, 1)[: a + 1]",
                "x = F.pad(x, (0, n))[:, :b]",
                "x = x.expand(max(n, 1), a, b).sum(0)",
                "x = torch.cat([x, x[: a // 2]])",
                "x = x + torch.arange(b)[None] // n",
                "x = x.unfold(1, min(2, b), 1).sum(-1)",
                "x = x[:, : b - b % n] if b > n else x",
                "x = torch.ones(a + n, b)[n:] * x",
                "x = x / (a * b) ** 0.5",
                "x = x * round(a / n) + a // n",
            ),
            "numbers": (
                "n = n + a if a < b else n",
                "n = max(1, a - b)",
                "a, b = sorted((a, b))",
                "n = int(a / 2) or 1",
                "n = min(n, x.shape[1])",
                "n = len([i for i in range(a) if i % n == 0])",
                "n = abs(a - b) + 1",
                "n = divmod(a, n)[0] + 1",
            ),
            "asserted": ("assert a > 0, a", "assert a * b < 40, (a, b)", "assert 0 < n < 99", "torch._check(a > 0)"),
            "shown": (
                "x",
                "x, a",
                "x * y if x.shape[-1] == len(y) else x",
                "x.sum(), y",
                "x, (a, b, n)",
                "y * a, x.shape",
            ),
            "calls": (
                "((2, 4, 2), (3, 4, 2), (4, 4, 3), (5, 4, 1))",
                "((4, 6, 2), (4, 6, 3), (4, 6, 4), (6, 4, 4))",
                "((3, 3, 3), (4, 3, 3), (3, 4, 3), (1, 3, 1), (2, 2, 2))",
                "((8, 5, 2), (1, 5, 2), (5, 1, 3), (5, 8, 5))",
            ),
            "how": ("", "", ", dynamic=True", ", dynamic=True"),
            "grad": ("", "", ", grad=True"),
        },
    ),
    "records": Whole(
        1,
        "data classes, named tuples, subclasses of dict and list, slots and generators, made, written to and returned",
        """
import dataclasses
import typing
from collections import ChainMap, Counter, OrderedDict, UserDict, namedtuple


@dataclasses.dataclass
class Data:
    t: torch.Tensor
    k: int = 2
    parts: list = dataclasses.field(default_factory=list)

    def __post_init__(self):
        self.parts.append(self.k)

    @property
    def scaled(self):
        return self.t * self.k


@dataclasses.dataclass(frozen=True)
class Frozen:
    t: torch.Tensor
    k: int = 3


class Named(typing.NamedTuple):
    t: torch.Tensor
    k: int = 4

    def scaled(self):
        return self.t * self.k


Pair = namedtuple("Pair", "t k", defaults=(5,))


class Reading(dict):
    def __missing__(self, key):
        self[key] = found = len(self) + 1
        return found

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        self.last = key


class Listed(list):
    count = 0

    def append(self, value):
        self.count += 1
        super().append(value)


class Slotted:
    __slots__ = ("t", "k")

    def __init__(self, t, k=6):
        self.t, self.k = t, k

    def __eq__(self, other):
        return self.k == other.k

    def __hash__(self):
        return self.k


def parts(x, k):
    for n in range(k):
        <yields>
    return k


def make():
    return <made>


def f(r, x, k):
    <first>
    <second>
    return <shown>


def program(compile):
    g = compile(f<how>)
    kept = make()
    for k in (1, 2, 2, 3):
        x = sample(3, 4, seed=k<grad>)
        r = <given>
        out = attempt(g, r, x, k)
        yield out, backward(out), x.grad
        yield [getattr(r, name, None) for name in ("k", "t", "last", "count", "parts")]
        yield list(r.items()) if isinstance(r, dict) else list(r) if isinstance(r, (list, tuple)) else None
""",
        {
            "made": (
                "Data(sample(4))",
                "Frozen(sample(4))",
                "Named(sample(4))",
                "Pair(sample(4))",
                "Slotted(sample(4))",
                "Reading(t=sample(4))",
                "Listed([sample(4), 2])",
                "OrderedDict(t=sample(4), k=2)",
            ),
            "yields": (
                "yield x * n",
                "got = yield x + n\n        x = x if got is None else x * got",
                "yield from (x, x * n)",
            ),
            "given": ("kept", "kept", "make()"),
            "first": ("<alone>", "<alone>", "<of_r>", "<of_r>"),
            "of_r": (
                "y = x * getattr(r, 't', 2)",
                "y = x * (r.scaled.sum() if hasattr(r, 'scaled') and k % 2 else k)",
                "y = x + r['t'] if isinstance(r, dict) else x + r.k",
                "y = x * r['other'] if type(r) is Reading else x * 2",
                "y = x * r[0] + len(r) if isinstance(r, (tuple, list)) else x + hash(r is None)",
                "y = (dataclasses.replace(r, k=k).t if dataclasses.is_dataclass(r) else x) * k",
                "y = x * (r._replace(k=k).k if isinstance(r, tuple) else k)",
                "t, n = r if isinstance(r, tuple) else (x, k)\n    y = x * t + n",
                "match r:\n        case Named(t=t, k=n) | Pair(t=t, k=n):\n            y = t * n + x\n"
                "        case {'t': t}:\n            y = t * 2 + x\n        case Data(k=2) | Frozen():\n"
                "            y = x * 2\n        case _:\n            y = x",
                "y = x + sum(r.values()) if isinstance(r, dict) else x",
                "y = x * len([n for n in dir(r) if n == 'k'])",
            ),
            "alone": (
                "y = sum(parts(x, k), start=x)",
                "y = torch.stack([*parts(x, k), x])",
                "made = Data(x, k)\n    y = made.scaled + made.parts[0]",
                "made = Reading()\n    made[k] = x\n    y = made[k] + made['no']",
                "made = Slotted(x)\n    y = made.t * made.k * (made == Slotted(x, 6)) + len({made, Slotted(x, 6)})",
                "p = parts(x, k + 1)\n    y = next(p)\n    y = y + p.send(2)",
                "y = {n: t for n, t in zip('abc', parts(x, 3))}['b']",
                "y = ChainMap({'a': x}, {'a': 1, 'b': 2})['a'] * 2",
                "y = x * Counter('abcab')['a'] + Counter([k, k, 1])[1]",
                "made = Listed([x])\n    made.append(x * k)\n    y = made[-1] + made.count",
                "made = Named(x)._replace(k=k)\n    y = made.scaled() + len(made)",
                "y = Frozen(**{'t': x, 'k': k}).t * dataclasses.asdict(Frozen(k))['t']",
            ),
            "second": (
                "",
                "",
                "if type(r) in (Data, Slotted):\n        r.k = k",
                "if type(r) in (Data, Slotted):\n        r.t = y.detach().sum(0).sum(-1)",
                "if isinstance(r, dict):\n        r['new'] = y.sum().detach()",
                "if isinstance(r, list):\n        r.append(k)",
                "if type(r) is Data:\n        r.parts.append(k)",
                "pause()",
                "y = y * getattr(r, 'k', 2)",
                "if type(r) is Listed:\n        r.count = 5\n        r[-1] = k",
                "if type(r) is Slotted and k == 3:\n        del r.k",
                "if isinstance(r, dict):\n        r |= {'k': k}",
                "if isinstance(r, dict):\n        r.pop('k', None)\n        r.setdefault('t', x)",
            ),
            "shown": (
                "y",
                "y, x",
                "Named(y, k)",
                "Pair(y)",
                "Data(y, k).t, k",
                "[y], {'y': y, 'k': k}",
                "OrderedDict(b=y, a=x)",
                "Listed([y]).count, y",
                "list(parts(y, 2))",
                "[t * 2 for t in (y, x)]",
                "y, getattr(r, 'k', None)",
            ),
            "how": ("", "", ", dynamic=True"),
            "grad": ("", ", grad=True"),
        },
    ),
    "transformed": Whole(
        1,
        "torch.func around and inside of what is compiled: grad, vjp, jvp, vmap, jacobians, functional_call",
        """
from torch.func import functional_call, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.b = nn.Parameter(sample(4)), nn.Parameter(sample(4, seed=1))
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x):
        <counted>
        return (x * self.w).tanh() + self.b


net = Net()


def h(x, w):
    return <body>


def inside(x, w):
    return <inner>


def program(compile):
    <compiled>
    for rows in (2, 3):
        x, w = sample(rows, 4, seed=rows<grad>), sample(4, seed=3<grad>)
        out = attempt(<called>)
        yield out, backward(out), x.grad, w.grad, net.w.grad
    yield net.seen
""",
        {
            "counted": ("", "", "self.seen += 1"),
            "body": (
                "(x * w).sin().sum()",
                "((x / 4) @ w).exp().sum()",
                "(x.softmax(-1) * w).square().sum()",
                "F.layer_norm(x, (4,), w).cos().sum()",
                "(x.relu() * w.abs()).mean()",
                "(x * w).cumsum(-1).sum() + w.prod()",
                "torch.where(x > 0, x * w, w).sum()",
                "x.clone().mul_(w).sum()",
            ),
            "inner": (
                "grad(h)(x, w)",
                "grad(h, argnums=(0, 1))(x, w)",
                "grad_and_value(h)(x, w)",
                "vjp(h, x, w)[1](torch.ones(()))",
                "jvp(h, (x, w), (torch.ones_like(x), w))",
                "vmap(h, (0, None))(x, w)",
                "vmap(lambda a: a * w + x.sum(0))(x)",
                "vmap(grad(h), (0, None))(x, w)",
                "jacrev(lambda a: a.sin() * w)(x[0])",
                "jacfwd(lambda a: a.sin() * w)(x[0])",
                "hessian(lambda a: h(a, w))(x[0])",
                "vmap(lambda a, b: (a * b).sum(), in_dims=(1, 0), out_dims=0)(x, w)",
                "grad(lambda p: functional_call(net, p, (x,)).square().sum())(dict(net.named_parameters()))",
                "functional_call(net, {'w': w, 'b': w * 2}, (x,))",
                "vmap(vmap(lambda a: a * 2 + 1))(x)",
                "grad(lambda a: grad(lambda b: h(b, w))(a).sum())(x)",
                "linearize(h, x, w)[0]",
                "vmap(torch.dot, (0, None))(x, w).detach() + grad(h, 1)(x, w).sum()",
            ),
            "compiled": (
                "g = compile(inside<how>)",
                "g = compile(inside<how>)",
                "c = compile(h<how>)\n    g = <outside>",
                "c = compile(net<how>)\n    g = lambda x, w: functional_call(c, {'w': w, 'b': w + 1, 'seen': w}, (x,))",
            ),
            "outside": (
                "grad(c)",
                "grad(c, argnums=(0, 1))",
                "lambda x, w: vjp(c, x, w)[1](torch.ones(()))",
                "lambda x, w: jvp(c, (x, w), (torch.ones_like(x), w))",
                "vmap(c, (0, None))",
                "vmap(grad(c), (0, None))",
                "lambda x, w: jacrev(c, argnums=1)(x, w)",
                "lambda x, w: jacfwd(c, argnums=1)(x, w)",
                "lambda x, w: torch.autograd.functional.vjp(c, (x, w))",
                "lambda x, w: torch.autograd.functional.jacobian(c, (x, w))",
            ),
            "called": ("g, x, w", "g, x, w", "g, x * 1, w", "lambda: g(x.detach(), w)"),
            "how": ("", "", ", dynamic=True"),
            "grad": ("", ", grad=True"),
        },
    ),
}
