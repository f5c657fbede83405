"""Entire programs in which Python compares: numbers, sizes, containers of them, and tensors of one element."""

from __future__ import annotations

from lamina.testing.fuzz.whole import Whole

__all__ = ["COMPARED"]

COMPARED: dict[str, Whole] = {
    "compared": Whole(
        0.7,
        "comparisons that Python makes, of numbers and of elements of tensors: ==, in, sorted, max",
        """
held = [sample(3), sample(3, seed=1)]


def f(x, t, k, ns):
    scale = <first>
    <gap>
    scale = scale + <second>
    return x * scale, scale


def program(compile):
    g = compile(f<how>)
    x = sample(4, 3<grad>)
    for k, ns in zip(<numbers>, <lists>):
        t = torch.tensor(<values>, dtype=<dtype>)
        out = attempt(g, x, t, k, ns)
        yield out, backward(out), x.grad
""",
        {
            "first": ("<of_numbers>", "<of_tensors>", "<of_sizes>"),
            "second": ("1", "<of_numbers2>", "<of_tensors2>"),
            **dict.fromkeys(
                ("of_numbers", "of_numbers2"),
                (
                    "(2 if k in ns else 3)",
                    "max(ns)",
                    "min(ns, default=4)",
                    "max(ns, key=lambda n: -n)",
                    "max(k, 2)",
                    "sorted(ns)[0]",
                    "sorted(ns, reverse=True)[-1]",
                    "(ns.index(k) if k in ns else -1)",
                    "ns.count(k)",
                    "(2 if ns == [1, 2, 3] else 3)",
                    "(2 if ns < [2, 1] else 3)",
                    "(2 if (k, 1) > (1, 2) else 3)",
                    "(2 if k in (1, 2.5) else 3)",
                    "(2 if k in {1: 0, 2.5: 1} else 3)",
                    "(2 if k in range(0, 5, 2) else 3)",
                    "{1: 2, 2: 3}.get(k, 5)",
                    "(2 if 0 < k <= 2 else 3)",
                    "(2 if k != k else 3)",
                    "(2 if k == 1 and k is not True else 3)",
                    "any(n > 1 for n in ns)",
                    "sum(n == k for n in ns)",
                ),
            ),
            **dict.fromkeys(
                ("of_tensors", "of_tensors2"),
                (
                    "max(t)",
                    "min(t[0], t[1])",
                    "max(t[0], 2)",
                    "sorted(t)[0]",
                    "sorted(t.tolist())[-1]",
                    "max(t.unbind(), key=lambda v: -v)",
                    "(2 if t[0] == k else 3)",
                    "(2 if t[0] in (1, 2.5) else 3)",
                    "(2 if k in t else 3)",
                    "(2 if t[1] in t else 3)",
                    "(2 if t[0] < t[1] < t[2] else 3)",
                    "(2 if t[0] else 3)",
                    "(2 if not t[0] and t[1] or t[2] else 3)",
                    "any(v > 1 for v in t)",
                    "sum(v == k for v in t)",
                    "(2 if t in held else 3)",
                    "(2 if held[0] in held else 3)",
                    "(2 if t == None else 3)",
                    "(2 if (t == held[0]).all() else 3)",
                    "t.tolist().index(max(t.tolist()))",
                    "[1, 2, 3][t.argmax()]",
                    "(2 if t[0].item() == t[1].item() else 3)",
                ),
            ),
            "of_sizes": (
                "max(x.shape)",
                "sorted(x.shape)[0]",
                "(2 if k in x.shape else 3)",
                "(2 if x.shape == (4, k) else 3)",
                "(2 if x.shape[0] == len(ns) else 3)",
                "min(x.shape[0], k)",
                "x.shape.index(3)",
            ),
            "gap": ("", "", "pause()", "x = x + 1"),
            "how": ("", "", ", dynamic=True"),
            "grad": ("", ", grad=True"),
            "numbers": (
                "(1, 2, 3, 1)",
                "(1, 1.0, True, 2.5)",
                "(0, -0.0, 2, float('nan'))",
                "(2, 1, 4, 3)",
                "(2.5, float('inf'), -1.0, 2)",
            ),
            "lists": (
                "([1, 2, 3], [3, 2, 1], [1, 2], [2, 2, 2])",
                "([1, 2.0, 3], [True, 2, 3], [0.5], [])",
                "([0.5, -0.0, 0.0], [0.0, -0.0], [float('nan'), 1.0], [1.0, float('nan')])",
            ),
            "values": ("[k, 2, 1]", "[1, 2, 3]", "[0, k, k]", "[2, 1, 2]"),
            "dtype": ("torch.float32", "torch.float32", "torch.int64", "torch.float64"),
        },
    ),
}
"""Entire programs, by name."""
