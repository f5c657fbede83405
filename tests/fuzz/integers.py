"""Random programs of tensors and integers of either sign, called with changing integers.

A program indexes, slices, writes to and computes with a few tensors; every place, step, shift and number in it is an
expression of integers that change between calls. ``complaints`` compares it, compiled, with eager: values, dtypes,
shapes, strides, what shares memory with what, what inputs hold afterwards, gradients and the class of an error.

Runnable: ``python -m tests.fuzz.integers FIRST LAST [--backend NAME]`` tries the programs of these numbers.
"""

from __future__ import annotations

import argparse
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
SIGNATURES = ("k, m", "box, m", "table, m", "pair", "s, m")


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


class _Writer:
    def __init__(self, random: Random, rank: int, whole: bool) -> None:
        self.random, self.rank, self.whole = random, rank, whole
        self.lines: list[str] = []
        self.count = 0

    # ---- integers -------------------------------------------------------------------------------------------------

    def integer(self, depth: int = 2) -> str:
        """Any integer."""
        r = self.random
        if depth == 0 or r.random() < 0.3:
            return r.choice(("k", "k", "k", "m", "-k", str(r.choice((-3, -1, 0, 1, 2, 5)))))
        a, c = self.integer(depth - 1), r.choice((2, 3, 5, 7))
        b = self.integer(depth - 1)
        return r.choice(
            (
                *(f"({a} + {c})", f"({a} - {c})", f"({a} + {b})", f"({a} - {b})", f"({a} * {c})", f"({a} * {b})"),
                *(f"({a} // {c})", f"({a} % {c})", f"({a} // -{c})", f"({a} % -{c})", f"({a} // 2 + 5)"),
                *(f"abs({a})", f"max({a}, {b})", f"min({a}, {c})", f"(x.shape[0] - {a})", f"(-{a})", f"({a}) ** 2"),
                *(f"({a} // ({b}))", f"({a} % (abs({b}) + 1))", f"({a} & 3)", f"({a} >> 1)", f"({a} << 1)"),
                *(f"(x.shape[0] // ({a}))", f"int({a} / 2)", f"({a} % x.shape[0])", f"({a} if {b} > 0 else {c})"),
            )
        )

    def place(self) -> str:
        """An integer that often is a place in the first dimension."""
        return self.random.choice(("k", "k", f"{self.integer(1)} % x.shape[0]", "k // 2", "k % 4", self.integer()))

    def positive(self) -> str:
        """An integer that is positive, mostly."""
        return self.random.choice((f"(abs({self.integer(1)}) % 4 + 1)", f"({self.integer(1)} % 3 + 1)", "k", "abs(m) + 1"))

    def piece(self) -> str:
        """A slice of the first dimension."""
        a, b, p = self.place(), self.place(), self.positive()
        return self.random.choice(
            (f"{a}:", f":{a}", f"{a}:{b}", f"::{p}", f"{a}::{p}", f":{a}:{p}", f"1:8:{p}", f"{a}:{a} + 3", f"-({a}):")
        )

    # ---- tensors --------------------------------------------------------------------------------------------------

    def view(self, t: str) -> str:
        a, p = self.place(), self.positive()
        options = [
            *(f"{t}[{self.place()}]", f"{t}[{self.piece()}]", f"{t}[{self.piece()}]", f"{t}[{self.piece()}]"),
            *(f"{t}.narrow(0, {a}, 2)", f"{t}.unfold(0, 2, {p})", f"{t}.split({p})[0]", f"{t}.split({p})[-1]"),
            *(f"{t}.as_strided((2,), ({p},), {a})", f"{t}.as_strided((3,), ({p},))", f"{t}.select(0, {a})"),
            *(f"{t}[:1].expand({p}, *{t}.shape[1:])", f"{t}[..., {a}]", f"{t}[..., {self.piece()}]"),
            *(f"{t}[5:][{self.piece()}]", f"{t}[::2][{self.piece()}]", f"{t}.t()[{a}]", f"{t}.unbind(0)[{a}]"),
        ]
        if self.rank == 2:
            options += [f"{t}.diagonal({self.integer(1)} % 5 - 2)", f"{t}[::{p}, 1:]", f"{t}.view(-1)[{self.piece()}]"]
            options += [f"{t}[{self.piece()}, {self.piece()}]", f"{t}[{a}, {self.piece()}]", f"{t}.t()[{self.piece()}]"]
        return self.random.choice(options)

    def computed(self, t: str) -> str:
        a, b, p, n = self.place(), self.integer(), self.positive(), self.integer()
        options = [
            *(f"({t} + {n})", f"({t} * {n})", f"({n} - {t})", f"({t} / (abs({n}) + 1))", f"({t} // (abs({n}) + 1))"),
            *(f"({t} % (abs({n}) + 2))", f"({t} > {n}) * 1", f"torch.where({t} > {n}, {t}, {t} + {b})", f"({t} + {n} / 4)"),
            *(f"{t}.clamp(min({n}, 0), 7)", f"torch.add({t}, {t}, alpha={n})", f"({t} * ({n} > {b}))", f"({t} * float({n}))"),
            *(f"{t}.roll({n}, 0)", f"{t}.roll({n})", f"{t}.cumsum(0)[{a}]", f"{t}.masked_fill({t} > 1, {n})"),
            *(f"torch.select_scatter({t}, {t}[0] + 7, 0, {a})", f"torch.slice_scatter({t}, {t}[:2] + 1, 0, {a}, {a} + 2)"),
            *(f"F.pad({t}, ({n} % 5 - 2, {b} % 4 - 1))", f"{t}.index_select(0, torch.tensor([{a}, 0]))", f"{t}[[{a}, -1]]"),
            *(f"{t}[torch.arange({p}) + {a}]", f"({t} + torch.arange({n}, {n} + {t}.shape[-1]))", f"{t}.repeat({p}, *[1] * ({t}.dim() - 1))"),
            *(f"torch.full(({p},), {n}) + {t}.sum()", f"{t}.gather(0, torch.full_like({t}, {a}, dtype=torch.int64))"),
            *(f"torch.arange({n}, {b})", f"({t} == {n})", f"{t}.sum({n} % {self.rank})", f"torch.cat([{t}[{self.piece()}], {t}])"),
            *(f"{t}.new_full((2, 2), {n})", f"{t}.flip(0)[{self.piece()}] * 2", f"{t}[{self.piece()}].sum(0)"),
            *(f"({t} ** ({n} % 3))", f"{t}.abs() ** {n}", f"torch.fmod({t}, abs({n}) + 1)", f"{t}.sort(0)[0][{a}]"),
            *(f"torch.zeros({p} + 1) + {n}", f"{t}.softmax(0)[{a}]" if not self.whole else f"({t} << ({n} % 3))"),
            *(f"torch.scalar_tensor({n}) + {t}", f"{t}.fill_diagonal_({n})" if self.rank == 2 else f"({t} - {n} // 3)"),
        ]
        if self.rank == 2:
            options += [f"{t}.tril({n})", f"{t}.triu({n})", f"{t}.mean({n} % 2)" if not self.whole else f"{t}.sum(1)"]
        return self.random.choice(options)

    def write(self, t: str) -> str:
        a, n, p = self.place(), self.integer(), self.positive()
        return self.random.choice(
            (
                *(f"{t}[{a}] = {n}", f"{t}[{self.piece()}] = {n}", f"{t}[{self.piece()}] += {n}", f"{t}[{a}] *= 3"),
                *(f"{t}[::{p}] = 1", f"{t}.narrow(0, {a}, 2).fill_({n})", f"{t}[{self.piece()}].add_(2)", f"{t}[{a}] = m"),
                *(f"{t}[{a}] = {t}[0]", f"{t}.as_strided((2,), ({p},)).zero_()", f"{t}[{self.piece()}].mul_({n})"),
                *(f"{t}.select(0, {a}).add_({n})", f"{t}[torch.tensor([{a}])] = {n}", f"{t}[..., {a}] = {n}"),
            )
        )

    def statement(self, t: str) -> str:
        """One more line, which makes a new variable of ``t`` or writes to it; returns the variable."""
        self.count += 1
        name = f"v{self.count}"
        kind = self.random.random()
        if kind < 0.4:
            self.lines.append(f"{name} = {self.view(t)}")
        elif kind < 0.75:
            self.lines.append(f"{name} = {self.computed(t)}")
        else:
            self.lines += [f"{name} = {t}.clone()", self.write(name)]
            if self.random.random() < 0.3:
                self.lines.append(self.write(name))
        return name


def integer_program(number: int) -> IntegerProgram:
    """The program with this number."""
    r = Random(number)
    shape, dtype, signature = r.choice(SHAPES), r.choice(DTYPES), r.choice(SIGNATURES)
    w = _Writer(r, len(shape), "int" in dtype)
    results = [w.statement("x") for _ in range(r.choice((1, 1, 2)))]
    gradients = not w.whole and r.random() < 0.5
    if r.random() < 0.2 and not gradients:
        w.lines.append(w.write("x"))
    if r.random() < 0.3:
        results.append(r.choice((f"{results[0]} * 2", f"{results[0]}.sum()", f"{results[0]}[0]", f"{results[0]}.clone()")))
    unpacked = {
        "k, m": [],
        "box, m": ["k = box.k"],
        "table, m": ["k = table['k']"],
        "pair": ["k, m = pair"],
        "s, m": ["k = s.start"],
    }[signature]
    given = {"k, m": "k, m", "box, m": "Box(k, m), m", "table, m": "{'k': k}, m", "pair": "(k, m)", "s, m": "slice(k, None), m"}
    body = "\n".join(f"    {line}" for line in (*unpacked, *w.lines, f"return {', '.join(results)},"))
    source = f"def program(x, {signature}):\n{body}\n\n\ndef arguments(k, m):\n    return {given[signature]}\n"
    source = source.replace("return (k, m)\n", "return ((k, m),)\n")
    low = r.choice((0, 0, 0, 1))
    numbers = [n for n in NUMBERS if n > 0] if low else NUMBERS
    calls = tuple((r.choice(numbers), r.choice(NUMBERS[:-3])) for _ in range(r.choice((3, 4, 5))))
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
