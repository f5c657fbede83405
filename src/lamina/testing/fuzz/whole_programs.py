"""Entire programs: several compiled functions, losses, views that are written to, rules, contexts, numbers."""

from __future__ import annotations

from lamina.testing.fuzz.whole import Whole

__all__ = ["WHOLE"]

_CHAINED = (
    *("", ".view(-1, 6)", ".view(8, -1)", ".view(-1, 16)", ".view(3, -1)", ".view(2, -1, 4)", ".flatten()", ".mT"),
    *(".reshape(-1, 12)", ".reshape(4, 3, -1)", ".unflatten(0, (2, -1))", ".flatten(0, 1)", ".transpose(0, -1)"),
    *("[..., 1:3]", "[::2]", ".unfold(0, 2, 2)", ".movedim(0, -1)", "[:, ::3]"),
)
"""Views whose shapes need not divide each other; some do not exist, in eager either."""


WHOLE: dict[str, Whole] = {
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
