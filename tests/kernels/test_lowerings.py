"""Lowerings of the user's own: fused, differentiated, checked against the operation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import lamina
from lamina.base import lowering as registry
from lamina.errors import BadArgument, WrongLowering
from lamina.extend import lowering
from lamina.ir.index import as_expr
from lamina.ir.loops import LibraryCall, Nest
from lamina.lower.rules import Decline
from tests.kernels import operations as ops

STRICT = {"strict": True, "verify": True}


@pytest.fixture(autouse=True)
def own_lowerings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_LOWERINGS", {})
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def fused_steps(compiled: Any) -> list[list[Any]]:
    return [list(s.value.program.steps) for s in compiled.record.stages if s.name == "fuse"]


def program(x: Tensor, y: Tensor) -> Tensor:
    return (ops.gated(x + 1, y * 2, 2.0).relu() * 3).sum(-1)


def in_torch(x: Tensor, y: Tensor, scale: float) -> Tensor:
    return x * torch.sigmoid(y) * scale


def backward_in_torch(grad: Tensor, x: Tensor, y: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    s = torch.sigmoid(y)
    return grad * scale * s, grad * scale * x * s * (1 - s)


def element(x: Any, y: Any, scale: float) -> Any:
    return x * y.op("sigmoid") * scale


def backward_element(grad: Any, x: Any, y: Any, scale: float) -> Any:
    s = y.op("sigmoid")
    return grad * scale * s, grad * scale * x * s * (1 - s)


def nests(low: Any, node: Any, x: Any, y: Any, scale: float) -> Any:
    return low.pointwise(node, lambda v, w: v * w.op("sigmoid") * scale, x, y)


FORMS = [("torch", in_torch, backward_in_torch), ("scalar", element, backward_element), ("nest", nests, None)]


@pytest.mark.parametrize(("dtype", "dynamic"), [(torch.float32, True), (torch.bfloat16, None)])
@pytest.mark.parametrize(("form", "forward", "backward"), FORMS, ids=[f for f, *_ in FORMS])
def test_an_operation_with_a_lowering_fuses(
    form: str, forward: Any, backward: Any, dtype: torch.dtype, dynamic: bool | None
) -> None:
    lowering(ops.gated, form=form)(forward)
    if backward is not None:
        lowering(ops.gated_backward, form=form)(backward)
    torch.manual_seed(0)
    expected_args = [torch.randn(4, 12, dtype=dtype, requires_grad=True) for _ in range(2)]
    args = [t.detach().clone().requires_grad_() for t in expected_args]
    compiled = lamina.compile(program, dynamic=dynamic, options=STRICT)
    expected, found = program(*expected_args), compiled(*args)
    close = {"rtol": 2e-2, "atol": 5e-2} if dtype is torch.bfloat16 else {}
    torch.testing.assert_close(found, expected, **close)
    expected.sum().backward()
    found.sum().backward()
    for a, b in zip(args, expected_args, strict=True):
        torch.testing.assert_close(a.grad, b.grad, **close)
    forward_steps, backward_steps = fused_steps(compiled)
    assert [type(step) for step in forward_steps] == [Nest]
    if backward is not None:
        assert all(isinstance(step, Nest) for step in backward_steps)


@pytest.mark.parametrize(("form", "forward"), [(form, forward) for form, forward, _ in FORMS])
def test_the_record_says_that_a_lowering_was_used_and_where_it_is(form: str, forward: Any) -> None:
    lowering(ops.gated, form=form)(forward)
    compiled = lamina.compile(program, options=STRICT)
    compiled(torch.randn(4, 12), torch.randn(4, 12))
    (decision,) = compiled.record.decisions("lowering")
    assert decision.taken
    assert decision.subject[0] == "lamina_tests.gated.default"
    assert decision.reason == f"lowered as test_lowerings.py:{forward.__code__.co_firstlineno} says"


@pytest.mark.parametrize("form", ["scalar", "nest"])
def test_the_record_says_why_a_lowering_was_not_used(form: str) -> None:
    def declines(*args: Any) -> Any:
        raise Decline("a size it has no kernel for")

    lowering(ops.gated, form=form)(declines)
    x = torch.randn(4, 12)
    compiled = lamina.compile(program, options=STRICT)
    torch.testing.assert_close(compiled(x, x), program(x, x))
    (decision,) = compiled.record.decisions("lowering")
    assert (decision.taken, decision.reason) == (False, "a size it has no kernel for")


def test_without_a_lowering_it_is_called() -> None:
    compiled = lamina.compile(program, options=STRICT)
    compiled(torch.randn(4, 12), torch.randn(4, 12))
    (steps,) = fused_steps(compiled)
    assert [step.op for step in steps if isinstance(step, LibraryCall)] == ["lamina_tests.gated.default"]


def test_symbolic_sizes_are_products_of_the_graphs() -> None:
    lowering(ops.row_squares)(lambda x: (x * x).reshape(-1).reshape(x.shape[0], x.shape[1]).sum(-1))
    compiled = lamina.compile(lambda x: ops.row_squares(x + 1), dynamic=True, options=STRICT)
    for shape in ((4, 6), (5, 9)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), (x + 1).square().sum(-1))
    assert all(decision.taken for decision in compiled.record.decisions("lowering"))


def test_a_size_that_nothing_computes_leaves_the_call() -> None:
    def halves(x: Tensor) -> Tensor:
        half = x.shape[1] // 2
        return (x * x)[:, :half].sum(-1) + (x * x)[:, half:].sum(-1)

    lowering(ops.row_squares)(halves)
    compiled = lamina.compile(lambda x: ops.row_squares(x + 1), dynamic=True, options=STRICT)
    x = torch.randn(4, 7)
    torch.testing.assert_close(compiled(x), (x + 1).square().sum(-1))
    assert [(d.taken, "symbolic size" in d.reason) for d in compiled.record.decisions("lowering")] == [(False, True)]


def test_reductions_in_nests() -> None:
    @lowering("lamina_tests::row_squares", form="nest")
    def sums(low: Any, node: Any, x: Any) -> Any:
        out = low.result(node)
        b = low.nest(node, x.shape)
        value = b.load(x)
        b.store(out, b.reduce("sum", value * value, [x.rank - 1]), b.axes[:-1])
        low.finish(b)
        return out

    compiled = lamina.compile(lambda x: x / ops.row_squares(x + 1).unsqueeze(-1), options=STRICT)
    x = torch.randn(5, 33)
    torch.testing.assert_close(compiled(x), x / (x + 1).square().sum(-1, keepdim=True))
    assert [[type(step) for step in steps] for steps in fused_steps(compiled)] == [[Nest]]


def test_a_result_that_is_an_operand_is_a_tensor_of_its_own() -> None:
    lowering(ops.gated)(lambda x, y, scale: x)
    compiled = lamina.compile(lambda x, y: ops.gated(x, y, 1.0), options=STRICT)
    x = torch.randn(3, 4)
    out = compiled(x, x)
    assert torch.equal(out, x)
    assert out.data_ptr() != x.data_ptr()


def racing(low: Any, node: Any, x: Any) -> Any:
    """Each element of a row is stored at the same place."""
    out, b = low.result(node), low.nest(node, x.shape)
    b.store(out, b.load(x), b.axes[:1])
    low.finish(b)
    return out


def half_written(low: Any, node: Any, x: Any) -> Any:
    """Two elements of four are stored."""
    out = low.result(node)
    b = low.nest(node, [as_expr(2)])
    b.store(out, b.constant(1.0, "float32"), b.axes)
    low.finish(b)
    return out


WRONG: list[tuple[str, Callable[..., Any], str]] = [
    ("torch", lambda x: x.sum(), "returns float32[] on cpu, the operation float32[4] on cpu"),
    ("torch", lambda x: x.sum(-1).half(), "returns float16[4] on cpu"),
    ("torch", lambda x: (x.sum(-1), x), "returns 2 results, the operation 1"),
    ("torch", lambda x: 3, "returns a int, the operation a"),
    ("torch", lambda x: x.missing(), "raised AttributeError"),
    ("torch", lambda x: x.mul_(2).sum(-1), "writes to its operands"),
    ("scalar", lambda x: x * 2, "not of one shape"),
    ("nest", lambda low, node, x: x, "returns float32[4, 6], the operation float32[4]"),
    ("nest", lambda low, node, x: None, "returns a NoneType"),
    ("nest", lambda low, node, x: low.missing(), "raised AttributeError"),
    ("nest", lambda low, node, x: low.result(node), "never writes its result"),
    ("nest", half_written, "writes 2 of the 4 elements of its result"),
    ("nest", lambda low, node, x: racing(low, node, x), "left nest n_row_squares ill formed"),
    ("nest", lambda low, node, x: low.nest(node, x.shape).load(x).op("tahn"), "no scalar operation 'tahn'"),
    ("nest", lambda low, node, x: x if low.nest(node, x.shape).load(x) > 0 else None, "a value has no truth"),
]


@pytest.mark.parametrize(("form", "function", "message"), WRONG, ids=[m for *_, m in WRONG])
def test_a_wrong_lowering_is_an_error_that_names_both_places(
    form: str, function: Callable[..., Any], message: str
) -> None:
    lowering(ops.row_squares, form=form)(function)
    compiled = lamina.compile(lambda x: ops.row_squares(x + 1) * 2)
    with pytest.raises(Exception, match="LM043") as failure:
        compiled(torch.randn(4, 6))
    text = str(failure.value)
    assert message in text
    assert "the lowering of lamina_tests.row_squares.default" in text
    assert text.count("test_lowerings.py:") == 2
    # Dynamo wraps what a backend raises.
    assert isinstance(getattr(failure.value, "inner_exception", failure.value), WrongLowering)


def test_a_value_of_another_kind_is_no_result() -> None:
    lowering(ops.scaled, form="scalar")(lambda x, by: x > by)
    with pytest.raises(Exception, match="returns bool where float32 is wanted"):
        lamina.compile(lambda x: ops.scaled(x), options=STRICT)(torch.randn(4, 6))


@pytest.mark.parametrize("form", ["torch", "scalar", "nest"])
def test_defaults_of_the_operation_are_given_to_its_lowering(form: str) -> None:
    functions = {"torch": lambda x, by: x * by, "scalar": lambda x, by: x * by}
    functions["nest"] = lambda low, node, x, by: low.pointwise(node, lambda v: v * by, x)
    lowering(ops.scaled, form=form)(functions[form])
    x = torch.randn(4, 6)
    for program in (lambda x: ops.scaled(x), lambda x: ops.scaled(x, by=4.0)):
        torch.testing.assert_close(lamina.compile(program, options=STRICT)(x), program(x))


def test_comparisons_are_by_element() -> None:
    def marks(x: Any, by: float) -> Any:
        return (x == 0).op("where", by, (x != 1).op("where", x, -by))

    lowering(ops.scaled, form="scalar")(marks)
    x = torch.tensor([0.0, 1.0, 2.5])
    assert lamina.compile(lambda x: ops.scaled(x, 4.0), options=STRICT)(x).tolist() == [4.0, -4.0, 2.5]


def test_lowerings_are_part_of_the_cache_key() -> None:
    def first(x: Tensor) -> Tensor:
        return x.square().sum(-1)

    def second(x: Tensor) -> Tensor:
        return (x * x).sum(-1)

    keys = []
    for function in (first, second, first):
        lowering(ops.row_squares)(function)
        keys.append(registry.lowerings_key())
    assert keys[0] == keys[2] != keys[1]


def test_a_new_lowering_counts_in_the_next_compilation() -> None:
    def call(x: Tensor) -> Tensor:
        return ops.row_squares(x) + 0.5

    x = torch.ones(2, 3)
    lowering(ops.row_squares)(lambda x: x.square().sum(-1))
    assert lamina.compile(call)(x).tolist() == [3.5, 3.5]
    lowering(ops.row_squares)(lambda x: x.square().sum(-1) * 10)
    assert lamina.compile(call)(x).tolist() == [30.5, 30.5]


@pytest.mark.parametrize(
    ("op", "form", "message"),
    [
        (ops.gated, "loops", "form is 'loops'"),
        ("lamina_tests::nothing", "torch", "torch has no operation"),
        (torch.ops.aten.gelu.default, "torch", "is not a custom operation"),
        (torch.ops.quantized.add.default, "torch", "is not a custom operation"),
        (torch.ops.aten.add, "torch", "has the overloads"),
        (ops.add_, "torch", "writes to its arguments"),
        (3, "torch", "was given for a int"),
    ],
)
def test_what_cannot_have_a_lowering(op: Any, form: str, message: str) -> None:
    with pytest.raises(BadArgument, match=message):
        lowering(op, form=form)(lambda x: x)
