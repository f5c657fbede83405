"""Random programs of tensors and integers of either sign, called with changing integers.

A program indexes, slices, writes to and computes with a few tensors; every place, step, shift and number in it is an
expression of integers that change between calls. ``complaints`` compares it, compiled, with eager: values, dtypes,
shapes, strides, what shares memory with what, what inputs hold afterwards, gradients and the class of an error.

Runnable: ``python -m tests.fuzz.integers FIRST LAST [--backend NAME]`` tries the programs of these numbers.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

import lamina

__all__ = ["IntegerProgram", "complaints", "integer_program"]

NUMBERS = (-12, -11, -10, -7, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 9, 10, 11)
SHAPES = ((10,), (11,), (4, 6), (6, 4), (10, 3))
DTYPES = ("float32", "float32", "float64", "int64", "int32")


@dataclass(frozen=True, slots=True)
class IntegerProgram:
    """Source of ``program(x, y, k, m)`` and how it is to be run."""

    number: int
    source: str
    shape: tuple[int, ...]
    dtype: str
    calls: tuple[tuple[int, int], ...]
    dynamic: bool | None
    numerics: str
    gradients: bool

    def text(self) -> str:
        """The program and its calls, to read."""
        how = f"x: {self.dtype}{list(self.shape)}, dynamic={self.dynamic}, numerics={self.numerics}"
        return f"# number {self.number}: {how}, gradients={self.gradients}, (k, m) = {self.calls}\n{self.source}"

    def load(self) -> dict[str, Any]:
        """The module that the source is."""
        scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "Box": Box}
        exec(compile(self.source, f"<integers {self.number}>", "exec"), scope)
        return scope


class Box:
    """Holds integers as attributes."""

    def __init__(self, k: int, m: int) -> None:
        self.k, self.m = k, m


INTEGERS = (
    *("(i + 2)", "(i - 3)", "(i * 2)", "(i * 5)", "(i + i)", "(i - i)", "(i * i)", "(-i)", "abs(i)", "(i) ** 2"),
    *("(i // 2)", "(i // 3)", "(i % 3)", "(i % 7)", "(i // -2)", "(i % -5)", "(i // 2 + 5)", "(i // (i))"),
    *("(i % (abs(i) + 1))", "(i & 3)", "(i >> 1)", "(i << 1)", "(x.shape[0] - i)", "(x.shape[0] // (i))"),
    *("max(i, i)", "min(i, 2)", "int(i / 2)", "(i % x.shape[0])", "(i if i > 0 else 2)"),
)
"""Integers made of integers ``i``."""

PLACES = ("k", "k", "i % x.shape[0]", "k // 2", "k % 4", "i")
"""Integers that often are places in the first dimension."""

POSITIVE = ("(abs(i) % 4 + 1)", "(i % 3 + 1)", "k", "abs(m) + 1")
"""Integers that mostly are positive."""

PIECES = ("a:", ":a", "a:a", "::p", "a::p", ":a:p", "1:8:p", "a:a + 3", "-(a):")
"""Slices."""

VIEWS = (
    *("t[a]", "t[s]", "t[s]", "t[s]", "t.narrow(0, a, 2)", "t.unfold(0, 2, p)", "t.split(p)[0]", "t.split(p)[-1]"),
    *("t.as_strided((2,), (p,), a)", "t.as_strided((3,), (p,))", "t.select(0, a)", "t[..., a]", "t[..., s]"),
    *("t[:1].expand(p, *t.shape[1:])", "t[5:][s]", "t[::2][s]", "t.t()[a]", "t.unbind(0)[a]"),
)

MATRIX_VIEWS = (
    *("t.diagonal(i % 5 - 2)", "t[::p, 1:]", "t.view(-1)[s]", "t[s, s]", "t[a, s]", "t.t()[s]", "t[:, a]"),
    "t[s].t()",
)

COMPUTED = (
    *("(t + i)", "(t * i)", "(i - t)", "(t / (abs(i) + 1))", "(t // (abs(i) + 1))", "(t % (abs(i) + 2))"),
    *("(t > i) * 1", "torch.where(t > i, t, t + i)", "(t + i / 4)", "t.clamp(min(i, 0), 7)", "(t * float(i))"),
    *("torch.add(t, t, alpha=i)", "(t * (i > i))", "t.roll(i, 0)", "t.roll(i)", "t.cumsum(0)[a]", "(t == i)"),
    *("t.masked_fill(t > 1, i)", "torch.select_scatter(t, t[0] + 7, 0, a)", "F.pad(t, (i % 5 - 2, i % 4 - 1))"),
    *("torch.slice_scatter(t, t[:2] + 1, 0, a, a + 2)", "t.index_select(0, torch.tensor([a, 0]))", "t[[a, -1]]"),
    *("t[torch.arange(p) + a]", "(t + torch.arange(i, i + t.shape[-1]))", "t.repeat(p, *[1] * (t.dim() - 1))"),
    *("torch.full((p,), i) + t.sum()", "t.gather(0, torch.full_like(t, a, dtype=torch.int64))", "(t - i // 3)"),
    *("torch.arange(i, i)", "t.sum(i % t.dim())", "torch.cat([t[s], t])", "t.new_full((2, 2), i)", "t[s].sum(0)"),
    *("t.flip(0)[s] * 2", "(t ** (i % 3))", "t.abs() ** (i % 4 - 1)", "torch.fmod(t, abs(i) + 1)", "t.sort(0)[0][a]"),
    *("torch.zeros(p + 1) + i", "torch.scalar_tensor(i) + t", "(t + 2) ** k", "t.double().softmax(0)[a]"),
    *(
        "t.index_fill(0, torch.tensor([a]), i)",
        "torch.lerp(t.double(), t + i * 0.5, 0.25)",
        "(t.long() << (i % 3))",
        "(t.long() & i)",
    ),
)

MATRIX_COMPUTED = ("t.tril(i)", "t.triu(i)", "t.double().mean(i % 2)", "t.sum(1)", "(t @ t.t())[a]")

WRITES = (
    *("t[a] = i", "t[s] = i", "t[s] += i", "t[a] *= 3", "t[::p] = 1", "t.narrow(0, a, 2).fill_(i)", "t[a] = m"),
    *("t[s].add_(2)", "t[a] = t[0]", "t.as_strided((2,), (p,)).zero_()", "t[s].mul_(i)", "t.select(0, a).add_(i)"),
    *("t[torch.tensor([a])] = i", "t[..., a] = i", "t[s] = t[:1].clone()", "t[a] = torch.tensor(i)"),
)

AFTERWARDS = ("t * 2", "t.sum()", "t[0]", "t.clone()")


class _Writer:
    """Draws statements from the tables: ``t`` is a tensor; ``i``, ``a``, ``p``, ``s`` integers, places and slices."""

    def __init__(self, random: Random, rank: int) -> None:
        self.random, self.rank = random, rank
        self.lines: list[str] = []
        self.count = 0

    def integer(self, depth: int) -> str:
        """Any integer."""
        if depth == 0 or self.random.random() < 0.3:
            return self.random.choice(("k", "k", "k", "m", "-k", "-3", "-1", "0", "1", "2", "5"))
        return self.filled(self.random.choice(INTEGERS), depth - 1)

    def filled(self, template: str, depth: int = 2, tensor: str = "") -> str:
        """The template with everything drawn that it leaves open."""

        def drawn(name: re.Match[str]) -> str:
            kind = name.group()
            if kind == "t":
                return tensor
            if kind == "i":
                return self.integer(depth)
            table = {"a": PLACES, "p": POSITIVE, "s": PIECES}[kind]
            return self.filled(self.random.choice(table), max(depth - 1, 0))

        return re.sub(r"(?<![\w.])[taips](?!\w)(?! for )", drawn, template)

    def write(self, t: str) -> None:
        """One more line, which writes to ``t``."""
        self.lines.append(self.filled(self.random.choice(WRITES), tensor=t))

    def statement(self, t: str) -> str:
        """One more line, which makes a new variable of ``t`` or of a written copy of it; returns the variable."""
        self.count += 1
        name, kind = f"v{self.count}", self.random.random()
        matrix = self.rank == 2
        if kind < 0.75:
            views, computed = VIEWS + MATRIX_VIEWS * matrix, COMPUTED + MATRIX_COMPUTED * matrix
            template = self.random.choice(views if kind < 0.4 else computed)
            self.lines.append(f"{name} = {self.filled(template, tensor=t)}")
        else:
            self.lines.append(f"{name} = {t}.clone()")
            for _ in range(self.random.choice((1, 1, 2))):
                self.write(name)
        return name


UNPACKED = {
    "k, m": "",
    "box, m": "k = box.k",
    "table, m": "k = table['k']",
    "pair": "k, m = pair",
    "s, m": "k = s.start",
}
GIVEN = {
    "k, m": "k, m",
    "box, m": "Box(k, m), m",
    "table, m": "{'k': k}, m",
    "pair": "((k, m),)",
    "s, m": "slice(k, None), m",
}
"""How the integers reach the program."""


def integer_program(number: int) -> IntegerProgram:
    """The program with this number."""
    r = Random(number)
    shape, dtype, signature = r.choice(SHAPES), r.choice(DTYPES), r.choice(tuple(GIVEN))
    w = _Writer(r, len(shape))
    results = [w.statement("x") for _ in range(r.choice((1, 1, 2)))]
    gradients = "int" not in dtype and r.random() < 0.5
    if r.random() < 0.2 and not gradients:
        w.write("x")
    if r.random() < 0.3:
        results.append(w.filled(r.choice(AFTERWARDS), tensor=results[0]))
    lines = (*filter(None, [UNPACKED[signature]]), *w.lines, f"return {', '.join(results)},")
    body = "\n".join(f"    {line}" for line in lines)
    source = f"def program(x, {signature}):\n{body}\n\n\ndef arguments(k, m):\n    return {GIVEN[signature]}\n"
    numbers = NUMBERS if r.random() < 0.75 else tuple(n for n in NUMBERS if n > 0)
    calls = tuple((r.choice(numbers), r.choice(NUMBERS)) for _ in range(r.choice((3, 4, 5))))
    if r.random() < 0.5:  # one of them stays
        calls = tuple((k, calls[0][1]) for k, _ in calls)
    numerics = r.choice(("fast", "fast", "eager"))
    return IntegerProgram(number, source, shape, dtype, calls, r.choice((None, True)), numerics, gradients)


# ---- running --------------------------------------------------------------------------------------------------------


def _input(program: IntegerProgram) -> Tensor:
    values = torch.randn(program.shape, generator=torch.Generator().manual_seed(program.number)) * 3
    x = values.to(getattr(torch, program.dtype))
    return x.requires_grad_() if program.gradients else x


def _outcome(function: Callable[..., Any], x: Tensor, arguments: Sequence[Any]) -> Any:
    """What a call gives: an exception, or its results; then the input as it is afterwards and its gradient."""
    try:
        results = function(x, *arguments)
    except Exception as error:
        return error
    facts: list[Any] = []
    for one in results:
        if not isinstance(one, Tensor):
            facts.append((type(one), one))
            continue
        own = one.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() if one.numel() else None
        strides = tuple(s for s, n in zip(one.stride(), one.shape, strict=True) if n > 1) if one.numel() else ()
        where = one.storage_offset() if own and one.numel() else None
        facts.append((one.shape, one.dtype, strides, own, where, one.requires_grad, one.detach().clone()))
    facts.append(x.detach().clone())
    differentiable = [one for one in results if isinstance(one, Tensor) and one.requires_grad]
    if differentiable:
        total = sum((one * one).sum() for one in differentiable)
        assert isinstance(total, Tensor)
        try:
            total.backward()
        except RuntimeError as error:
            facts.append(error)
        facts.append(x.grad)
    return facts


def _same(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, Tensor) and isinstance(theirs, Tensor):
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            return False
        if not mine.dtype.is_floating_point:
            return torch.equal(mine, theirs)
        tolerance = 1e-10 if mine.dtype == torch.float64 else 1e-4
        return torch.allclose(mine, theirs, rtol=tolerance, atol=tolerance, equal_nan=True)
    if isinstance(mine, (list, tuple)) and isinstance(theirs, (list, tuple)):
        return len(mine) == len(theirs) and all(map(_same, mine, theirs))
    if isinstance(mine, Exception) or isinstance(theirs, Exception):
        return isinstance(mine, type(theirs)) or isinstance(theirs, type(mine))
    return bool(mine == theirs)


def complaints(program: IntegerProgram, backend: str = "lamina") -> list[str]:
    """What the program gets wrong when it is compiled."""
    scope = program.load()
    torch.compiler.reset()
    options = {"numerics": program.numerics} if backend == "lamina" else None
    compiled = lamina.compile(scope["program"], dynamic=program.dynamic, backend=backend, options=options)
    found = []
    for k, m in program.calls:
        theirs = _outcome(scope["program"], _input(program), scope["arguments"](k, m))
        mine = _outcome(compiled, _input(program), scope["arguments"](k, m))
        if not _same(mine, theirs):
            found.append(f"k={k}, m={m}:\n  eager {theirs!r}\n  ours  {mine!r}"[:1500])
    return found


def main() -> None:
    """Try a range of programs and print those that fail."""
    parser = argparse.ArgumentParser()
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--backend", default="lamina")
    chosen = parser.parse_args()
    failed = []
    for number in range(chosen.first, chosen.last):
        program = integer_program(number)
        print(f"? {number}", file=sys.stderr, flush=True)
        found = complaints(program, chosen.backend)
        if found:
            failed.append(number)
            print(program.text(), *found, "", sep="\n", flush=True)
    print(f"{chosen.last - chosen.first} programs, {len(failed)} failed: {failed}")


if __name__ == "__main__":
    main()
