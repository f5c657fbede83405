"""Matrix products with the tanh form of GELU, or with its gradient: what they compute.

- ``lamina::addmm_gelu`` gives GELU of ``bias + left @ right``, and what it was applied to;
- ``lamina::mm_gelu_backward`` takes ``left @ right`` for the gradient of a GELU that was applied to ``kept``.

The implementations here are the executable specification; ``library_algorithms/cublas_lt.py`` has the library do it
on a GPU, which rounds a product only once GELU or its derivative was applied. ``algorithm`` counts those that the
library proposes, the one that it thinks the fastest first.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["addmm_gelu", "mm_gelu_backward", "plain", "plain_backward"]

aten = torch.ops.aten

torch.library.define(
    "lamina::addmm_gelu", "(Tensor bias, Tensor left, Tensor right, int algorithm) -> (Tensor, Tensor)"
)
torch.library.define("lamina::mm_gelu_backward", "(Tensor left, Tensor right, Tensor kept, int algorithm) -> Tensor")


def plain(bias: Tensor, left: Tensor, right: Tensor, algorithm: int = 0) -> tuple[Tensor, Tensor]:
    """GELU of the product with a bias for each column, and the product."""
    kept = torch.addmm(bias, left, right)
    return aten.gelu(kept, approximate="tanh"), kept


def plain_backward(left: Tensor, right: Tensor, kept: Tensor, algorithm: int = 0) -> Tensor:
    """The product as the gradient of GELU's result, taken to the gradient of ``kept``."""
    result: Tensor = aten.gelu_backward(torch.mm(left, right), kept, approximate="tanh")
    return result


def _fake(bias: Tensor, left: Tensor, right: Tensor, algorithm: int) -> tuple[Tensor, Tensor]:
    return left.new_empty(left.shape[0], right.shape[1]), left.new_empty(left.shape[0], right.shape[1])


def _fake_backward(left: Tensor, right: Tensor, kept: Tensor, algorithm: int) -> Tensor:
    return left.new_empty(left.shape[0], right.shape[1])


torch.library.impl("lamina::addmm_gelu", "default", plain)
torch.library.impl("lamina::mm_gelu_backward", "default", plain_backward)
torch.library.register_fake("lamina::addmm_gelu", _fake)
torch.library.register_fake("lamina::mm_gelu_backward", _fake_backward)

addmm_gelu: Any = torch.ops.lamina.addmm_gelu.default
mm_gelu_backward: Any = torch.ops.lamina.mm_gelu_backward.default
