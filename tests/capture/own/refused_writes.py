"""Programs that write to views which eager may refuse to have written to: each is judged by what eager does with it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

__all__ = ["refused_writes"]

_SOURCES = {
    "leaf": "x",
    "history": "(x * 1)",
    "plain": "y",
    "expanded": "y[:1].expand(4, 4)",
    "expanded with a history": "(x * 1)[:1].expand(4, 4)",
    "detached": "x.detach()",
    "data": "x.data",
}
_PARTS = (
    "v.unbind(0)",
    "v.split(2)",
    "v.chunk(2, 1)",
    "v.tensor_split(2)",
    "v.split([1, 3])",
    "[*v]",
    "v.t().unbind(1)",
    "[p[None] for p in v.unbind(0)]",
    "[p.view(-1) for p in v.split(2)]",
    "(v[0], v[1])",
    "(v.t(), v.view(-1))",
    "(v[1:], v.diagonal())",
    "(v.detach(), v[0])",
    "(v.data, v[0])",
    "(v.expand(2, 4, 4), v[0])",
    "(v.unfold(0, 2, 1), v[0])",
    "(v.select(0, 1), v.narrow(0, 0, 2))",
    "torch.broadcast_tensors(v, y)",
    "torch.atleast_3d(v, v[0])",
    "v.unsafe_chunk(2)",
    "(v.view_as(v), v.squeeze())",
    "(v.view(torch.int32), v[0])",
    "(v.reshape(2, 8), v.flatten())",
)
_MODES = ("torch.enable_grad()", "torch.no_grad()", "torch.inference_mode()")
_WRITES = ("{}.zero_()", "{}.mul_(2)", "{}.add_(w)", "{}.copy_({})", "{}[0].fill_(1)", "{}.detach().mul_(2)")
_PLACES = ("parts[0]", "parts[-1]", "v", "x", "y")
_INSIDE = ("pass", "pause()", "z = x.data", "{write}", "with torch.no_grad(): {write}", "z = torch.sum(v)")
_RETURNED = ("parts[0]", "parts[-1], parts[0]", "v, parts[0]", "v, *parts", "x, v, parts[-1]")

_PROGRAM = """import torch

from lamina.testing.fuzz import attempt, backward, pause, sample


def f(x, y, w):
    v = {source}
    with {mode}:
        parts = {parts}
    {inside}
    return {returned}


def program(compile):
    g = compile(f)
    for _ in range(2):
        x, y, w = sample(4, 4, grad=True){trained}, sample(4, 4, seed=1), sample(grad=True)
        out = attempt(g, x, y, w)
        yield x, y, out
        out = out if isinstance(out, tuple) else (out,)
        yield attempt(lambda: {outside}), x, y, out
        yield attempt(lambda: [one * 1 for one in out]), attempt(lambda: x * 1)
        yield attempt(lambda: backward(out)), x.grad, w.grad
"""


def refused_writes(seed: int) -> Iterator[str]:
    """Programs without end, in a random order."""
    draw = random.Random(seed)
    for _ in itertools.count():
        write = draw.choice(_WRITES).replace("{}", "{0}")
        inside = draw.choice(_INSIDE)
        inside = inside.format(write=write.format(draw.choice(_PLACES)))
        outside = "{write}" if inside.endswith(("pass", ")")) or draw.random() < 0.5 else "0"
        place = draw.choice(("out[0]", "out[-1]", "x", "y", "out[0]"))
        yield _PROGRAM.format(
            source=draw.choice([*_SOURCES.values()]),
            mode=draw.choice((_MODES[0], _MODES[0], *_MODES)),
            parts=draw.choice(_PARTS),
            inside=inside,
            returned=draw.choice(_RETURNED),
            trained=draw.choice(("", " * 1")),
            outside=outside.format(write=draw.choice(_WRITES).replace("{}", "{0}").format(place)),
        )
