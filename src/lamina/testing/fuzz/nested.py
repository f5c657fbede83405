"""Entire programs with operations that hold graphs, and with gradients that are differentiated again."""

from __future__ import annotations

from lamina.testing.fuzz.whole import Whole

__all__ = ["NESTED"]

NESTED: dict[str, Whole] = {
    "higher": Whole(
        0.7,
        "control flow as operations, marked regions, checkpoints, function transforms, attention with functions",
        """
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint

from lamina.testing.fuzz.torch_private import each, scan, while_loop


def step(a, w):
    return <step>


@torch.compiler.nested_compile_region
def marked(a, w):
    return step(a, w)


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, w):
        ctx.save_for_backward(a, w)
        return step(a, w)

    @staticmethod
    def backward(ctx, g):
        a, w = ctx.saved_tensors
        return g * a, (g * w.sum()).sum(0) * w


def attend(a):
    a = a.detach()[None, None]
    return flex_attention(a, a * 2, a, score_mod=<score>)[0, 0]


def loop(a, w):
    start = torch.zeros((), dtype=torch.int64), a
    return while_loop(lambda i, b: i < <times>, lambda i, b: (i + 1, step(b, w)), start)[1]


def f(x, w):
    h = <before>
    h = <part>
    return <after>


def program(compile):
    g = compile(f<how>)
    for rows in <rows>:
        x, w = sample(rows, 4, seed=rows<grad>), sample(4, 4, seed=2<grad>)
        with <mode>:
            out = attempt(g, x, w)
        yield out, backward(out), x.grad, w.grad
""",
        {
            "step": (
                "(a / 4) @ w",
                "(a * 0.5).sin() + w[0]",
                "a.clamp(-1, 1) * w.sum(0)",
                "a + a.mean(-1, keepdim=True)",
            ),
            "score": (
                "lambda s, b, h, i, j: s + (i - j) * 0.25",
                "lambda s, b, h, i, j: torch.where(i >= j, s, -torch.inf)",
                "lambda s, b, h, i, j: torch.where((i > 1) & (j < i), s * 0.5, -torch.inf)",
                "lambda s, b, h, i, j: 2 * torch.tanh(s / 2)",
            ),
            "times": ("0", "1", "3"),
            "before": ("x", "x * 0.5 + 1", "x.flip(0)", "x[:, ::2].repeat(1, 2)", "x.sin()"),
            "part": (
                "torch.cond(h.sum() > 0, step, lambda a, b: step(a, b) * 2 + 1, (h, w))",
                "torch.cond(x.shape[0] > 3, step, lambda a, b: step(a, b) * 2 + 1, (h, w))",
                "each(lambda a: step(a[None], w)[0], h)",
                "each(lambda a: step(a.t(), w.new_ones(3, 3)), h.expand(2, 3, *h.shape)[..., :3, 0])",
                "scan(lambda c, a: (c * 0.5 + a, c.tanh() + a), torch.zeros(4, dtype=x.dtype), h)[1]",
                "scan(lambda c, a: (c * 0.5 + a, c * a), torch.ones(4, dtype=x.dtype), h, reverse=True)[0]",
                "loop(h, w)",
                "loop(h.detach(), w.detach())",
                "marked(marked(h, w), w)",
                "checkpoint(step, h, w, use_reentrant=False) + h",
                "Twice.apply(h, w)",
                "attend(h)",
                "attend(h.t()).t()",
                "torch.vmap(lambda a: a.softmax(-1) * w[0])(h)",
                "torch.func.grad(lambda a: step(a, w).square().sum())(h)",
            ),
            "after": ("h", "h * 2, h.sum()", "h.cumsum(0) - 1", "(h + 1).relu()"),
            "how": ("", "", ", dynamic=True", ", dynamic=False"),
            "rows": ("(3,)", "(3, 5)", "(4, 1)", "(6, 2, 3)"),
            "grad": ("", ", grad=True", ", grad=True"),
            "mode": ("torch.enable_grad()", "torch.enable_grad()", "torch.no_grad()"),
        },
    ),
    "second": Whole(
        0.7,
        "gradients that are differentiated again, or kept for it",
        """
def f(x, y):
    t = <trunk>
    u = <inner>
    return <result>


def program(compile):
    g = compile(f<how>)
    for size in <sizes>:
        x, y = sample(2, size, seed=1, grad=True), sample(2, size, seed=2, grad=<other>)
        out = attempt(g, x, y)
        first = attempt(torch.autograd.grad, loss(out), <of>, create_graph=True, allow_unused=True)
        yield out, first
        yield <again>, x.grad, y.grad
        <later>
""",
        {
            "trunk": ("x * y", "x.sin() * y", "x @ y.t()", "(x * 0.25).exp() + y.detach()", "x.detach() * y + x"),
            "inner": (
                "t * t",
                "t.tanh()",
                "F.layer_norm(t, t.shape[-1:])",
                "t.softmax(-1)",
                "t.relu() * t",
                "F.gelu(t)",
                "t[0] * t[1]",
                "torch.cat((t, t.cos()), 0)",
                "t.cumsum(-1).square()",
            ),
            "result": ("u", "u, t", "u.sum(), x * 2", "(u + 1).square()", "u, y.exp()"),
            "how": ("", ", dynamic=False"),
            "sizes": ("(3,)", "(3, 3)", "(17, 17, 17)"),
            "other": ("True", "True", "False"),
            "of": ("(x,)", "[v for v in (x, y) if v.requires_grad]"),
            "again": (
                "backward(first)",
                "backward((first, out))",
                "attempt(torch.autograd.grad, loss(first), (x,), allow_unused=True)",
                "attempt(torch.autograd.grad, loss(first), (x,), create_graph=True, allow_unused=True)",
                "[backward(first, retain_graph=True), backward(first)]",
            ),
            "later": ("", "yield attempt(g, x.detach(), y.detach())"),
        },
    ),
}
"""Such programs, by name."""
