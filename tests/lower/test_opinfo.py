"""Torch's own operator database through the rules for arithmetic: values, gradients, dtypes and symbolic sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from .harness import Outcome, outcome
from .torch_private import OpInfo, op_db


def _names(words: str) -> frozenset[str]:
    return frozenset(words.split())


NAMES = _names(
    """
    __radd__ __rdiv__ __rmod__ __rmul__ __rpow__ __rsub__ _softmax_backward_data abs acos acosh add addcdiv
    addcmul addr all amax amin aminmax angle any arange argmax argmin asin asinh atan atan2 atanh bfloat16
    bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor bool byte ceil char
    clamp clamp_max clamp_min clone copysign cos cosh count_nonzero deg2rad digamma dist div double eq erf erfc
    erfinv exp exp2 expm1 fill float_power floor floor_divide fmax fmin fmod frac full full_like ge gradient gt
    half heaviside hypot int isfinite isinf isnan isneginf isposinf isreal ldexp le lerp lgamma linalg.norm
    linalg.vector_norm linspace log log10 log1p log2 log_softmax logaddexp logaddexp2 logical_and logical_not
    logical_or logical_xor logit logsumexp long lt masked.amax masked.mean masked.norm masked.softmax masked.std
    masked.sum masked.var masked_fill max maximum mean min minimum mul nan_to_num nansum native_dropout_backward
    native_layer_norm ne neg new_full new_ones new_zeros nextafter nn.functional.binary_cross_entropy_with_logits
    nn.functional.celu nn.functional.cross_entropy nn.functional.elu nn.functional.gelu nn.functional.glu
    nn.functional.group_norm nn.functional.hardshrink nn.functional.hardsigmoid nn.functional.hardswish
    nn.functional.hardtanh nn.functional.huber_loss nn.functional.kl_div nn.functional.l1_loss
    nn.functional.layer_norm nn.functional.leaky_relu nn.functional.logsigmoid nn.functional.mish
    nn.functional.mse_loss nn.functional.nll_loss nn.functional.normalize nn.functional.pairwise_distance
    nn.functional.poisson_nll_loss nn.functional.prelu nn.functional.relu nn.functional.relu6
    nn.functional.rms_norm nn.functional.selu nn.functional.silu nn.functional.smooth_l1_loss
    nn.functional.soft_margin_loss nn.functional.softmin nn.functional.softplus nn.functional.softshrink
    nn.functional.softsign nn.functional.tanhshrink nn.functional.threshold nn.functional.triplet_margin_loss norm
    ones ones_like polar pow prod rad2deg reciprocal remainder round rsqrt rsub scalar_tensor sgn short sigmoid
    sign signbit sin sinc sinh softmax special.entr special.ndtr special.xlog1py sqrt square std std_mean sub sum
    tan tanh to torch.ops.aten._safe_softmax.default trace tril triu true_divide trunc var var_mean where xlogy
    zeros zeros_like
    """
)

# What a rule leaves to the library in some cases, by operator and the words its reason must hold.
DECLINED = {
    "__rmod__": "integer tensor as divisor",
    "__rpow__": "integer power",
    "addr": "outer product of integers",
    "angle": "complex",
    "div": "integer tensor as divisor",
    "float_power": "integer power",
    "floor_divide": "integer tensor as divisor",
    "fmod": "integer tensor as divisor",
    "linspace": "known only at run time|integer linspace",
    "nextafter": "half-precision",
    "norm": "singular|svd|no lowering rule",
    "linalg.norm": "singular|svd|no lowering rule",
    "polar": "no lowering rule|complex",
    "pow": "integer power",
    "remainder": "integer tensor as divisor",
    "round": "integers to decimals",
    "scalar_tensor": "does not fit",
    "to": "complex",
}

SYMBOLIC = _names(
    """
    add addcmul amax argmax clamp cumsum div eq exp floor_divide fmod full_like gelu log_softmax logsumexp lt
    masked_fill max mean mul nn.functional.cross_entropy nn.functional.gelu nn.functional.glu
    nn.functional.group_norm nn.functional.layer_norm nn.functional.mse_loss nn.functional.silu
    nn.functional.softplus norm pow prod softmax std sub sum tanh tril var var_mean where zeros_like
    """
)


def _selected(names: frozenset[str], dtype: torch.dtype, backward: bool = False) -> list[Any]:
    def supported(op: OpInfo) -> bool:
        kinds = op.supported_backward_dtypes("cpu") if backward else op.supported_dtypes("cpu")
        return dtype in kinds and (op.supports_autograd or not backward)

    return [
        pytest.param(op, id=f"{op.name}.{op.variant_test_name}".rstrip("."))
        for op in op_db
        if op.name in names and supported(op)
    ]


def _run(op: OpInfo, sample: Any, backward: bool, symbolic: bool) -> Outcome:
    leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def call(*tensors: torch.Tensor) -> list[torch.Tensor]:
        given = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            given[place] = tensor
        first, args, kwargs = tree_unflatten(given, spec)
        outs = [o for o in tree_flatten(op.op(first, *args, **kwargs))[0] if isinstance(o, torch.Tensor)]
        if not backward:
            return outs
        smooth = [o for o in outs if o.requires_grad]
        weights = [torch.arange(o.numel(), dtype=o.dtype).reshape(o.shape).sin() + 0.3 for o in smooth]
        wanted = [t for t in tensors if t.requires_grad]
        grads = torch.autograd.grad(smooth, wanted, weights, allow_unused=True)
        return [*(o.detach() for o in outs), *(g for g in grads if g is not None)]

    return outcome(call, [leaves[i] for i in places], symbolic)


def _samples(op: OpInfo, dtype: torch.dtype, backward: bool, count: int) -> Iterator[Any]:
    for position, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=backward)):
        if position == count:
            return
        yield sample


def _judge(op: OpInfo, dtype: torch.dtype, count: int, backward: bool = False, symbolic: bool = False) -> None:
    torch.manual_seed(0)
    nests = 0
    for sample in _samples(op, dtype, backward, count):
        found = _run(op, sample, backward, symbolic)
        if dtype.is_floating_point or op.name not in INTEGER_INPUTS_HAVE_NO_DOUBLE:
            assert not found.complaints, (sample, found.complaints)
        nests += found.nests
        for name, reason in found.library:
            allowed = DECLINED.get(op.name, "")
            assert any(words and words in f"{name} {reason}" for words in allowed.split("|")), (name, reason)
    assert nests or op.name in DECLINED or op.name in IDENTITIES


# On tensors of the dtype asked for these return their operand.
IDENTITIES = {"bfloat16", "bool", "byte", "char", "double", "half", "int", "long", "short", "to"}

# Their results on integers are floats, whose error no double-precision run of integers can measure.
INTEGER_INPUTS_HAVE_NO_DOUBLE = {"nn.functional.triplet_margin_loss"}


@pytest.mark.sampled(one_in=21)
@pytest.mark.parametrize("op", _selected(NAMES, torch.float32))
def test_float32(op: OpInfo) -> None:
    _judge(op, torch.float32, 2)


OTHER_DTYPES = (torch.bfloat16, torch.int64, torch.bool, torch.uint8)


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", OTHER_DTYPES, ids=str)
def test_other_dtypes(dtype: torch.dtype, every: bool) -> None:
    """One sample of each operator that takes the dtype, or of each third, another third for each dtype.

    All failures are reported together.
    """
    wrong: list[str] = []
    chosen = [p.values[0] for p in _selected(NAMES, dtype)]
    assert len(chosen) > 60
    chosen = chosen if every else chosen[OTHER_DTYPES.index(dtype) % 3 :: 3]
    for op in chosen:
        try:
            _judge(op, dtype, 1)
        except AssertionError as why:
            wrong.append(f"{op.name}: {str(why)[:300]}")
    assert wrong == []


@pytest.mark.sampled(one_in=18)
@pytest.mark.parametrize("op", _selected(NAMES - {"polar", "angle"}, torch.float32, backward=True))
def test_gradients(op: OpInfo) -> None:
    """Gradients may go through views, whose rules are tested elsewhere."""
    torch.manual_seed(0)
    for sample in _samples(op, torch.float32, True, 1):
        found = _run(op, sample, True, False)
        assert not found.complaints, (sample, found.complaints)
        assert found.nests


@pytest.mark.sampled(one_in=6)
@pytest.mark.parametrize("op", _selected(SYMBOLIC, torch.float32))
def test_symbolic_sizes(op: OpInfo) -> None:
    _judge(op, torch.float32, 2, symbolic=True)
