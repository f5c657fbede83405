"""Matrix products with the library's algorithm given: what they compute.

- ``lamina::mm_algorithm`` is ``left @ right``;
- ``lamina::addmm_algorithm`` is ``bias + left @ right``, with a ``bias`` for each column.

``algorithm`` counts those that cuBLASLt proposes for the product, the one that it thinks the fastest first. The
implementations here are the executable specification, for which it means nothing; on a GPU
``library_algorithms/cublas_products.py`` calls the library. Each has a form that writes its result to ``out``.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["CHOSEN"]

CHOSEN = {
    "aten.mm.default": "lamina.mm_algorithm.default",
    "aten.addmm.default": "lamina.addmm_algorithm.default",
}
"""Products of the library, and the operation that does the same with an algorithm given."""

_OPERANDS = {"mm_algorithm": "Tensor left, Tensor right", "addmm_algorithm": "Tensor bias, Tensor left, Tensor right"}

for _name, _operands in _OPERANDS.items():
    torch.library.define(f"lamina::{_name}", f"({_operands}, int algorithm) -> Tensor")
    torch.library.define(f"lamina::{_name}.out", f"({_operands}, int algorithm, *, Tensor(a!) out) -> Tensor(a!)")


def _mm(left: Tensor, right: Tensor, algorithm: int) -> Tensor:
    return torch.mm(left, right)


def _mm_out(left: Tensor, right: Tensor, algorithm: int, *, out: Tensor) -> Tensor:
    return torch.mm(left, right, out=out)


def _addmm(bias: Tensor, left: Tensor, right: Tensor, algorithm: int) -> Tensor:
    return torch.addmm(bias, left, right)


def _addmm_out(bias: Tensor, left: Tensor, right: Tensor, algorithm: int, *, out: Tensor) -> Tensor:
    return torch.addmm(bias, left, right, out=out)


torch.library.impl("lamina::mm_algorithm", "default", _mm)
torch.library.impl("lamina::mm_algorithm.out", "default", _mm_out)
torch.library.impl("lamina::addmm_algorithm", "default", _addmm)
torch.library.impl("lamina::addmm_algorithm.out", "default", _addmm_out)
