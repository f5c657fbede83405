"""Entire programs on extremes among NaN and equal values, and on calls inside of modes that watch operations."""

from __future__ import annotations

from lamina.testing.fuzz.whole import Whole

__all__ = ["EXTREMES"]

EXTREMES: dict[str, Whole] = {
    "extremes": Whole(
        0.7,
        "maxima and minima among NaN, infinities and equal values, of half types too, with gradients",
        """
def f(x, y):
    v = <before>
    return <result>


def program(compile):
    g = compile(f<how>)
    for rows, columns in <sizes>:
        x, y = (sample(rows, columns, dtype=<dtype>, seed=n, grad=True) for n in (1, <other>))
        with torch.no_grad():
            <equal>
            <spoil>
        out = attempt(g, x, y)
        yield out, backward(out), x.grad, y.grad
""",
        {
            "before": ("x", "x", "x * 0.5", "x + y", "x.relu()", "x.t()", "x[:, ::2]", "x.round()"),
            "result": (
                "v.amax(<axis>)",
                "v.amin(<axis>, keepdim=True)",
                "v.amax((0, 1)), v.amin()",
                "v.max(), v.min()",
                "v.max(<axis>)",
                "v.min(<axis>)[0]",
                "v.aminmax(dim=<axis>)",
                "v.cummax(<axis>)[0]",
                "v.cummin(<axis>)",
                "v.argmax(<axis>), v.argmin()",
                "torch.maximum(x, y), torch.minimum(x, y.flip(0))",
                "torch.fmax(x, y) + torch.fmin(x, y)",
                "torch.fmax(x, y), torch.fmin(y.clone(), x)",
                "v.clamp(max=1.5).amax(<axis>)",
                "x.clamp(y.clamp(max=0), y.relu())",
                "F.max_pool1d(v[None], 2)[0]",
                "v.topk(1, <axis>)[0]",
                "v.sort(<axis>)[0]",
                "v.median(), v.nanmedian()",
                "v.softmax(<axis>), v.logsumexp(<axis>)",
                "v.norm(torch.inf, <axis>)",
                "(v == v.amax(<axis>, keepdim=True)) * v",
            ),
            "axis": ("0", "1", "-1"),
            "dtype": ("torch.bfloat16", "torch.bfloat16", "torch.float16", "torch.float32"),
            "sizes": ("[(3, 5)]", "[(4, 17), (2, 33)]", "[(1, 40), (5, 1), (3, 64)]", "[(40, 3)]"),
            "other": ("1", "2"),
            "equal": ("", "x.fill_(1.5)", "x[0] = x[-1]", "x.copy_(x.sign())", "x[:, -1] = x.amax(1)"),
            "spoil": (
                "",
                "x[0, 0] = torch.nan",
                "x[-1] = torch.nan",
                "x[0, -1] = y[0, 0] = torch.nan",
                "x[0, 0], x[-1, -1] = torch.inf, -torch.inf",
                "x[:, 0] = -torch.inf",
                "x[0], y[0] = 0.0, -0.0",
            ),
            "how": ("", "", ", dynamic=True", ', options={"numerics": "eager"}'),
        },
    ),
    "watched": Whole(
        0.7,
        "calls inside of modes that see each function or each operation, and may change what it gives",
        """
from contextlib import nullcontext

from torch.overrides import TorchFunctionMode

from lamina.testing.fuzz.torch_private import TorchDispatchMode


class Functions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return <of_function>


class Operations(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return <of_operation>


def f(x, y):
    v = <first>
    <between>
    return <result>


def program(compile):
    g = compile(f<how>)
    for size, mode in zip((3, 3, 5, 3), <modes>):
        x, y = sample(2, size, seed=1<grad>), sample(2, size, seed=2<grad>)
        with mode():
            out = attempt(g, x, y)
        yield out
        with <around>():
            yield backward(out)
        yield x.grad, y.grad
""",
        {
            "of_function": (
                "result",
                "result * 2 if func in (torch.sin, torch.Tensor.sin) else result",
                "result + 1 if func is torch.Tensor.exp else result",
            ),
            "of_operation": (
                "result",
                "result * 2 if func is torch.ops.aten.sin.default else result",
                "result + 1 if func is torch.ops.aten.exp.default else result",
            ),
            "first": ("x.sin() * y", "torch.sin(x) + y", "x @ y.t()", "(x * 0.25).exp()", "x.softmax(-1)"),
            "between": ("", "", "pause()", "v = v + torch.sin(v)", "x.detach().add_(1)"),
            "result": ("v", "v, v.exp()", "v.sum(), x * 2", "v.t()", "torch.sin(v).sum(0)"),
            "how": ("", "", ", dynamic=True", ", dynamic=False"),
            "modes": (
                "(nullcontext, Functions, nullcontext)",
                "(Functions, nullcontext, Functions)",
                "(nullcontext, Operations, nullcontext, Operations)",
                "(Operations, nullcontext)",
                "(Functions, Operations, nullcontext)",
            ),
            "around": ("nullcontext", "nullcontext", "Operations", "Functions"),
            "grad": ("", ", grad=True", ", grad=True"),
        },
    ),
}
