"""Entire programs that read and write state of Python's: what is there or not, and what methods of new objects hold."""

from __future__ import annotations

from lamina.testing.fuzz.whole import Whole

__all__ = ["STATE"]

STATE: dict[str, Whole] = {
    "absences": Whole(
        0.6,
        "attributes and keys that are not there in one call and are in another",
        """
import types


class Plain:
    pass


value = <value>
held = {}


def f(x):
    scale = 3
    <gap>
    try:
        scale = <asked>
    except (AttributeError, KeyError):
        scale = 5
    <gap>
    return x * scale


def program(compile):
    g = compile(f)
    for k in range(4):
        if k == 1:
            value.later = held["key"] = 7
        if k == 2:
            value.__dict__.pop("later", None)
            held.clear()
        if k == 3:
            type(value).later = 9
        yield attempt(g, sample(8))
    del type(value).later
""",
        {
            "value": ("Plain()", "nn.Linear(2, 2)", "type('Kind', (Plain,), {})()"),
            "gap": ("", "", "pause()"),
            "asked": (
                "value.later",
                "getattr(value, 'later', 2)",
                "2 if hasattr(value, 'later') else 4",
                "value.__dict__.get('later', 2)",
                "vars(value)['later']",
                "held['key']",
                "held.get('key', 2)",
            ),
        },
    ),
    "objects": Whole(
        0.6,
        "objects that a program makes, whose methods read and write what is around them; deques, defaults, text",
        """
import collections
import random

held = [2]
last = collections.deque([1], maxlen=<most>)
draws = random.Random(5)


def around(log):
    count = 1

    class Kind:
        def __init__(self, start, seen=[1]):
            seen.append(start)
            self.start = start + len(seen)

        def __enter__(self):
            log.append(self.start)
            return len(log)

        def __exit__(self, *error):
            nonlocal count
            count += 1

        def __len__(self):
            return count

    return Kind


Kind = around(held)


def note(number, kept=[1], *, more=<more>):
    kept.append(number)
    return len(kept) + len(more)


def f(x, s):
    with Kind(2) as scale:
        <gap>
        x = x * scale + len(Kind(3))
    last.append(scale)
    <draw>
    <text>
    return x + sum(last), len(held), note(1)


def program(compile):
    g = compile(f)
    for k in range(3):
        yield attempt(g, sample(8), <number>), list(last), list(held)
        held.append(k)
    yield draws.random()
""",
        {
            "more": ("[2]", "'ab'", "(1, 2)"),
            "most": ("1", "2", "3"),
            "number": ("2.5", "k + 0.5", "k + 2", "'ab' * k"),
            "text": ("", "x = x * len(f'{s}')", "x = x * (f'{s}' == '2.5')", "x = x + len(f'{s!r:>9}')"),
            "gap": ("", "", "pause()"),
            "draw": ("", "", "x = x * draws.random()", "x = x + draws.randint(1, 4)", "x = x * draws.uniform(1, 2)"),
        },
    ),
    "write_counts": Whole(
        0.6,
        "caches kept until a tensor is written to, and how often it was",
        """
held = {}


def f(x, w):
    if held.get("at") != <asked>:
        held.update(at=<asked>, kept=w * 2)
    <gap>
    before = x._version
    <change>
    return x * held["kept"], before, x._version


def program(compile):
    held.clear()
    g = compile(f)
    w = sample(8)
    for k in range(5):
        if k in (2, 4):
            <write>
        yield attempt(g, sample(8), w)
""",
        {
            "asked": ("w._version", "getattr(w, '_version')"),
            "gap": ("", "", "pause()"),
            "change": ("x.add_(1)", "x[0] = 3", "x.view(-1)[1:].mul_(2)", "pass"),
            "write": ("w.mul_(3)", "w[1] = 5.0", "w.view(-1)[2:].add_(1)", "w.data.mul_(3)"),
        },
    ),
    "left_generators": Whole(
        0.6,
        "generators that are left before they end, within a mode",
        """
def parts(x):
    with <mode>:
        yield x * 2
        yield x @ x
    yield x + 1


def f(x):
    <taken>
    <gap>
    return y * 2, x @ x, torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")


def program(compile):
    g = compile(f)
    for k in range(2):
        yield attempt(g, sample(3, 3).requires_grad_())
        yield torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")
""",
        {
            "mode": ("torch.no_grad()", "torch.enable_grad()", "torch.autocast('cpu', torch.bfloat16)"),
            "gap": ("", "", "pause()"),
            "taken": (
                "y = next(parts(x))",
                "y = next(iter(parts(x)))",
                "y, _, _ = parts(x)",
                "y = sum(p.float() for p in parts(x))",
                "y = [p for p, _ in zip(parts(x), range(2))][-1]",
                "y = next(p for p in parts(x) if p.dim() == 2)",
            ),
        },
    ),
}
"""Entire programs, by name."""
