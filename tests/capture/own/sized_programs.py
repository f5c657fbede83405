"""Random programs whose sizes and integers differ from call to call: own front end against eager.

``python -m tests.capture.own.sized_programs FIRST COUNT [growing]`` prints what differs;
``growing``: a size is seldom one that came before; ``numbers``: programs compute with numbers made of sizes.
"""

from __future__ import annotations

import enum
import functools
import math
import numbers
import operator
import random
import re
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
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

NUMBERS = """
k = x.shape[0] // 2
k = x.shape[-1] % 3
k = k // 3 - k % 5
k = -k // 2 + ~k
k = min(x.shape[0], k, 7)
k = max(k, len(x), n)
k = max([x.shape[0], k])
k = min((k, n), key=lambda one: -one)
k, rest = divmod(x.numel(), 3); k = k + rest
k = divmod(-k, 4)[1]
k = round(k / 3)
k = round(k, -1)
k = int(k / 2)
k = int(float(k) * 1.5)
k = int(float(x.shape[0]))
k = float(k).is_integer() + k
k = k.bit_length() + x.shape[0].bit_count()
k = int(k.to_bytes(8, "big", signed=True)[-1])
k = k if 1 < k < x.shape[0] < 30 else k + 1
k = k if not (k == x.shape[0] != n) else k - 1
k = k and x.shape[0]
k = k or n
k = (k > 3) + (k < 9) * 2
k = k - (k > 3)
k = {k: 1, 5: 2}.get(x.shape[0], 3)
k = {x.shape[0]: k}.get(k, 4)
k = len({k, x.shape[0], n})
k = len({k: 1, x.shape[0]: 2, 4: 3})
k = sum({k, x.shape[0], 2})
k = k if k in {2, 3, x.shape[0]} else k + 2
k = k if k in (x.shape[0], 5) else k * 2
k = [x.shape[0], k, n].index(k)
k = [x.shape[0], k, n, k].count(k)
k = int(f"{k}")
k = int(f"{k:03d}"[-1:])
k = len(f"{x.shape[0]}x{k!r}")
k = int("%d" % k)
k = int(str(k)[::-1].strip("-") or 0)
k = len("{}{}".format(k, x.shape))
k = sorted([k, x.shape[0], n, 3])[1]
k = sorted({k, x.shape[0]}, reverse=True)[0]
k = sorted(x.shape)[0]
k = sum(x.shape) + k
k = k + [*x.shape][-1]
k = k + len(x.shape[1:])
k = next(iter(x.shape)) + k
k = k + (1 if isinstance(k, int) else 2) + (1 if type(x.shape[0]) is int else 2)
k = k + (1 if isinstance(k, bool) else 2)
k = k + 1 if k is x.shape[0] else k
k = k if k is not n else k + 2
k = k + bool(k) + bool(x.shape[0] - 4)
k = k + hash(k) % 7
k = k + hash((x.shape[0], k)) % 3
k = k + (hash(x.shape) == hash(tuple(x.shape)))
held.size = x.shape[0]; k = held.size + k
held.size = k; held.twice = held.size * 2
k = k + getattr(held, "twice", 1)
globals()["kept"] = k
kept_number.append(k); k = k + kept_number[0]
k = k + kept_number[-1] if kept_number else k
by_size[x.shape[0]] = k
k = k + by_size.get(k, 3)
by_size.setdefault(k, x.shape[0]); k = by_size[k] + 1
k = k + len(by_size)
k = cached(k)
k = cached(x.shape[0]) + cached(n)
k = cached_pair(k, x.shape[0])
k = counted(k) + k
k = math.floor(k / 2) + math.ceil(x.shape[0] / 3)
k = math.gcd(k, x.shape[0])
k = math.isqrt(abs(k))
k = int(math.sqrt(abs(k)) + math.log2(x.shape[0] + 1))
k = int(math.pow(2, k % 4)) + math.trunc(k * 0.5)
k = math.prod(x.shape) + math.comb(abs(k) % 9, 2)
k = int(math.copysign(2, k)) + int(math.fmod(k, 3))
k = int(np.sqrt(abs(k)))
k = int(np.prod(x.shape))
k = int(np.arange(k % 9 + 1).sum())
k = int(np.int64(k) + x.shape[0])
k = int(np.array([k, x.shape[0]]).max())
k = operator.add(k, x.shape[0]) - operator.index(k)
k = abs(k) + pow(k, 2, 11)
k = pow(k % 5, 2) - k ** 2
k = (k << 1) ^ (x.shape[0] >> 1) | 1
k = k + complex(k).real.__int__()
k = k.__add__(x.shape[0]) + k.real - k.imag
k = int.__add__(k, 1) if hasattr(k, "real") else 3
k = k.conjugate() + k.numerator
k = functools.reduce(operator.mul, x.shape, 1) - k
k = functools.reduce(lambda one, other: one * 2 + other, [k, *x.shape])
k = sum(one * k for one in x.shape)
k = sum(map(int, x.shape)) + len(list(filter(None, [k, n])))
k = any(one > k for one in x.shape) + all(one < 9 for one in x.shape)
k = [one for one in range(k % 5 + 1)][-1]
k = list(range(0, x.shape[0], k % 3 + 1))[-1] if x.shape[0] else k
k = len(range(k % 20)) + (k in range(3, x.shape[0]))
k = dict(zip("ab", x.shape)).get("b", k)
k = list(enumerate(x.shape, k))[0][0] + 1
k = Pair(k, x.shape[0]).first + Pair(1, k)[1]
k = len(Sized(k % 5))
k = k + (Kind(x.shape[0]) is Kind.FOUR if x.shape[0] == 4 else 0)
k = isinstance(k, Number) + k
k = chosen(k)
k = k if chosen.last == k else k + 1
k += 1
k -= x.shape[0]
k *= 2 if k < 50 else -1
k %= 17
k = int(k == x.shape[0]) + int(k != n)
k = (lambda size=k: size + 1)()
k = shifted(by=k)
k = shifted(*[k], by=x.shape[0])
while k > 40: k = k - 13
for one in x.shape: k = k + one
if k > 6: k = k - x.shape[0]
if x.shape[0] % 2: k = k + 5
if k == n or k == x.shape[0]: x = x - 1
try: k = 12 // k
except ZeroDivisionError: k = 7
try: k = (3, 4, 5)[k]
except IndexError: k = k + 1
try: k = {4: 2}[x.shape[0]]
except KeyError as error: k = error.args[0]
match k:
        case 4 | 8: k = 3
        case one if one > 10: k = one - 10
        case _: k = k + 1
k = float(k) / 4 + 0.25
k = k * 0.5
k = -k + 1.5 * x.shape[0]
k = int(k)
k = k / (x.shape[0] + 1)
k = x.shape[0] if k != k else k
k = float(f"{k:.3f}")
k = float(min(k, 3)) + max(0.5, k)
k = k.hex() and k if type(k) is float else k
x = x + k
x = x * k
x = x - k / 3
x = x / (x.shape[0] + 1) * k
x = x + torch.tensor(k)
x = x + torch.tensor([k, x.shape[0]]).sum()
x = x * k if k > 3 else x - k
x = x.clamp(-abs(k), abs(k) + 1)
x = torch.add(x, x, alpha=k)
x = x[: max(1, int(k) % 5)]
x = x + torch.arange(x.shape[-1]) * k
x = torch.cat([x, x])
x = x * 2
x = x.new_full((2, x.shape[0]), k).sum() + x
x = x.reshape(x.shape[0], -1)
x = torch.where(x > k, x, x.shape[0] - k)
x = x + (k == x.shape[0])
x = x + x.shape[0] ** 0.5
""".strip()
"""What programs do with numbers made of sizes; a line that begins with blanks goes on with the one before."""
NUMBER_LINES = re.split(r"\n(?! |except)", NUMBERS)

NUMBER_RESULTS = (
    "(x, k)",
    "(x, [k, k], x.shape)",
    "(x, {k: x}, n)",
    "(x, str(k), k == n, k)",
    "(x, held.n, k * 2)",
    "x",
)

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


def _of_numbers(r: random.Random) -> str:
    """A program that computes with numbers that it makes of sizes."""
    lines = ["k = x.shape[0]", *(["x = x + 1"] if r.random() < 0.5 else [])]
    lines += [r.choice(NUMBER_LINES) for _ in range(r.choice((1, 1, 2, 2, 3, 5)))]
    lines += [r.choice([line for line in NUMBER_LINES if line.startswith("x = ")])]
    text = "".join(f"    {part}\n" for line in lines for part in line.split("\n"))
    return f"def program(x, n):\n{text}    return {r.choice(NUMBER_RESULTS)}\n"


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


class Pair(NamedTuple):
    """Two numbers."""

    first: Any
    second: Any


class Sized:
    """What has a length."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size


class Kind(enum.Enum):
    """Two members with numbers."""

    FOUR = 4
    EIGHT = 8


def _helpers() -> dict[str, Any]:
    """What the programs call, new for each run."""
    calls: list[Any] = []

    def counted(number: Any) -> int:
        calls.append(number)
        return len(calls)

    def chosen(number: Any) -> Any:
        chosen.last = number  # type: ignore[attr-defined]
        return number + 1 if number > 5 else number - 1

    chosen.last = None  # type: ignore[attr-defined]
    return {
        "np": np, "operator": operator, "functools": functools, "Number": numbers.Number, "Pair": Pair, "Sized": Sized,
        "Kind": Kind, "kept_number": [], "by_size": {}, "counted": counted, "chosen": chosen,
        "cached": functools.cache(lambda number: number * 3 % 11),
        "cached_pair": functools.lru_cache(4)(lambda one, other: one * 2 - other),
        "shifted": lambda *given, by=0: sum(given) + by * 2,
    }  # fmt: skip


def _run(text: str, steps: list[tuple[str, int, bool]], wrap: Callable[[Any], Any]) -> list[Any]:
    held = SimpleNamespace(n=0, seen=[], sizes={}, last=None)
    space: dict[str, Any] = {
        "torch": torch, "math": math, "held": held, "table": [1, 2, 4], "w": torch.arange(60.0).reshape(20, 3),
        **_helpers(),
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
        if "kept_number" in text or "by_size" in text or "kept" in space:
            found.append([_exactly(space.get(name)) for name in ("kept_number", "by_size", "kept")])
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
    computing: bool = False,
) -> Outcome:
    """Run the program and the calls of ``seed`` by eager and by the own front end with graphs run by ``backend``."""
    r = random.Random(seed)
    text, steps = _of_numbers(r) if computing else _program(r), _growing(r) if growing else _steps(r)
    outcome = Outcome(calls=len(steps), text=text)
    return compared(
        outcome,
        lambda made: _run(text, steps, made),
        lambda program: interpreted_callable(program, backend_callable=backend, record=Record(), machine=machine),
    )


def main() -> None:
    """Compare as many as are asked for."""
    first, count, growing, computing = int(sys.argv[1]), int(sys.argv[2]), "growing" in sys.argv, "numbers" in sys.argv
    calls = reused = wrong = 0
    for seed in range(first, first + count):
        outcome = difference(seed, guard_machine, growing=growing, computing=computing)
        calls, reused = calls + outcome.calls, reused + outcome.reused
        if outcome.told:
            wrong += 1
            print(seed, outcome.told, outcome.text, sep="\n", flush=True)
    print(f"{count} programs, {wrong} differ; {reused} of {calls} calls were not interpreted")


if __name__ == "__main__":
    main()
