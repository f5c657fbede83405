"""Counter-based random numbers as two operators of a graph: a seed, drawn, and numbers, computed from it.

``lamina::philox_seed`` draws 64 bits from the device's global generator, so ``torch.manual_seed`` governs it; it
carries the tag of random operators, by which no pass removes, repeats or reorders it. ``lamina::philox_uniform`` is a
pure function of seed, offset and element, so the backward pass can compute it again instead of keeping what the
forward drew. Its CPU implementation here is the executable specification; code generation puts it into kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lamina.base.philox import uniform_range

__all__ = ["philox_seed", "philox_uniform"]

torch.library.define("lamina::philox_seed", "(Device device) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
torch.library.define(
    "lamina::philox_uniform",
    "(SymInt[] size, Tensor seed, int offset, ScalarType dtype, Device device) -> Tensor",
    tags=(torch.Tag.pointwise,),
)


@torch.library.impl("lamina::philox_seed", "default")
def _seed(device: torch.device) -> Tensor:
    return torch.empty((), dtype=torch.int64, device=device).random_()


@torch.library.impl("lamina::philox_uniform", "default")
def _uniform(size: Sequence[int], seed: Tensor, offset: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    _check(seed, dtype)
    count = 1
    for extent in size:
        count *= extent
    return uniform_range(count, int(seed), offset).to(device=device, dtype=dtype).reshape(tuple(size))


def _fake_seed(device: torch.device) -> Tensor:
    return torch.empty((), dtype=torch.int64, device=device)


def _fake_uniform(size: Sequence[int], seed: Tensor, offset: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    _check(seed, dtype)
    return torch.empty(size, dtype=dtype, device=device)


def _check(seed: Tensor, dtype: torch.dtype) -> None:
    """A narrower type would round numbers just below 1 up to 1."""
    if dtype not in (torch.float32, torch.float64):
        raise TypeError(f"philox_uniform makes float32 and float64, not {dtype}")
    if seed.dtype != torch.int64 or seed.dim():
        raise TypeError("the seed of philox_uniform is one 64-bit integer")


torch.library.register_fake("lamina::philox_seed", _fake_seed)
torch.library.register_fake("lamina::philox_uniform", _fake_uniform)

philox_seed = torch.ops.lamina.philox_seed.default
philox_uniform = torch.ops.lamina.philox_uniform.default
