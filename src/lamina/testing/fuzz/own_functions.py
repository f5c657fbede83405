"""Entire programs with functions that have a gradient of their own: ``torch.autograd.Function``."""

from __future__ import annotations

from lamina.testing.fuzz.whole import Whole

__all__ = ["OWN_FUNCTIONS"]

_AT_ONCE = """\
@staticmethod
    def forward(ctx, a, b, n):
        ctx.save_for_backward(a, b)
        ctx.n = n
        out, sign = <made>, a.sign()
        <returned>"""

_IN_TWO = """\
@staticmethod
    def forward(a, b, n):
        out, sign = <made>, a.sign()
        return out, sign

    @staticmethod
    def setup_context(ctx, inputs, output):
        a, b, ctx.n = inputs
        out, sign = output
        ctx.save_for_backward(a, b)
        <marks>"""

OWN_FUNCTIONS: dict[str, Whole] = {
    "own_functions": Whole(
        0.7,
        "functions with a gradient of their own: gradients that are None, results without one, arguments written to",
        """
class Own(torch.autograd.Function):
    <forward>

    @staticmethod
    def backward(ctx, g, *more):
        a, b = ctx.saved_tensors
        if g is None:
            return None, None, None
        return <gradients>


class Written(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b, n):
        ctx.save_for_backward(b)
        ctx.mark_dirty(a)
        return a.mul_(b)

    @staticmethod
    def backward(ctx, g):
        (b,) = ctx.saved_tensors
        return g * b, <gradient>, None


def f(x, w, n):
    <applied>
    out = r[0] if isinstance(r, tuple) else r
    <between>
    return <after>


def program(compile):
    g = compile(f<how>)
    for k, (left, right) in enumerate(<wanted>):
        x, w = sample(2, 4, seed=k, grad=left), sample(<width>, seed=k + 3, grad=right)
        <mode>out = attempt(g, x, w, <number>)
        yield out, backward(out), x.grad, w.grad
""",
        {
            "forward": (_AT_ONCE, _IN_TWO),
            "made": ("a * b", "a * b * n", "a + b", "(a * b).sum(1)", "a.clone()"),
            "marks": ("", "ctx.mark_non_differentiable(sign)", "ctx.set_materialize_grads(False)"),
            "returned": (
                "return out",
                "ctx.set_materialize_grads(False)\n        return out",
                "<marks>\n        return out, sign",
                "<marks>\n        return out, sign",
                "return (out,)",
                "return out, None",
            ),
            "gradients": (
                "g.reshape(2, -1) * b, g.reshape(2, -1) * a, None",
                "None, g.reshape(2, -1) * a, None",
                "g.reshape(2, -1) * b, None, None",
                "None, None, None",
                "g.reshape(2, -1) * b * ctx.n, g.reshape(2, -1) * a if ctx.needs_input_grad[1] else None, None",
                "(g + more[0] if more and more[0] is not None else g).reshape(2, -1) * b, None, None",
            ),
            "gradient": ("None", "g * b"),
            "applied": (
                *["h = <before>\n    r = Own.apply(h, w, n)"] * 3,
                "h = <writable>\n    r = Written.apply(h, w, n)",
            ),
            "writable": ("x * 1", "x.sin()", "(x * 1)[:]", "x.detach()", "x * 1 if x.requires_grad else x"),
            "before": ("x", "x * 1", "x.sin()", "x.view_as(x)", "(x * 1)[:]", "x.detach()"),
            "between": ("", "", "pause()", "out = out * 2", "w = w + 1", "out = out.detach() + h"),
            "after": ("r", "out", "out, h", "out.sum(), w", "(out * w).sum(), r", "out.exp(), out.detach()"),
            "how": ("", "", ", dynamic=True"),
            "wanted": (
                "[(True, True), (True, False), (False, True), (False, False)]",
                "[(False, True), (True, True)]",
                "[(False, False), (True, False), (True, True)]",
            ),
            "width": ("4", "2, 4"),
            "mode": ("", "", "with torch.set_grad_enabled(k != 1): "),
            "number": ("2", "k", "0.5 + k"),
        },
    ),
}
"""Entire programs, by name."""
