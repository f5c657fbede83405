"""Choices between results of one function are choices between its operands, where that is less to compute."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from lamina.codegen.triton.choices import with_choices_of_operands
from lamina.ir.index import Expr
from lamina.ir.loops import Compute, Load, Nest, Store
from lamina.ir.loops_interp import run_nest
from lamina.ir.ops import OPS
from lamina.ir.use_def import UseDef
from tests.codegen.triton.harness import Interpreter
from tests.codegen.triton.on_cuda import planned_on_cuda
from tests.codegen.triton.test_plans import SMALL, run
from tests.codegen.writer import Body

ROWS, COLUMNS = 6, 32


def test_a_function_of_a_concatenation_is_computed_once(interpreter: Interpreter) -> None:
    def function(x: Tensor) -> Tensor:
        turned = torch.cat([-x.chunk(2, 1)[1], x.chunk(2, 1)[0]], 1)
        return torch.expm1(torch.lerp(turned, x, 0.25).clamp(max=1.0)).unflatten(1, (8, 4)).square()

    x = torch.randn(10, 32, generator=torch.Generator().manual_seed(0))
    plan = planned_on_cuda(SMALL, function, x)
    (kernel,) = plan.kernels
    (nest,) = kernel.nests
    assert ops(nest, "expm1") == 2
    assert ops(with_choices_of_operands(nest), "expm1") == 1
    assert loads(with_choices_of_operands(nest)) == loads(nest) - 1
    torch.testing.assert_close(run(plan, interpreter, (x,))[0], function(x))


def ops(nest: Nest, op: str) -> int:
    return sum(isinstance(e, Compute) and e.op == op for e in nest.body)


def loads(nest: Nest) -> int:
    return sum(isinstance(e, Load) for e in nest.body)


def work(nest: Nest) -> float:
    """Instructions of a point, of what a store needs."""
    stores = [p for p, e in enumerate(nest.body) if isinstance(e, Store)]
    needed = [nest.body[p] for p in UseDef(nest.body).backward_slice(stores)]
    return sum(OPS[e.op].cost for e in needed if isinstance(e, Compute))


class Draw:
    """A nest with choices by a place between two trees, alike but for some of their leaves and operations."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.body = Body(ROWS, COLUMNS)
        row, column = self.body.at
        half, end = self.body.index(column), self.body.constant(16, "int64")
        self.first, self.second = (self.body.op(name, half, end, dtype="bool") for name in ("lt", "ge"))
        self.pool: list[tuple[str, str]] = []
        self.leaves = [self.leaf(column, row) for _ in range(3)]
        for _ in range(self.random.randrange(2, 9)):
            self.pool.append(self.node())

    def leaf(self, column: Expr, row: Expr) -> tuple[str, str]:
        b, r = self.body, self.random
        kind = r.randrange(4)
        if kind == 0:
            return (b.load("X", row, column, mask=self.first), b.load("X", row, column, mask=self.second))
        if kind == 1:
            return (b.load("X", row, column), b.load("Y", row, column))
        if kind == 2:
            return (b.load("V", column), b.load("V", column, mask=self.second))
        return (b.constant(0.5), b.constant(r.choice([0.5, 2.0])))

    def node(self) -> tuple[str, str]:
        r, op_of = self.random, self.body.op
        a, b = (r.choice(self.leaves + self.pool) for _ in range(2))
        op = r.choice(["add", "mul", "maximum", "exp", "sin", "neg", "where"])
        if op in ("exp", "sin", "neg"):
            left, right = op_of(op, a[0]), op_of(op if r.random() < 0.9 else "abs", a[1])
        elif op == "where":
            left, right = (op_of("where", op_of("gt", x, 0.0, dtype="bool"), x, y) for x, y in zip(a, b, strict=True))
        else:
            swapped = r.random() < 0.3
            left, right = op_of(op, a[0], b[0]), op_of(op, *((b[1], a[1]) if swapped else (a[1], b[1])))
        return left, right

    def nest(self) -> Nest:
        r, b = self.random, self.body
        for k in range(2):
            left, right = r.choice(self.pool[-3:])
            if r.random() < 0.5:
                right = b.op("where", self.second, right, 0.0)
            chosen = b.op("where", self.first, left, right)
            b.store(f"Z{k}", b.at, chosen)
        if r.random() < 0.3:  # somebody else uses one of them
            b.store("Z2", b.at, r.choice(self.pool)[0])
        return b.nest()


@pytest.mark.parametrize("seed", range(150))
def test_nests_of_random_choices(seed: int) -> None:
    nest = Draw(seed).nest()
    merged = with_choices_of_operands(nest)
    g = torch.Generator().manual_seed(seed)
    given = {"X": torch.randn(ROWS, COLUMNS, generator=g), "Y": torch.randn(ROWS, COLUMNS, generator=g)}
    given["V"] = torch.randn(COLUMNS, generator=g)
    results = []
    for one in (nest, merged):
        tensors = {**given, **{f"Z{k}": torch.zeros(ROWS, COLUMNS) for k in range(3)}}
        run_nest(one, tensors, {})
        results.append(tensors)
    for k in range(3):
        torch.testing.assert_close(results[0][f"Z{k}"], results[1][f"Z{k}"], rtol=0, atol=0, equal_nan=True)
    assert work(merged) <= work(nest)


def test_random_nests_have_choices_that_are_moved() -> None:
    nests = [Draw(seed).nest() for seed in range(150)]
    assert sum(work(with_choices_of_operands(n)) < work(n) for n in nests) > 40
    assert sum(loads(with_choices_of_operands(n)) < loads(n) for n in nests) > 5


def test_what_is_the_same_in_all_rows_stays_so() -> None:
    """A function of a column, chosen by the row, is not computed in each row."""
    body = Body(ROWS, COLUMNS)
    row, column = body.at
    upper = body.op("lt", body.index(row), body.constant(3, "int64"), dtype="bool")
    one, other = (body.op("exp", body.load(name, column)) for name in "VW")
    body.store("Z", body.at, body.op("where", upper, one, other))
    assert ops(with_choices_of_operands(body.nest()), "exp") == 2


def test_places_of_nan_are_no_opposites() -> None:
    """Of a NaN neither is it less nor greater or equal."""
    body = Body(COLUMNS)
    x = body.load("X", *body.at)
    less, more = (body.op(name, x, 0.0, dtype="bool") for name in ("lt", "ge"))
    inner = body.op("where", more, body.constant(1.0), body.constant(2.0))
    body.store("Z", body.at, body.op("where", less, body.constant(3.0), inner))
    tensors = {"X": torch.full((COLUMNS,), float("nan")), "Z": torch.zeros(COLUMNS)}
    run_nest(with_choices_of_operands(body.nest()), tensors, {})
    assert tensors["Z"].tolist() == [2.0] * COLUMNS
