"""Rows whose keys are all masked by large numbers, put right in the results of the library's attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule

import lamina
from lamina.ir.loops import LibraryCall
from lamina.masked_rows.attention import kernel_for, masked_attention
from lamina.record import Record
from lamina.rewrite.rules import attention
from lamina.rewrite.rules.torch_private import CPU, CUDNN
from tests.rewrite.rules.capturing import gradients, rewritten, run_changed

Function = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
NUMBERS = {torch.float32: (-1e9, -1e30, torch.finfo(torch.float32).min), torch.bfloat16: (-1e4, -1e9, -3.3e38)}
SHAPES = ((24, 24), (2, 1, 24, 24), (2, 1, 1, 24), (1, 4, 24, 24))


@pytest.fixture
def _by_the_cpus_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "reason_against", lambda *args, **kwargs: "")
    monkeypatch.setattr(attention, "kernel_for", lambda *args: CPU)


def _inputs(dtype: torch.dtype = torch.bfloat16, grad: bool = True) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(2, 4, 24, 16, generator=generator) for _ in range(3)]
    return [x.to(dtype).requires_grad_(grad) for x in drawn]


def _mask(shape: tuple[int, ...], number: float, dtype: torch.dtype) -> Tensor:
    """Some keys of most rows are masked, and all of the fourth row's, or of the second batch's only row."""
    mask = torch.zeros(shape)
    mask[..., 5:9] = number
    if shape[-2] == 1:
        mask[1] = number
    else:
        mask[..., 3, :] = number
    return mask.to(dtype)


def _by_hand(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1) / 4 + mask).softmax(-1) @ v


def _calls(gm: GraphModule) -> list[Any]:
    return gm.graph.find_nodes(op="call_function", target=masked_attention)


def _close(dtype: torch.dtype) -> dict[str, float]:
    return {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 3e-2, "atol": 3e-2}


def _weights(shape: torch.Size, dtype: torch.dtype) -> Tensor:
    return torch.linspace(-1, 1, shape.numel()).to(dtype).reshape(shape)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("dtype", "number"), [(d, n) for d, numbers in NUMBERS.items() for n in (*numbers, -math.inf)])
def test_masked_rows_and_all_others_are_as_in_eager(dtype: torch.dtype, number: float, shape: tuple[int, ...]) -> None:
    inputs, mask = _inputs(dtype), _mask(shape, number, dtype)
    found, expected = masked_attention(*inputs, mask, 0.25, CPU), _by_hand(*inputs, mask)
    torch.testing.assert_close(found, expected, equal_nan=True, **_close(dtype))
    masked = (mask <= -9900).all(-1, keepdim=True).broadcast_to(2, 4, 24, 1)
    assert masked.any()
    assert not masked.all()
    assert bool(found[masked.expand_as(found)].isnan().all()) == (number == -math.inf)
    (q, k, v), (eager_q, _, eager_v) = gradients(found, inputs), gradients(expected, inputs)
    torch.testing.assert_close(v, eager_v, equal_nan=True, **_close(dtype))
    assert q is not None
    assert eager_q is not None
    seen = ~masked.expand_as(q)
    torch.testing.assert_close(q[seen], eager_q[seen], **_close(dtype))
    if number != -math.inf:
        assert not q[~seen].any()
        # Of the keys' gradient the part that comes from the rows that are not masked.
        without = gradients(_by_hand(*inputs, mask).masked_fill(masked, 0.0), inputs)[1]
        torch.testing.assert_close(k, without, **_close(dtype))


def test_a_row_masked_by_several_numbers_has_the_weights_of_its_mask() -> None:
    inputs, mask = _inputs(torch.float32), torch.zeros(24, 24)
    mask[3], mask[3, ::2], mask[3, ::5] = -2e9, -1e9, -math.inf
    found, expected = masked_attention(*inputs, mask, 0.25, CPU), _by_hand(*inputs, mask)
    torch.testing.assert_close(found, expected, **_close(torch.float32))
    torch.testing.assert_close(gradients(found, inputs)[2], gradients(expected, inputs)[2], **_close(torch.float32))


def test_without_gradients_only_the_result_is_put_right() -> None:
    inputs, mask = _inputs(grad=False), _mask((24, 24), -1e9, torch.bfloat16)
    found = masked_attention(*inputs, mask, 0.25, CPU)
    torch.testing.assert_close(found, _by_hand(*inputs, mask), **_close(torch.bfloat16))


@pytest.mark.usefixtures("_by_the_cpus_kernel")
@pytest.mark.parametrize("training", [False, True])
def test_the_mask_and_the_queries_are_given_as_they_are(training: bool) -> None:
    inputs, mask = _inputs(grad=training), _mask((2, 1, 24, 24), -1e9, torch.bfloat16)
    found, (gm,) = run_changed(_by_hand, [*inputs, mask], rewritten(Record(), finite=True))
    (call,) = _calls(gm)
    assert (call.args[0].op, call.args[3].op) == ("placeholder", "placeholder")
    torch.testing.assert_close(found, _by_hand(*inputs, mask), **_close(torch.bfloat16))


def _filled(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1) / 4).masked_fill(mask < 0, -1e9).softmax(-1) @ v


def _half_of_it(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return torch.add(q @ k.transpose(-2, -1) / 4, mask, alpha=0.5).softmax(-1) @ v


def _turned(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1) / 4 + mask.t()).softmax(-1) @ v


def _in_float32(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return ((q @ k.transpose(-2, -1)).float() / 4 + mask).softmax(-1).to(q.dtype) @ v


def _minus_infinity(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1) / 4).masked_fill(mask < 0, -math.inf).softmax(-1) @ v


def _dropped(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return F.dropout((q @ k.transpose(-2, -1) / 4 + mask).softmax(-1), 0.5) @ v


@pytest.mark.usefixtures("_by_the_cpus_kernel")
@pytest.mark.parametrize("function", [_filled, _half_of_it, _turned])
def test_a_mask_that_must_be_made_is_put_right_in_training_alone(function: Function) -> None:
    for training in (True, False):
        inputs, mask = _inputs(grad=training), _mask((24, 24), -1e9, torch.bfloat16)
        found, (gm,) = run_changed(function, [*inputs, mask], rewritten(Record(), finite=True))
        assert len(_calls(gm)) == training
        expected = function(*inputs, mask)
        torch.testing.assert_close(found, expected, **_close(torch.bfloat16))
        if training:
            v, eager_v = gradients(found, inputs)[2], gradients(expected, inputs)[2]
            torch.testing.assert_close(v, eager_v, **_close(torch.bfloat16))


@pytest.mark.usefixtures("_by_the_cpus_kernel")
@pytest.mark.parametrize("function", [_in_float32, _minus_infinity, _dropped])
def test_where_eager_keeps_scores_or_needs_no_copy_the_mask_carries_masked_rows(function: Function) -> None:
    _, (gm,) = run_changed(
        function, [*_inputs(), _mask((24, 24), -1e9, torch.bfloat16)], rewritten(Record(), finite=True)
    )
    assert not _calls(gm)
    assert gm.graph.find_nodes(op="call_function", target=F.scaled_dot_product_attention)


@pytest.mark.usefixtures("_by_the_cpus_kernel")
def test_a_mask_with_a_gradient_is_added_as_before() -> None:
    inputs, mask = _inputs(), _mask((24, 24), -2.0, torch.bfloat16).requires_grad_()
    found, (gm,) = run_changed(_by_hand, [*inputs, mask], rewritten(Record(), finite=True))
    assert not _calls(gm)
    for mine, theirs in zip(
        gradients(found, [*inputs, mask]), gradients(_by_hand(*inputs, mask), [*inputs, mask]), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=5e-2, atol=5e-2)


class _Like:
    """What is asked of a tensor, without a device to hold it."""

    def __init__(self, dtype: torch.dtype, device: str, length: Any = 1024) -> None:
        self.dtype, self.device, self.shape = dtype, torch.device(device), (2, 4, length, 64)

    def new_empty(self, *shape: int) -> tuple[int, ...]:
        return shape


@pytest.mark.parametrize(
    ("like", "expected"),
    [
        (_Like(torch.bfloat16, "cuda"), CUDNN),
        (_Like(torch.bfloat16, "cuda", object()), ""),
        (_Like(torch.bfloat16, "cuda", 1), ""),
        (_Like(torch.float16, "cuda"), ""),
        (_Like(torch.float32, "cuda"), ""),
        (_Like(torch.bfloat16, "cpu"), ""),
    ],
)
def test_which_kernel_is_relied_on(like: Any, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lamina.masked_rows.attention.chosen_attention", lambda q, k, v, scale: CUDNN)
    assert kernel_for(like, like, like, 0.125) == expected


def _cleared_afterwards(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    found = _by_hand(q, k, v, mask)
    mask[0].zero_()
    return found


def _doubled_before(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    mask.mul_(2)
    return _by_hand(q, k, v, mask)


@pytest.mark.usefixtures("_by_the_cpus_kernel")
@pytest.mark.parametrize("function", [_cleared_afterwards, _doubled_before])
def test_a_mask_that_the_program_writes_to(function: Function) -> None:
    torch._dynamo.reset()
    inputs = _inputs()
    masks = [_mask((24, 24), -1e9, torch.bfloat16) for _ in range(2)]
    compiled = lamina.compile(function)
    found, expected = compiled(*inputs, masks[0]), function(*inputs, masks[1])
    torch.testing.assert_close(found, expected, **_close(torch.bfloat16))
    tangent = _weights(found.shape, found.dtype)
    (v,), (eager_v,) = (torch.autograd.grad(x, inputs[2], tangent) for x in (found, expected))
    torch.testing.assert_close(v, eager_v, **_close(torch.bfloat16))
    assert torch.equal(*masks)


@pytest.mark.usefixtures("_by_the_cpus_kernel")
def test_compiled_nothing_is_copied_and_values_are_eagers() -> None:
    torch._dynamo.reset()
    compiled = lamina.compile(_by_hand, options={"assume_finite": True})
    inputs, mask = _inputs(), _mask((24, 24), -1e9, torch.bfloat16)
    found, expected = compiled(*inputs, mask), _by_hand(*inputs, mask)
    torch.testing.assert_close(found, expected, **_close(torch.bfloat16))
    tangent = _weights(found.shape, found.dtype)
    (v,), (eager_v,) = (torch.autograd.grad(x, inputs[2], tangent) for x in (found, expected))
    torch.testing.assert_close(v, eager_v, **_close(torch.bfloat16))
    plans = [stage.value for stage in compiled.record.stages if stage.name == "plan"]
    steps = [step for plan in plans for step in plan.steps]
    assert all(isinstance(step, LibraryCall) for step in steps)
    assert [step.op.split(".")[1] for step in steps] == [
        *("_scaled_dot_product_flash_attention_for_cpu", "fill_masked_rows_forward_"),
        *("_scaled_dot_product_flash_attention_for_cpu_backward", "fill_masked_rows_backward_"),
    ]
