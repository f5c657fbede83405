"""Random programs of tensors that share memory in some calls and not in others, write to each other, and are detached.

Values are small whole numbers, so that every result is exact; gradients are, too.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["MemoryProgram", "memory_program"]

NAMES = ("x", "y", "z")
WRITES = (
    "{a}.add_({b})",
    "{a}.mul_(2)",
    "{a}.copy_({b})",
    "{a}[1:3] = {b}[1:3]",
    "{a}.view(-1)[0] = 5.0",
    "torch._foreach_add_([{a}, {b}], 1.0)",
    "torch.add({a}, {b}, out={c})",
    "{a}.detach().sub_(1)",
)
READS = (
    "v{n} = {a} + {b}",
    "v{n} = {a} * 2 - {b}",
    "v{n} = {a}.detach() * {b}",
    "v{n} = {a}.flip(0)",
    "v{n} = torch.relu({a} - {b})",
    "v{n} = {a}[:2].sum() + {b}",
)


@dataclass(frozen=True, slots=True)
class MemoryProgram:
    """A function as text, and calls: each makes its arguments, runs a function on them and says all that came of it."""

    source: str
    function: Callable[..., Any]
    calls: tuple[Callable[[Callable[..., Any]], Any], ...]


def memory_program(draw: random.Random) -> MemoryProgram:
    """A program drawn with ``draw``."""
    names = list(NAMES[: draw.choice((2, 2, 3))])
    lines = []
    for number in range(draw.randint(2, 5)):
        template = draw.choice(WRITES if draw.random() < 0.45 else READS)
        a, b, c = (draw.choice(names) for _ in range(3))
        lines.append(template.format(a=a, b=b, c=c, n=number))
        if template in READS:
            names.append(f"v{number}")
    results = [name for name in names if name.startswith("v")] or ["x + 1"]
    arguments = ", ".join(name for name in names if name in NAMES)
    body = "\n".join(f"    {line}" for line in lines)
    source = f"def program({arguments}):\n{body}\n    return {', '.join(results)},\n"
    scope: dict[str, Any] = {"torch": torch}
    exec(source, scope)
    count = len(arguments.split(","))
    calls = tuple(_call(count, draw.randrange(1 << 30)) for _ in range(draw.randint(2, 4)))
    return MemoryProgram(source, scope["program"], calls)


def _call(count: int, seed: int) -> Callable[[Callable[..., Any]], Any]:
    def call(function: Callable[..., Any]) -> Any:
        draw = random.Random(seed)
        leaf = torch.tensor([float(draw.randint(-4, 4)) for _ in range(12)], requires_grad=draw.random() < 0.4)
        base = leaf * 1
        apart = draw.random() < 0.5
        given = [_argument(draw, base, apart) for _ in range(count)]
        try:
            results = function(*given)
        except Exception as error:
            return type(error).__name__, [_seen(t) for t in given] if not leaf.requires_grad else None
        seen = [_seen(t) for t in (*results, *given, base)]
        written = draw.random() < 0.3
        if written:
            with torch.no_grad():
                given[0].zero_()
        return seen, _gradient(results, leaf)

    return call


def _argument(draw: random.Random, base: Tensor, apart: bool) -> Tensor:
    start = draw.choice((0, 0, 2, 4, 8))
    view = base[start : start + 4]
    return view.clone() if apart or draw.random() < 0.3 else view


def _seen(tensor: Tensor) -> Any:
    return tensor.tolist(), tuple(tensor.stride()), tensor.requires_grad


def _gradient(results: tuple[Tensor, ...], leaf: Tensor) -> Any:
    differentiable = [t for t in results if t.requires_grad]
    if not differentiable or not leaf.requires_grad:
        return None
    try:
        gradient = torch.autograd.grad([t.sum() for t in differentiable], [leaf], allow_unused=True)[0]
    except RuntimeError as error:
        return type(error).__name__
    return None if gradient is None else gradient.tolist()
