"""Infinities, NaNs, signed zeros, denormals and the largest numbers, in operators and their gradients.

A result is right where it is eager's, or what eager gives in float64, rounded: eager's own vector functions give NaN
where the value is known, and round at each step in half precision. What is neither is named below, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.compilers import CompileFunction

ROWS = (
    [3e38] * 6,
    [3e38, -3e38, 3e38, 3e38, 1.0, 2.0],
    [1e30, 1e30, -1e30, 1e30, 0.0, 1e30],
    [float("inf"), 1.0, 0.0, 2.0, -1.0, 0.5],
    [float("inf"), float("-inf"), 0.0, -0.0, 1.0, 2.0],
    [float("nan"), 1.0, 2.0, 3.0, 0.0, -0.0],
    [0.0, -0.0, -0.0, 0.0, 0.0, -0.0],
    [-0.0] * 6,
    [0.0, 0.0, 2.0, 3.0, float("inf"), 1.0],
    [1e-40, 1e-42, -1e-40, 0.0, 1e-38, 1e-45],
    [1e20, -1e20, 1e-20, 1e19, 2.0, 3.0],
    [88.0, 89.0, -88.0, -104.0, 709.0, -746.0],
    [float("-inf")] * 6,
    [float("inf")] * 6,
    [65504.0, 65520.0, -65504.0, 6e-8, 6e-5, 1.0],
    [0.3, -1.7, 2.9, -3.0, 0.999, 1.001],
)
NUMBERS = [*sorted({abs(x) for row in ROWS for x in row if x == x}), float("nan")]
_ELEMENTWISE = (
    "abs acos acosh asin asinh atan atanh ceil cos cosh deg2rad digamma erf erfc erfinv exp exp2 expm1 floor frac"
    " lgamma log log10 log1p log2 neg rad2deg reciprocal relu round rsqrt sigmoid sign sin sinc sinh sqrt square"
    " tan tanh trunc nan_to_num i0"
)
_ACTIVATIONS = (
    "celu elu gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu6 selu silu softplus"
    " softshrink softsign tanhshrink"
)
ELEMENTWISE = {name: getattr(torch, name) for name in _ELEMENTWISE.split()}
ACTIVATIONS = {name: getattr(F, name) for name in _ACTIVATIONS.split()}
POWERS: dict[str, Callable[..., Tensor]] = {
    **{f"power {p}": partial(torch.pow, exponent=p) for p in (2, 3, 4, -1, -2, 0.5, -0.5, 1.5, 0, 1)},
    **{f"{p} to the": partial(torch.pow, p) for p in (2, 0.5, 0.0, 1, 10)},
}
BOUNDS: dict[str, Callable[..., Tensor]] = {
    "clamp_min": lambda x: x.clamp_min(0.0),
    "clamp_max": lambda x: x.clamp_max(-0.0),
    "clamp": lambda x: x.clamp(-1.0, 2.0),
    "clamp_min of a tensor": lambda x: torch.clamp_min(x, torch.zeros((), dtype=x.dtype)),
    "clamp of tensors": lambda x: x.clamp(torch.full_like(x, -1.0), torch.full_like(x, 2.0)),
    "threshold": lambda x: F.threshold(x, 0.5, 7.0),
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "heaviside": lambda x: torch.heaviside(x.detach(), torch.full_like(x.detach(), 0.5)),
}
ROWWISE: dict[str, Callable[..., Tensor]] = {
    "sum": lambda x: x.sum(-1),
    "mean": lambda x: x.mean(-1),
    "norm": lambda x: x.norm(dim=-1),
    "norm 1": lambda x: x.norm(p=1, dim=-1),
    "norm inf": lambda x: x.norm(p=float("inf"), dim=-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "softmin": lambda x: F.softmin(x, -1),
    "amax": lambda x: x.amax(-1).abs(),  # which zero is the largest is the order of the loop
    "amin": lambda x: x.amin(-1).abs(),
    "argmax": lambda x: x.argmax(-1),
    "argmin": lambda x: x.argmin(-1),
    "cumsum": lambda x: x.cumsum(-1),
    "cummax": lambda x: x.cummax(-1)[0],
    "sort": lambda x: x.sort(dim=-1, stable=True)[0],
    "nansum": lambda x: x.nansum(-1),
    "nanmean": lambda x: x.nanmean(-1),
    "diff": lambda x: x.diff(dim=-1),
    "glu": lambda x: F.glu(x, -1),
    "max_pool": lambda x: F.max_pool1d(x, 2),
    "avg_pool": lambda x: F.avg_pool1d(x, 2),
    "logcumsumexp": lambda x: x.logcumsumexp(-1),
}
PAIRS: dict[str, Callable[..., Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "div floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "div trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "pow": torch.pow,
    "atan2": torch.atan2,
    "hypot": torch.hypot,
    "logaddexp": torch.logaddexp,
    "logaddexp2": torch.logaddexp2,
    "xlogy": torch.xlogy,
    "copysign": torch.copysign,
    "fmax": lambda x, y: torch.fmax(x, y).abs(),
    "fmin": lambda x, y: torch.fmin(x, y).abs(),
    "maximum": lambda x, y: torch.maximum(x, y).abs(),
    "minimum": lambda x, y: torch.minimum(x, y).abs(),
    "lerp": lambda x, y: torch.lerp(x, y, 0.25),
    "where": lambda x, y: torch.where(x > y, x, y),
    "mse": lambda x, y: F.mse_loss(x, y, reduction="none"),
    "smooth_l1": lambda x, y: F.smooth_l1_loss(x, y, reduction="none"),
    "huber": lambda x, y: F.huber_loss(x, y, reduction="none"),
    "binary cross entropy": lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction="none"),
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.5),
    "rsub": lambda x, y: torch.rsub(x, y),
}
_AT_NAN = "at a NaN, 1 at the end of eager's loop and on its GPUs, 0 in its vectors"
KNOWN: dict[tuple[str, str], str] = {
    ("hardshrink", "gradient"): _AT_NAN,
    ("hardtanh", "gradient"): _AT_NAN,
    ("relu6", "gradient"): _AT_NAN,
    ("softshrink", "value"): "the zero has the sign of the number at the end of eager's loop, none in its vectors",
    ("sinc", "gradient"): "a difference of nearly equal numbers, of which nothing is left in eager either",
    ("cumsum", "value"): "the sums are of other numbers first, so that a small one is lost beside a large one",
    ("binary cross entropy", "value"): "a small difference of large numbers",
}
"""What is neither eager's nor float64's, by operator and "value" or "gradient": why."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
CLOSE = {torch.float32: 2e-3, torch.bfloat16: 4e-2, torch.float16: 5e-3, torch.float64: 1e-6}
SIZE = 12
UNARY = {**ELEMENTWISE, **ACTIVATIONS, **POWERS, **BOUNDS, **ROWWISE}
GROUPS = [dict([*every.items()][k : k + SIZE]) for every in (UNARY, PAIRS) for k in range(0, len(every), SIZE)]


def _inputs(group: dict[str, Any], dtype: torch.dtype) -> list[tuple[Tensor, ...]]:
    if next(iter(group)) in PAIRS:
        every = torch.tensor([s * x for x in NUMBERS for s in (1.0, -1.0)], dtype=torch.float64)
        pairs = torch.cartesian_prod(every, every)
        return [tuple(pairs.to(dtype).unbind(1)) for _ in group]
    return [(torch.tensor(ROWS, dtype=torch.float64).to(dtype),) for _ in group]


def _run(
    function: Callable[..., list[Tensor]], inputs: list[tuple[Tensor, ...]]
) -> tuple[list[Tensor], list[tuple[Tensor | None, ...]]]:
    given = [tuple(x.clone().requires_grad_() for x in several) for several in inputs]
    results = function(given)
    led = [y for y in results if y.requires_grad]
    flat = [x for several in given for x in several]
    found = iter(torch.autograd.grad(led, flat, [torch.ones_like(y) for y in led], allow_unused=True))
    return [y.detach() for y in results], [tuple(next(found) for _ in several) for several in given]


def _same(one: Tensor, other: Tensor, close: float) -> Tensor:
    """Where two results are equal: NaNs, infinities with their signs, numbers nearly, zeros with their signs."""
    a, b = one.double(), other.double()
    near = (a - b).abs() <= close * b.abs().clamp_min(1e-4 if one.dtype == torch.float16 else 1e-30)
    signs = (a != 0) | (b != 0) | (a.signbit() == b.signbit())
    return (a.isnan() & b.isnan()) | (a == b) & signs | near & signs


@pytest.mark.sampled(one_in=5)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("group", GROUPS, ids=lambda group: next(iter(group)).replace(" ", "_"))
def test_extreme_values(group: dict[str, Callable[..., Tensor]], dtype: torch.dtype, compile: CompileFunction) -> None:
    def function(inputs: list[tuple[Tensor, ...]]) -> list[Tensor]:
        return [operator(*x) for operator, x in zip(group.values(), inputs, strict=True)]

    inputs = _inputs(group, dtype)
    expected, gradients = _run(function, inputs)
    exact, slopes = _run(function, [tuple(x.double() for x in several) for several in inputs])
    found, led = _run(compile(function), inputs)
    close, wrong = CLOSE[dtype], list[str]()
    for k, name in enumerate(group):
        rows = [("value", found[k], expected[k], exact[k])]
        for ours, eager, true in zip(led[k], gradients[k], slopes[k], strict=True):
            assert (ours is None) == (eager is None)
            if ours is not None and eager is not None and true is not None:
                rows.append(("gradient", ours, eager, true))
        for kind, ours, eager, true in rows:
            assert (ours.dtype, ours.shape) == (eager.dtype, eager.shape)
            bad = ~(_same(ours, eager, close) | _same(ours, true.to(ours.dtype), close))
            if not bad.any() or (name, kind) in KNOWN:
                continue
            at = bad.nonzero()[0].tolist()
            place = [x[at[0]].tolist() for x in inputs[k]]
            values = [x[tuple(at)].item() for x in (ours, eager, true)]
            wrong.append(f"{name}, {kind} {at} of {place}: {values[0]}; eager {values[1]}, float64 {values[2]}")
    assert not wrong, "\n".join(wrong)
