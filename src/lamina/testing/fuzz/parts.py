"""Entire programs that return parts of a tensor, and that give an argument the memory of something else."""

from __future__ import annotations

from lamina.testing.fuzz.whole import Whole

__all__ = ["PARTS"]

PARTS: dict[str, Whole] = {
    "parts": Whole(
        0.5,
        "parts of tensors that are written to when they are returned, views made without gradients, .data exchanged",
        """
def f(x, y):
    <moved>
    v = <base>
    a, *more = v.<parts>
    with torch.no_grad():
        b = <view>
    return <shown>


def program(compile):
    g = compile(f<how>)
    for size in (4, 6):
        x, y, w = sample(size, 4<grad>)<made>, sample(size, 4, seed=1), sample(grad=True)
        out = attempt(g, x, y)
        yield x, y, out, backward(out)
        yield attempt(lambda: out[<one>].detach().add_(1)), x, y, out
        yield attempt(lambda: out[<other>].<write>), x, y, attempt(lambda: out[<one>] * 1)
        yield attempt(lambda: x.<write>), attempt(lambda: out[<other>] * 1), w.grad
""",
        {
            "moved": (
                "pass",
                "pass",
                "pass",
                "x.data, y.data = y.data, x.data",
                "x.data = y * 2",
                "x.data = y.data",
                "old = x.data\n    x.data = x.data[:2]",
            ),
            "base": ("x", "x", "x * 2", "x.t()", "x[1:]", "y", "x.detach()"),
            "parts": (
                "split(2)",
                "unbind(0)",
                "chunk(2)",
                "tensor_split(2)",
                "split(2)[1][None].unbind(1)",
                "hsplit(2)",
            ),
            "view": ("x.view(-1)", "v[1:]", "a[None]", "v.t()", "x.data", "y.split(2)[0]"),
            "shown": ("a, b", "b, a, v", "a, *more", "b, x * 2", "more[0], a.sum(), a"),
            "one": ("0", "1"),
            "other": ("0", "1"),
            "write": ("mul_(2)", "mul_(w)", "zero_()"),
            "made": ("", "", " * 1"),
            "grad": (", grad=True", ", grad=True", ""),
            "how": ("", "", ", dynamic=True"),
        },
    ),
    "handed": Whole(
        0.5,
        "views of an argument with a history, made before and after writes to it; gradients of some results only",
        """
def f(x, w):
    <before>
    v = x<view>
    b = v<again>
    <write>
    c = <more>
    return <shown>


def program(compile):
    g = compile(f<how>)
    for size in (4, 6):
        y, w = sample(size, 4, grad=True), sample(4, seed=2, grad=True)
        base = y * 1
        x = base<part>
        out = attempt(g, x, w)
        yield base, x, out
        <watch>
        for one in <order>:
            yield attempt(lambda: backward(out[one], retain_graph=True)), y.grad, w.grad, seen()
        yield backward(base), y.grad, w.grad
""",
        {
            "before": ("pass", "pass", "x.mul_(2)", "x.t().add_(1)", "x[0] = w"),
            "view": (".view(-1)", "[1:]", ".t()", "[0]", ".unsqueeze(0)", "", ".mT[1:]"),
            "again": (".view(-1)", "[..., 1:]", ".unsqueeze(-1)", " * 2", ".sin()", ".t()"),
            "write": ("pass", "v[0] = 9", "v.add_(1)", "b.mul_(2)", "x.add_(w)", "v.detach()[0] = 1"),
            "more": ("x[1:]", "v + 1", "b.sum()", "w * 2", "v.exp()", "x.sum() + w"),
            "shown": ("v, b", "b, v, c", "c, v", "v, c, w * 3", "b, c", "c, w.exp(), v"),
            "part": ("", "", "[1:]", ".t()", "[:, :2]"),
            "watch": (
                'seen = watched(out, "<way>")',
                'seen = watched(out, "asked")\n        yield attempt(lambda: <target>.<later>), base, out',
            ),
            "way": ("hooks", "hooks", "retained"),
            "target": ("base", "base", "x", "out[0]", "out[1]", "w.detach()"),
            "later": ("mul_(3)", "add_(w.sum())", "zero_()", "detach().add_(0)"),
            "order": ("(0, 1)", "(1, 0)", "(1,)", "(0,)"),
            "how": ("", "", ", dynamic=True", ', options={"numerics": "eager"}'),
        },
    ),
}
