"""Additions at few places as comparisons: no zeros are written first, nothing is added up in
memory.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lamina.ir.loops import Store
from lamina.ir.plan import Plan
from lamina.testing import judge, tensors
from tests.codegen.triton.harness import Interpreter
from tests.codegen.triton.test_plans import planned, run

torch.manual_seed(0)


def adds(plan: Plan) -> bool:
    return any(isinstance(e, Store) and e.mode == "add" for k in plan.kernels for nest in k.nests for e in nest.body)


def places(*shape: int, size: int) -> Tensor:
    return torch.randint(size, shape)


def into(*shape: int, dim: int) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda i, v: torch.zeros(shape, dtype=v.dtype).scatter_add(dim, i, v)


CASES: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...], bool]] = {
    "one place": (into(40, 300, dim=1), (places(40, 1, size=300), torch.randn(40, 1)), False),
    "some places": (into(40, 300, dim=1), (places(40, 4, size=300), torch.randn(40, 4).bfloat16()), False),
    "an axis as short": (into(30, 33, dim=1), (places(30, 33, size=33), torch.randn(30, 33)), True),
    "equal places": (into(30, 33, dim=1), (torch.full((30, 4), 7), torch.randn(30, 4)), False),
    "an outer axis": (into(9, 33, 5, dim=1), (places(9, 4, 5, size=33), torch.randn(9, 4, 5)), False),
    "a larger source": (into(40, 30, dim=1), (places(40, 3, size=30), torch.randn(50, 7)), False),
    "read at once": (
        lambda i, v, x: torch.zeros(40, 300, dtype=v.dtype).scatter_add(1, i, v) - x.softmax(1) * v,
        (places(40, 1, size=300), torch.randn(40, 1), torch.randn(40, 300)),
        False,
    ),
    "not finite": (
        into(4, 6, dim=1),
        (places(4, 4, size=6), torch.tensor([[float("inf"), 1.0, float("nan"), -0.0]] * 4)),
        False,
    ),
    "many places": (into(20, 3000, dim=1), (places(20, 3000, size=3000), torch.randn(20, 3000)), True),
    "fewer rows": (into(20, 30, dim=1), (places(10, 3, size=30), torch.randn(10, 3)), True),
    "not zeros": (lambda x, i, v: x.scatter_add(1, i, v),
                  (-torch.zeros(5, 6), places(5, 2, size=6), torch.randn(5, 2)), True),
    "integers": (into(40, 30, dim=1), (places(40, 3, size=30), places(40, 3, size=99)), True),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_few_places_are_compared(interpreter: Interpreter, name: str) -> None:
    function, arguments, added = CASES[name]
    plan = planned(function, *arguments)
    assert adds(plan) is added
    wide = [a.double() if a.is_floating_point() else a for a in arguments]
    eager, exact = tensors(function(*arguments)), tensors(function(*wide))
    for mine, theirs, right in zip(run(plan, interpreter, arguments), eager, exact, strict=True):
        assert not (complaint := judge(mine, theirs, right)), complaint
        assert torch.equal(torch.signbit(mine), torch.signbit(theirs)) or not mine.is_floating_point()


def test_what_reads_the_sums_computes_them() -> None:
    """A loss's gradient is one kernel: neither zeros nor single additions are written."""
    function, arguments, _ = CASES["read at once"]
    assert len(planned(function, *arguments).kernels) == 1


def test_places_outside_are_an_error(interpreter: Interpreter) -> None:
    function, (_, value), _ = CASES["some places"]
    plan = planned(function, torch.zeros(40, 4, dtype=torch.int64), value)
    with pytest.raises(AssertionError):
        run(plan, interpreter, (torch.full((40, 4), 300), value))
