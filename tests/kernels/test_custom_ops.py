"""Operations made with torch.library.custom_op inside regions: values, gradients, writes, aliasing."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import lamina
from lamina.errors import BadArgument
from lamina.runtime.user_ops import user_op
from tests.kernels import operations as ops

STRICT = {"strict": True, "verify": True}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def given(grad: bool = False) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(4, 10).requires_grad_(grad) for _ in range(2)]


def functional(x: Tensor, y: Tensor) -> Tensor:
    return ops.gated(x + 1, y, 2.0).relu() * ops.row_squares(y).unsqueeze(-1)


def writes_temporary(x: Tensor, y: Tensor) -> Tensor:
    made = x * 2
    ops.add_(made, 3.0)
    return made + y


def writes_input(x: Tensor, y: Tensor) -> Tensor:
    ops.add_(y, 2.0)
    return y * x


def writes_input_read_before(x: Tensor, y: Tensor) -> Tensor:
    before = y * x
    ops.add_(y, 2.0)
    ops.add_(y, 1.0)
    return before + y


def writes_and_returns(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    return ops.double_into(x + y, out) * out


def writes_view(x: Tensor, y: Tensor) -> Tensor:
    made = x + y
    ops.add_(made[1:3], 10.0)
    ops.add_(made[:, ::2], 1.0)
    return made * 2


def writes_list(x: Tensor, y: Tensor) -> Tensor:
    a, b = x + 1, y.clone()
    ops.scale_all([a, b, y], 3.0)
    return a * b + y


def writes_beside_a_view(x: Tensor, y: Tensor) -> Tensor:
    made = x + y
    row = made[0]
    ops.add_(made, 1.0)
    return made * row


def writes_maybe(x: Tensor, y: Tensor) -> Tensor:
    return ops.fill_maybe(x + 1, None) + ops.fill_maybe(x, y, 5.0) + y


def looks_at_strides(x: Tensor, y: Tensor) -> Tensor:
    return ops.strides((x + 1).t()) + ops.strides(y[:, ::2]) * ops.strides((x * 2)[:, :3])


PROGRAMS = [
    *(functional, writes_temporary, writes_input, writes_input_read_before, writes_and_returns),
    *(writes_view, writes_list, writes_beside_a_view, writes_maybe, looks_at_strides),
]


@pytest.mark.by_dynamo(
    "kernels and operators of the user's that write end a graph of the own front end",
    "writes_beside_a_view-None",
    "writes_maybe-None",
    "writes_view-True",
)
@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize(
    ("program", "dynamic"),
    [*((p, None) for p in PROGRAMS), *((p, True) for p in (functional, writes_view, writes_list))],
)
def test_calls_inside_regions_are_eagers(program: Callable[..., Tensor], dynamic: bool | None) -> None:
    expected_args, args = given(), given()
    compiled = lamina.compile(program, fullgraph=True, dynamic=dynamic, options=STRICT)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for _ in range(2):
            torch.testing.assert_close(compiled(*args), program(*expected_args))
            torch.testing.assert_close(args, expected_args)
    assert not [stage for stage in compiled.record.stages if stage.name == "aten"]


def test_an_input_that_is_written_to_is_new_to_autograd() -> None:
    x, y = given()
    compiled = lamina.compile(writes_input, options=STRICT)
    before = y._version
    compiled(x, y)
    assert y._version > before


def test_gradients_come_from_register_autograd() -> None:
    expected_args, args = given(grad=True), given(grad=True)
    functional_only = lambda x, y: ops.gated(x.sin(), y * 2, 0.5).tanh()  # noqa: E731
    functional_only(*expected_args).sum().backward()
    compiled = lamina.compile(functional_only, options=STRICT)
    compiled(*args).sum().backward()
    for found, expected in zip(args, expected_args, strict=True):
        torch.testing.assert_close(found.grad, expected.grad)


def test_a_result_that_is_an_argument_is_an_error_as_in_eager() -> None:
    x = torch.randn(5)
    with pytest.raises(RuntimeError, match="must not also be an input"):
        ops.gives_back(x)
    with pytest.raises(RuntimeError, match="must not be one of its inputs"):
        lamina.compile(lambda x: ops.gives_back(x + 1) * 2)(x)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("wide", lambda x: x.double()),
        ("short", lambda x: x[:1].clone()),
        ("flat", lambda x: x.reshape(-1).clone()),
    ],
)
def test_a_result_other_than_the_fake_one_is_an_error(name: str, wrong: Any) -> None:
    @torch.library.custom_op(f"lamina_tests::{name}", mutates_args=())
    def misdescribed(x: Tensor) -> Tensor:
        found: Tensor = wrong(x)
        return found

    misdescribed.register_fake(torch.empty_like)
    compiled = lamina.compile(lambda x: misdescribed(x) * 2, options=STRICT)
    with pytest.raises(BadArgument, match=rf"{name}\.default returned .* where its register_fake says"):
        compiled(torch.randn(3, 4))


def test_every_call_is_made_though_its_arguments_are_equal() -> None:
    calls: list[int] = []

    @torch.library.custom_op("lamina_tests::numbered", mutates_args=())
    def numbered(x: Tensor) -> Tensor:
        calls.append(1)
        return x + len(calls)

    numbered.register_fake(torch.empty_like)
    compiled = lamina.compile(lambda x: numbered(x) * 10 + numbered(x), options=STRICT)
    assert compiled(torch.zeros(2)).tolist() == [12.0, 12.0]
    assert compiled(torch.zeros(2)).tolist() == [34.0, 34.0]


def test_dispatch_modes_and_the_profiler_see_the_operation() -> None:
    seen: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    x, y = given()
    call = user_op("lamina_tests.gated.default", "cpu")
    expected = call(x, y, 2.0)
    assert not seen
    with Watch():
        found = call(x, y, 2.0)
    assert "lamina_tests.gated.default" in seen
    assert torch.equal(found, expected)
    with torch.profiler.profile() as profile:
        call(x, y, 2.0)
    assert "lamina_tests::gated" in {event.key for event in profile.key_averages()}


def test_a_kernel_given_later_is_the_one_that_runs() -> None:
    @torch.library.custom_op("lamina_tests::constant", mutates_args=(), device_types="cpu")
    def constant(x: Tensor) -> Tensor:
        return torch.full_like(x, 1.0)

    constant.register_fake(torch.empty_like)
    compiled = lamina.compile(lambda x: constant(x) + 1, options=STRICT)
    assert compiled(torch.zeros(3)).tolist() == [2.0] * 3
    constant.register_kernel("cpu")(lambda x: torch.full_like(x, 5.0))
    assert compiled(torch.zeros(3)).tolist() == [6.0] * 3
    with constant.set_kernel_enabled("cpu", enabled=False):
        assert compiled(torch.zeros(3)).tolist() == [2.0] * 3
