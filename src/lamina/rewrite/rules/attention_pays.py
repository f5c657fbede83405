"""Where the library's attention is faster than kernels of our own around two products, as measured."""

from __future__ import annotations

from typing import Any

import torch

from lamina.base.devices import CPU_ATTENTION, FUSED_ATTENTION, kind_of

__all__ = ["reason_against"]

_FAST = (torch.float32, torch.bfloat16, torch.float16)
_WIDEST_HEAD = 256
"""Features for which CUDA has flash attention."""

_FEW_KEYS = 32
"""Queries and keys of a head up to which products and a softmax of our own are faster on a GPU: the library's kernels
compute tiles of 64 to 128 of either. (H100, heads of 16 to 64 features in any number: bfloat16 with 4 keys 3 to 9 times
as fast, 8 1.8 to 2.5, 16 1.7 to 2.4, 32 1.2 to 2.2, 64 0.7 to 1.3; float32 inference 2.3 to 5.9 with up to 32.)
"""

_LEAST_KEYS = {"inference": 1024, "causal inference": 512, "causal training": 1024}
"""On a CPU: from how many keys on. (AVX2; see benchmarks/results/rules_cpu.json.)"""


def reason_against(
    query: Any,
    value: Any,
    keys: Any,
    *,
    causal: bool,
    dropout: float,
    mask_requires_grad: bool,
    training: bool,
    masked: bool = False,
) -> str:
    """Why attention by hand is left as it is; "" where the library's is to be called.

    ``query`` and ``value`` have a dtype, a device and a shape that ends in features, ``keys`` is the number of keys;
    ``masked``: the library is given a mask to add.
    """
    if query.dtype not in _FAST:
        return f"the library has no fast attention for {query.dtype}"
    features = (query.shape[-1], value.shape[-1])
    device = kind_of(query.device)
    if device.has(FUSED_ATTENTION):
        if mask_requires_grad:  # an H100, 4 x 16 heads of 1024: 1.33 ms against 1.09, in float32 3.0 against 2.2
            return "the library's gradient of a mask takes longer than attention by hand"
        if masked and type(keys) is not int:  # torch 2.11 does not trace how it fills such a mask up
            return "on a GPU the library wants a mask whose size is known before it runs"
        if query.dtype == torch.float16 and masked and training:  # an H200, cuDNN 9.19; bfloat16 is right there
            return "the library's float16 gradients of masked keys are not numbers"
        exact = query.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
        if exact and training:  # an H100: gradients of a small GPT 2 to 3.6 times as far from exact as eager's
            return "the library's float32 gradients are too far from exact where products are not TF32"
        if all(type(n) is int and n <= _FEW_KEYS for n in (query.shape[-2], keys)):
            return f"heads of at most {_FEW_KEYS} queries and keys fill little of the tiles of the library's kernels"
        aligned = 4 if query.dtype == torch.float32 else 8 if masked else 1
        if any(type(n) is int and n % aligned for n in features):
            # An H100, 1536 times 12 heads of 14 x 129 in float32: 135 us of 1.02 ms go into scaled copies of operands.
            return f"heads that are no multiple of {aligned} features: the library has no fast kernel for them"
        wide = any(type(n) is int and n > _WIDEST_HEAD for n in features)
        return f"heads of more than {_WIDEST_HEAD} features" if wide else ""
    if not device.has(CPU_ATTENTION):
        return f"not measured on {query.device.type}"
    if dropout:
        return "the library's CPU kernel has no dropout"
    if mask_requires_grad:
        return "the library's CPU kernel gives a mask no gradient"
    if any(type(n) is not int for n in (*features, keys)) or features[0] != features[1]:
        return "the CPU kernel takes heads of one known number of features"
    kind = ("causal " if causal else "") + ("training" if training else "inference")
    least = _LEAST_KEYS.get(kind)
    if least is None:
        return "on a CPU training is as fast by hand, unless the mask is causal alone"
    return "" if keys >= least else f"on a CPU {kind} pays from {least} keys on"
