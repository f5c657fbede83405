"""Random programs whose sizes and integers differ from call to call: own front end against eager.

``python -m tests.capture.own.sized_programs FIRST COUNT [growing]`` prints what differs;
``growing``: a size is seldom one that came before.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from lamina.capture.own.callable import interpreted_callable
from lamina.capture.own.guards.library import Library
from lamina.record import Record
from tests.capture.own.changing_programs import Outcome, _shown, compared
from tests.capture.own.machines import guard_machine, no_machine

__all__ = ["difference"]

LINES = """
x = x * n
x = x + x.shape[0]
x = x / (x.shape[-1] + 1)
x = x + len(x)
x = x * 2 if x.shape[0] > 3 else x - 1
x = x + (n // 2) - n % 3
x = x + (n >> 1) + (n << 1) - (n & 3)
x = x * -n + abs(n) + n ** 2
x = x + divmod(n, 3)[0] - max(n, 2)
x = x + (5 if n else 6)
x = x + (1 if 2 < n < 6 else 2)
x = x + 3 if n == x.shape[0] else x
x = x.reshape(-1)
x = x.reshape(x.shape[0], -1)
x = x.t() if x.dim() == 2 else x
x = x.transpose(0, -1).contiguous()
x = x.transpose(0, -1).reshape(-1, x.shape[0])
x = x.view(x.shape[0], -1, 1).expand(-1, -1, 2)
x = x[:n]
x = x[-n:]
x = x[..., :n]
x = x[..., n:]
x = x[n]
x = x[n % len(x)]
x = x[..., -1]
x = x[1:]
x = x[None]
x = x[:, None] + x
x = x + x[:1]
x = x + x[..., :1]
x = x.sum(0)
x = x.sum(-1, keepdim=True)
x = x.mean(0, keepdim=True) + x
x = x.cumsum(0)
x = x.flip(0)
x = x.roll(n, 0)
x = x.tril(n) if x.dim() > 1 else x
x = torch.cat([x, x])
x = torch.cat([x, y]) if x.shape[1:] == y.shape[1:] else x
x = torch.stack([x, x], -1)
x = x + torch.arange(x.shape[-1])
x = x + torch.arange(n, n + x.shape[-1])
x = x + torch.zeros(x.shape) + torch.ones(x.size(0), 1)
x = torch.full((n, 2), n) + x.sum()
x = x.expand(n, *x.shape)
x = x.repeat(n, *[1] * (x.dim() - 1)) if n > 0 else x
x = x.repeat_interleave(n, 0) if n > 0 else x
x = torch.nn.functional.pad(x, (1, n))
x = x.narrow(0, 0, min(n, len(x))) if n > 0 else x
x = x.unfold(0, 2, 1)
x = x.chunk(2)[0]
x = x.split(n)[0] if n > 0 else x
for i in range(min(n, 3)): x = x + i
for i in range(len(x) % 4): x = x * 2 - i
x = x + sum(range(x.shape[0]))
x = sum([part * i for i, part in enumerate(x)])
x = x @ x.t() if x.dim() == 2 else x
x = x @ w[: x.shape[-1]] if x.dim() and x.shape[-1] < 20 else x
x = torch.nn.functional.softmax(x, -1)
x = torch.nn.functional.layer_norm(x, x.shape[-1:])
x = x * len(f"{n}:{x.shape[0]}")
x = x + {4: 1, 8: 2}.get(x.shape[0], 3)
x = x * table[n % 3]
x = x + int(str(n)[-1])
x = x * float(n) + n / 3
x = x + (n * 0.5)
x = x + round(n / 2) - int(n * 1.5)
x = x * (True if n == 1 else n)
y = x.contiguous(); y.add_(1)
y = x.reshape(-1); y.mul_(2)
y = x[:n]; y.add_(1)
y = x.transpose(0, -1).contiguous(); y.sub_(1)
y = x.flatten(); y.add_(n)
x, y = x + 1, x
y = x * n
with torch.no_grad(): y = x * 2
with torch.set_grad_enabled(not torch.is_grad_enabled()): x = x * 2 + n
with torch.enable_grad(): x = x + y
x[0] = n
x[..., 0] = x.shape[0]
given.mul_(2)
given[:n] = 1
held.n = held.n + 1; x = x + held.n
held.n = x.shape[0]
held.last = n * 2
x = x + held.n
held.seen.append(n)
held.seen.append(x.shape)
held.sizes[n] = len(x)
x = x + held.seen[-1] if held.seen and type(held.seen[-1]) is int else x
x = x * 2 if type(n) is int else x * 3
x = x + n if isinstance(n, int) else x
x = x + 1 if n in (2, 4, 8) else x
x = x + 1 if n is held.n else x
x = x * x.numel() - x.dim()
x = x + x.stride(0) if x.dim() else x
x = x.view(-1, 2) if x.numel() % 2 == 0 and x.is_contiguous() else x
x = x.sum(n % x.dim()) if x.dim() else x
x = x if x.sum() > n else x + n
x = x + x.sum().item() * n
x = x.clamp(-n, n)
x = x.add(x, alpha=n)
x = x ** (n % 4)
x = torch.where(x > n, x, n)
x = x.to(torch.int64) // 3 * n if n else x
x = x + torch.tensor(n) + torch.tensor([n, 1])[0]
x = x + torch.linspace(0, 1, x.shape[-1])
x = x.as_strided((n, 2), (1, 1)) if 0 < n < 3 else x
x = x + math.sqrt(n * n)
x = x + (n - x.shape[0]) * 2 + -x.shape[-1]
x = x[n - n :]
x = x[: len(x) // 2 + 1]
x = x[:: n % 2 + 1]
x = x[[0, -1]]
x = x.new_zeros(len(x), n % 5 + 1) + n
""".strip().splitlines()

RESULTS = (
    "x",
    "(x, y)",
    "(x, n, x.shape)",
    "(x, n + 1, [len(x)] if x.dim() else [])",
    "(x, {'n': n * 2, n: y})",
    "(given, x)",
    "(x, f'{n}', n > 2, n / 2)",
    "(x, (n, (n - 1, y.shape[0] if y.dim() else 0)))",
    "x.sum()",
)

SIZES = (
    (4,),
    (8,),
    (1,),
    (2,),
    (16,),
    (3,),
    (0,),
    (5,),
    (4, 6),
    (8, 6),
    (1, 6),
    (2, 3),
    (8, 1),
    (1, 1),
    (6, 4),
    (0, 3),
)
FORMS = (
    "torch.arange(1.0, {c}).reshape({s}) / 7",
    "torch.arange(1.0, {c}).reshape({s}) / 7",
    "(torch.arange(1.0, {c}).reshape({r}) / 7).permute({p})",
    "(torch.arange(1.0, {c}).reshape({s}) / 7).requires_grad_()",
    "torch.arange(1.0, {c} * 2 - 1).reshape(2, *{s})[1] / 7",
    "torch.arange(1, {c}).reshape({s})",
)


def _program(r: random.Random) -> str:
    lines = ["given = x", "y = x", *(["x = x + 1"] if r.random() < 0.7 else [])]
    lines += [r.choice(LINES) for _ in range(r.randint(1, 6))]
    text = "".join(f"    {line}\n" for line in lines)
    return f"def program(x, n):\n{text}    return {r.choice(RESULTS)}\n"


def _steps(r: random.Random) -> list[tuple[str, int, bool]]:
    """Calls: the argument, the integer and the grad mode; what varies does so often."""
    rank = r.choice((1, 2, 2))
    sizes = [size for size in SIZES if len(size) == rank]
    numbers = r.choice(((2, 3, 4, 5, 7), (1, 2, 3, 8), (0, 1, -1, 2, 3), (2, -2, 5, 300, 4), (6, 2**40, 7, 2**70, 5)))
    form, fixed, grad = r.choice(FORMS), r.choice(numbers), r.random() < 0.8
    varies, counts = r.random() < 0.6, r.random() < 0.3
    size, found = r.choice(sizes), []
    for step in range(r.randint(4, 8)):
        if r.random() < 0.7:
            size = r.choice(sizes)
        if r.random() < 0.1:
            form = r.choice(FORMS)
        count = 1
        for one in size:
            count *= one
        given = form.format(c=count + 1, s=size, r=size[::-1], p=tuple(range(rank))[::-1])
        number = fixed if not varies else step + fixed if counts else r.choice(numbers)
        found += [(given, number, grad)] * r.choice((1, 1, 2))
    return found


def _growing(r: random.Random) -> list[tuple[str, int, bool]]:
    """Calls that differ in the sizes of the argument, most of them in nothing else."""
    form, number, grad, rank = r.choice(FORMS), r.choice((1, 2, 3, 5)), r.random() < 0.8, r.choice((1, 2, 2))
    size, found = [r.randint(1, 9) for _ in range(rank)], []
    moving = [place for place in range(rank) if r.random() < 0.7] or [0]
    for _ in range(r.randint(8, 14)):
        for place in moving:
            size[place] = r.choice((r.randint(1, 12), r.randint(2, 40), size[place] + 1))
        count = 1
        for one in size:
            count *= one
        given = form.format(c=count + 1, s=tuple(size), r=tuple(size[::-1]), p=tuple(range(rank))[::-1])
        found.append((given, number if r.random() < 0.95 else r.choice((1, 2, 3, 5)), grad))
    return found


def _run(text: str, steps: list[tuple[str, int, bool]], wrap: Callable[[Any], Any]) -> list[Any]:
    held = SimpleNamespace(n=0, seen=[], sizes={}, last=None)
    space: dict[str, Any] = {
        "torch": torch, "math": math, "held": held, "table": [1, 2, 4], "w": torch.arange(60.0).reshape(20, 3)
    }  # fmt: skip
    exec(compile(text, "<sized program>", "exec"), space)
    call, found = wrap(space["program"]), []
    for given, number, grad in steps:
        x = eval(given, {"torch": torch})
        try:
            with torch.set_grad_enabled(grad):
                result: Any = call(x, number)
            found.append(_exactly(result))
        except Exception as error:
            found.append((type(error).__name__, str(error)[:60]))
            return found  # what was written before it may have been written or not
        found.append((_exactly(x), _exactly(held.n), _exactly(held.seen), _exactly(held.sizes), _exactly(held.last)))
    return found


def _exactly(value: Any) -> Any:
    """What two runs are compared by: strides of tensors and classes of integers too."""
    if isinstance(value, torch.Tensor):
        return _shown(value), value.stride(), value.storage_offset(), value.is_leaf
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [_exactly(part) for part in value]
    if isinstance(value, dict):
        return [(_exactly(key), _exactly(part)) for key, part in value.items()]
    return type(value).__name__, repr(value)


def difference(
    seed: int,
    machine: Callable[[], Library | None] = no_machine,
    backend: Callable[..., Any] = lambda gm, fakes: gm.forward,
    growing: bool = False,
) -> Outcome:
    """Run the program and the calls of ``seed`` by eager and by the own front end with graphs run by ``backend``."""
    r = random.Random(seed)
    text, steps = _program(r), _growing(r) if growing else _steps(r)
    outcome = Outcome(calls=len(steps), text=text)
    return compared(
        outcome,
        lambda made: _run(text, steps, made),
        lambda program: interpreted_callable(program, backend_callable=backend, record=Record(), machine=machine),
    )


def main() -> None:
    """Compare as many as are asked for."""
    first, count, growing = int(sys.argv[1]), int(sys.argv[2]), "growing" in sys.argv
    calls = reused = wrong = 0
    for seed in range(first, first + count):
        outcome = difference(seed, guard_machine, growing=growing)
        calls, reused = calls + outcome.calls, reused + outcome.reused
        if outcome.told:
            wrong += 1
            print(seed, outcome.told, outcome.text, sep="\n", flush=True)
    print(f"{count} programs, {wrong} differ; {reused} of {calls} calls were not interpreted")


if __name__ == "__main__":
    main()
